"""Gradient disaggregation (Lam et al. 2021): the same model to changing groups of clients, under secure sums.

All clients, then all but one, each of them in turn. The server knows whom it asked, so every client's update
follows from the sums (`separate`), with its number of examples. Clients must train on the same batch in each
round; that they did is checked by the one equation that there is more than clients.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.base import Around, Attack, pool
from seepage.attacks.fishing.catch import inner_attack
from seepage.attacks.sums.separate import separated
from seepage.core.errors import NotApplicable
from seepage.core.types import Crafted, Exchange, Grant, Knowledge, Reconstruction

_SAME = 1e-4
"""Misfit of the sums up to which clients sent the same in each round. Derived: single precision leaves 1e-7
times the number of clients; another batch moves an update by about its own length."""


@dataclass(frozen=True)
class Group:
    """What a round was for: the clients of the first one are everybody."""

    without: int | None


@dataclass(kw_only=True, eq=False)
class GradientDisaggregation(Attack):
    """Everybody, then everybody but one."""

    inner: Attack
    """Reads each client's update."""

    def __post_init__(self) -> None:
        own = {Grant.CRAFT_WEIGHTS, Grant.CHOOSE_CLIENTS, Grant.SEVERAL_ROUNDS, Grant.BATCH_SIZE}
        self.requires = self.inner.requires | own

    def matching_by(self, around: Around) -> Attack:
        self.inner = self.inner.matching_by(around)
        return self

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self.inner.check(model, known)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if not history:
            return Crafted(copy.deepcopy(model), Group(None))
        everybody = history[0].clients
        if len(everybody) == 1:  # updates are seen one by one, or there is one client
            return None
        if len(everybody) == 2:
            raise NotApplicable(
                "a sum of two clients without one of them is the other's update, which a secure sum does not "
                "give away: disaggregation needs three clients or more."
            )
        asked = {exchange.secret.without for exchange in history}
        left = [client for client in everybody if client not in asked]
        if not left:
            return None
        rest = tuple(client for client in everybody if client != left[0])
        return Crafted(copy.deepcopy(model), Group(left[0]), rest)

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        if len(exchanges[0].clients) == 1:
            return pool([self.inner.run([exchange], known) for exchange in exchanges])
        found = [self.inner.run([one], known) for one in taken_apart(exchanges)]
        pooled = pool(found)
        assert pooled.source is not None
        note = (
            f"{len(exchanges)} secure sums over changing groups were taken apart into the updates of "
            f"{len(found)} clients. A demand that all take part in every round would prevent it, and so "
            "would other batches in each round."
        )
        return replace(pooled, source=torch.zeros_like(pooled.source)).with_notes(note)


def taken_apart(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Each client's own exchange, from sums over different groups of them with the same model."""
    everybody = sorted({client for exchange in exchanges for client in exchange.clients})
    took_part = torch.tensor([[float(c in e.clients) for c in everybody] for e in exchanges])
    totals = [exchange.update.num_examples for exchange in exchanges]
    if any(total is None for total in totals):
        raise NotApplicable(
            "how many examples are behind each sum was not sent, so clients have no weights: "
            "grant = ['batch_size']."
        )
    weights = torch.tensor([float(total or 0) for total in totals])
    sizes, misfit = separated(weights.unsqueeze(1), took_part)
    shapes = {name: tensor.shape for name, tensor in exchanges[0].update.tensors.items()}
    sums = torch.stack([_flat(e) * w for e, w in zip(exchanges, weights.tolist(), strict=True)])
    each, changed = separated(sums, took_part)
    if max(misfit, changed) > _SAME:
        raise NotApplicable(
            f"the sums contradict each other (by {max(misfit, changed):.2g}), so clients did not send the "
            "same in each round: they train on other batches, or add noise."
        )
    single = []
    for client, count, update in zip(everybody, sizes.flatten().round().long().tolist(), each, strict=True):
        parts = (update / count).split([shape.numel() for shape in shapes.values()])
        dtypes = (t.dtype for t in exchanges[0].update.tensors.values())
        tensors = {
            name: part.reshape(shape).to(dtype)
            for (name, shape), part, dtype in zip(shapes.items(), parts, dtypes, strict=True)
        }
        own = replace(exchanges[0].update, tensors=tensors, num_examples=count, buffers=None, derived=True)
        single.append(replace(exchanges[0], update=own, clients=(client,), labels=None))
    return single


def _flat(exchange: Exchange) -> Tensor:
    return torch.cat([t.detach().flatten().double().cpu() for t in exchange.update.tensors.values()])


def gradient_disaggregation(
    *, inner: str = "exact_extraction", inner_options: Mapping[str, Any] | None = None
) -> GradientDisaggregation:
    """Dishonest server, secure sums: the same model to changing groups of clients, whose sums are taken apart
    into single updates (Lam et al. 2021).

    inner, inner_options: the attack that reads each client's update, and its settings.
    """
    return GradientDisaggregation(inner=inner_attack(inner, inner_options))
