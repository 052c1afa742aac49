"""Canaries in a training, and what its promise is worth by what they show."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from seepage.core.types import Batch, Broadcast, LocalStep, Update
from seepage.defenses import DEFENSES
from seepage.defenses.canaries import LONG, Canaries, random_directions
from seepage.defenses.empirical import Empirical, from_cosines, from_parts
from seepage.engine.prepared import Prepared
from seepage.engine.promise import CLIENT, LOCAL_DP, defense_records
from seepage.protocol import client
from seepage.protocol.local import local_update, trainable
from seepage.record import DefenseRecord, epsilon_text

_MOST_CLIENTS = 200
"""Canaries that are whole clients: each is a release of its own, and costs one."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a training promises: the epsilon of its records, or the one that a framework's settings name."""

    record: DefenseRecord
    epsilon: float
    releases: int
    """That the promise is for."""

    @property
    def by_example(self) -> bool:
        return self.record.protects != CLIENT


def claim_of(prepared: Prepared) -> Claim | None:
    """The promise of a training's defenses; None where there is none."""
    planned = prepared.planned
    found = defense_records(prepared.spec, prepared.local, planned=planned, lived=planned)
    record = next((one for one in found if one.epsilon is not None), None)
    if record is None or record.epsilon is None:
        return None
    if record.defense.name == LOCAL_DP:  # what was asked for, a round
        return Claim(record=record, epsilon=float(record.defense.params["epsilon"]), releases=1)
    return Claim(record=record, epsilon=record.epsilon, releases=record.steps or 1)


def plant(prepared: Prepared, claim: Claim, seed: int, model: nn.Module, count: int) -> Canaries | None:
    """Canaries among the examples of the first client; None where the promise is about whole clients, or a
    round is several steps."""
    if not claim.by_example or prepared.local.algorithm != "fedsgd":
        return None
    size = sum(p.numel() for p in trainable(model).values())
    drawn = prepared.private_seed("canaries", seed)
    return Canaries(count, size, schedule=prepared.planned, seed=drawn)


def of_canaries(canaries: Canaries, delta: float) -> Empirical:
    """After the training."""
    steps, rate = canaries.sampled
    return from_parts(canaries.seen, canaries.directions, delta=delta, steps=steps, sampling_rate=rate)


def of_clients(
    prepared: Prepared, claim: Claim, seed: int, model: nn.Module, batch: Batch, count: int
) -> Empirical | None:
    """Clients that are canaries: each sends one update in a random direction through the defenses.

    Where the server adds the noise, the others send nothing, and their sum is what is released.
    """
    if claim.by_example:
        return None
    step = _Sending(prepared, seed)
    entry = DEFENSES.find(claim.record.defense.name)
    others = prepared.spec.protocol.clients - 1 if entry.runs_at == "server" else 0
    sent = Broadcast(model, 0)
    like = local_update(sent, batch, prepared.local)
    size = sum(t.numel() for t in like.tensors.values())
    drawn, cosines = prepared.private_seed("canaries", seed), []
    for number in range(min(count, _MOST_CLIENTS)):
        direction = random_directions(1, size, (drawn + number) % 2**63)[0]
        release = _flat(step(_as_update(like, LONG * direction))(sent, batch))
        for _ in range(others):
            release = release + _flat(step(_as_update(like, 0 * direction))(sent, batch))
        cosines.append(torch.dot(direction.to(release), release) / release.norm())
    return from_cosines(torch.stack(cosines), size=size, delta=prepared.spec.delta, releases=claim.releases)


class _Sending:
    """A client whose training gives a chosen update, inside its defenses."""

    def __init__(self, prepared: Prepared, seed: int) -> None:
        self._prepared, self._defenses = prepared, prepared.defenses(seed)

    def __call__(self, chosen: Update) -> LocalStep:
        return client(self._prepared.local, [*self._defenses, lambda sent, batch, next_step: chosen])


def _as_update(like: Update, values: torch.Tensor) -> Update:
    parts = values.split([t.numel() for t in like.tensors.values()])
    named = zip(like.tensors.items(), parts, strict=True)
    return replace(like, tensors={name: part.view_as(t).to(t) for (name, t), part in named})


def _flat(update: Update) -> torch.Tensor:
    return torch.cat([t.flatten() for t in update.tensors.values()])


def scores(found: Empirical, claim: Claim) -> dict[str, float]:
    """By name, for the record of a training."""
    return {
        "empirical epsilon": found.estimate,
        "empirical epsilon, low": found.low,
        "empirical epsilon, high": found.high,
        "epsilon at least": found.at_least,
        "contradicted": float(found.contradicts(claim.epsilon)),
    }


def contradiction(found: Empirical, claim: Claim) -> str:
    """One sentence; empty where the promise may hold."""
    if not found.contradicts(claim.epsilon):
        return ""
    each = " a round" if claim.record.defense.name == LOCAL_DP else ""
    return (
        f"the promise of ε = {epsilon_text(claim.epsilon)}{each} does not hold: {found.canaries} canaries "
        f"show ε of at least {epsilon_text(found.at_least)} (95 %) at δ = {found.delta:g}."
    )
