"""Slow drift: a trap that is reached over many rounds, none of which moves further than training does.

The server trains as it should, on what comes back, and adds the same small part of the way to a crafted
model in every round. A check that compares a round with those before it sees steps of one size in one
direction. After the last of them the whole way is done, and the answer to it is read.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.attacks.traps.crafted_extraction import CraftedExtraction, Crafter
from seepage.core.errors import SpecError
from seepage.core.registry import lookup
from seepage.core.settings import construct
from seepage.core.types import Crafted, Exchange, Grant, Knowledge, LocalTraining
from seepage.protocol import aggregate, apply_update

_TARGETS = {name: name for name in ("shifted_rows", "sparse_traps", "quantile_traps", "trap_weights")}
"""What keeps the architecture, so that there is a way from one model to the other."""


class SlowDrift(CraftedExtraction):
    """Sends in round t what training made of round t - 1, and 1/T of the way to the crafted model."""

    def __init__(self, crafter: Crafter, *, steps: int, read: str, requires: frozenset[Grant]) -> None:
        super().__init__(crafter, read=read, rounds=(steps - 1,), requires=requires)
        self.steps = steps

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        number = 1 + max((e.broadcast.round for e in history), default=-1)
        if number >= self.steps:
            return None
        # The same seed each time, so that every round goes the same way.
        bait = self.crafter.craft(model, (), known, seed=known.seed * 10_007)
        there, start = dict(bait.model.named_parameters()), dict(model.named_parameters())
        nudged = _trained(model, history, known)
        with torch.no_grad():
            for name, parameter in nudged.named_parameters():
                parameter.add_((there[name] - start[name]) / self.steps)
        return Crafted(nudged, bait.secret if number == self.steps - 1 else None)


def _trained(model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> nn.Module:
    """What was sent last, moved by what came back: this server trains as an honest one does."""
    if not history:
        return copy.deepcopy(model)
    newest = max(e.broadcast.round for e in history)
    last = [e for e in history if e.broadcast.round == newest]
    update = last[0].update if len(last) == 1 else aggregate([e.update for e in last], "mean")
    return apply_update(last[0].broadcast.model, update, lr=(known.local or LocalTraining()).lr)


def slow_drift(
    *,
    steps: int = 8,
    toward: str = "shifted_rows",
    toward_options: Mapping[str, Any] | None = None,
    read: str = "peel",
) -> SlowDrift:
    """Dishonest server over rounds, hard to see: each round goes a small part of the way to a crafted model.

    steps: rounds over which the way is spread; the answer to the last one is read.
    toward: "shifted_rows", "sparse_traps", "quantile_traps" or "trap_weights".
    toward_options: settings of that attack.
    read: "peel" takes found examples away and reads what they hid; "rows" reads each row by itself.
    """
    if steps < 2:
        raise SpecError(f"steps must be at least 2, not {steps}: in one round nothing drifts.")
    for name in ("rounds", "clients", "read"):
        if name in (toward_options or {}):
            raise SpecError(f"'{name}' is no setting of the crafted model that is drifted to: leave it out.")
    build = ATTACKS.find(lookup(_TARGETS, toward, "crafted model"))
    whole = construct(build, {**(toward_options or {}), "read": read}, f"the crafted model '{toward}'")
    return SlowDrift(whole.crafter, steps=steps, read=read, requires=whole.requires)
