"""Sparse traps: crafted rows among honest ones, as long as those, in places that nobody can foretell.

A check that looks at a sample of rows, or at a statistic of all of them, sees a layer that is mostly honest.
Peeling needs few rows: those that fire for a handful of a batch's examples lay single ones bare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.attacks.traps.crafted_extraction import READERS, Bait, CraftedExtraction, Crafter
from seepage.core.errors import SpecError
from seepage.core.registry import lookup
from seepage.core.types import Exchange, Knowledge
from seepage.models.choice import choose_layer

_KINDS = {name: name for name in ("quantile_traps", "trap_weights")}


@dataclass(frozen=True, kw_only=True)
class SparseCrafter:
    """Another crafter's rows in a share of the layer; the honest ones are put back in all other places."""

    whole: Crafter
    share: float

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self.whole.check(model, known)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, *, seed: int) -> Bait:
        bait = self.whole.craft(model, history, known, seed=seed)
        layer = choose_layer(bait.model, known.input, bait.secret.layer)
        weight, honest = bait.model.get_parameter(layer.weight), model.get_parameter(layer.weight)
        count = max(1, round(self.share * len(weight)))
        drawn = torch.randperm(len(weight), generator=torch.Generator().manual_seed(seed + 2))
        crafted = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
        crafted[drawn[:count].to(weight.device)] = True
        # A row and its bias times the same number fire for the same inputs.
        length = honest.norm(dim=1).mean() / weight[crafted].norm(dim=1).mean().clamp_min(1e-12)
        with torch.no_grad():
            for name in (layer.weight, layer.bias):
                if name is not None:
                    mixed, before = bait.model.get_parameter(name), model.get_parameter(name)
                    mixed[crafted] *= length
                    mixed[~crafted] = before[~crafted]
        note = f"Only {count} of {len(weight)} rows are crafted, drawn at random and as long as the others."
        return Bait(bait.model, replace(bait.secret, notes=(*bait.secret.notes, note)))


def sparse_traps(
    *,
    share: float = 0.1,
    kind: str = "quantile_traps",
    layer: str | None = None,
    hidden: bool = False,
    batch_size: int | None = None,
    rounds: Sequence[int] = (0,),
    clients: Sequence[int] | None = None,
    read: str = "peel",
) -> CraftedExtraction:
    """Dishonest server, hard to see: traps in a few rows of a dense layer, in random places, the rest honest.

    share: of the rows that are crafted. kind: "quantile_traps" or "trap_weights", what they are.
    layer, hidden, batch_size: as of that attack.
    rounds, clients: when and to whom the crafted model is sent.
    read: "peel" takes found examples away and reads what they hid; "rows" reads each row by itself.
    """
    if not 0 < share <= 1:
        raise SpecError(f"share must lie above 0 and be at most 1, not {share}.")
    lookup(READERS, read, "reader")
    build = ATTACKS.find(lookup(_KINDS, kind, "kind of trap"))
    whole = build(layer=layer, hidden=hidden, batch_size=batch_size, read=read)
    assert isinstance(whole, CraftedExtraction)
    crafter = SparseCrafter(whole=whole.crafter, share=share)
    return CraftedExtraction(crafter, read=read, rounds=rounds, clients=clients)
