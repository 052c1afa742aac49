"""Whole batches from a layer without a bias: directions from rows, lengths from the grid, claims by signals.

G_w = D^T X. A row that one example activates, or what known examples leave of a row that holds one more, is a
multiple of it (`elimination`); `lengths` says which multiple. Once all examples in some rows are known, these
show each one's backward signal, which must be that of one of its labels: a wrong length, a mixture or a mean
of two that are nearly alike would have sent something else. Nothing here sees the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.patterns.doubt import Doubt
from seepage.attacks.reading.patterns.elimination import Read, eliminate
from seepage.attacks.reading.patterns.lengths import grid_values
from seepage.attacks.reading.patterns.open_rows import Split, rank, split
from seepage.attacks.reading.peeling.codes import NumberCode
from seepage.attacks.reading.peeling.residual import Found, Residual, row_norms
from seepage.attacks.reading.peeling.span import SignalSpan
from seepage.attacks.reading.peeling.tolerances import SPARE
from seepage.core.types import InputSpec
from seepage.models.precision import EXACT
from seepage.models.signals import BackwardSignals

_MOST_ROUNDS = 64
"""Each finds an example at least. Cost: time."""


@dataclass(frozen=True)
class WithoutBias:
    """What was read."""

    features: Tensor
    """(k, m) on the grid."""
    support: Tensor
    claimed: Tensor
    """(k,) bool"""
    complete: bool
    """No row holds anything else, and all are claimed."""
    single: bool
    """As `ByAlphabet.single`: the gradient shows as many independent examples as it was made of."""
    open_rows: int

    def __len__(self) -> int:
        return len(self.features)


def read_without_bias(
    residual: Residual,
    active: Tensor,
    signals: BackwardSignals,
    spec: InputSpec,
    *,
    kappa: float | None,
    num_examples: int | None,
) -> WithoutBias:
    """Every example that lies on a grid; kappa: what the gradient is multiplied by to be a sum over examples,
    None where nobody says, and nothing is claimed.

    Nor is anything where the gradient shows fewer independent examples than `num_examples`, as in
    `by_alphabet`, and none of two that are nearly alike.
    """
    rows, weight = active.nonzero().squeeze(1), signals.parameters[0]
    features = residual.weight[:0]
    support = torch.zeros(0, dtype=torch.long, device=rows.device)
    more: Read | None = _single_rows(residual, rows)
    for number in range(_MOST_ROUNDS):
        if number:
            more = eliminate(residual, rows, features, features @ weight.T > 0)
        if more is None:
            break
        values, exact = grid_values(more.values, more.noise, spec)
        new = exact.nonzero().squeeze(1)
        new = new[_distinct(values[new], features)]
        if number and not len(new):
            break
        features, support = torch.cat([features, values[new]]), torch.cat([support, more.support[new]])
        if SPARE * len(features) > features.shape[1]:
            break
    parts = split(residual, rows, features)
    claimed = _foretold(parts, features, signals, kappa) & ~Doubt(NumberCode(spec)).alike(features)
    single = num_examples is not None and rank(residual, parts, features) == num_examples
    # Copies that are nearly alike add little to the rank, but more than rounding.
    single = single and num_examples is not None and 0 < SignalSpan(residual, rows).rank <= num_examples
    claimed &= single
    whole = bool(parts.explained.all()) and bool(claimed.all()) and len(features) > 0
    return WithoutBias(features, support, claimed, whole, single, int((~parts.explained).sum()))


def _single_rows(residual: Residual, rows: Tensor) -> Read:
    """Each row as a direction of its own."""
    noise = residual.noise(rows, Found.none(residual.weight))[1] / residual.weight.shape[1] ** 0.5
    values = residual.weight[rows]
    size = row_norms(values).clamp_min(torch.finfo(torch.float64).tiny)
    return Read((values / size.unsqueeze(1)).to(values), noise / size, torch.ones_like(rows), unknown=0)


def _foretold(parts: Split, features: Tensor, signals: BackwardSignals, kappa: float | None) -> Tensor:
    """(k,) bool: examples whose share of the explained rows is the backward signal of one of their labels."""
    no = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    at = parts.explained.nonzero().squeeze(1)
    if kappa is None or not len(at) or not len(features):
        return no
    observed = parts.known[at].T * kappa  # (k, r)
    best = torch.full((len(features),), torch.inf, dtype=torch.float64, device=features.device)
    for label in range(signals.spec.num_classes):
        labels = torch.full((len(features),), label, device=features.device)
        d = signals.at_all_rows(features, labels)[:, parts.rows[at]].double()
        size, fires = d.norm(dim=1), (d != 0).sum(1)
        off = (observed - d).norm(dim=1) / size.clamp_min(torch.finfo(torch.float64).tiny)
        best = torch.minimum(best, torch.where((fires >= SPARE) & (size > 0), off, torch.inf))
    return best <= EXACT


def _distinct(values: Tensor, known: Tensor) -> Tensor:
    """(d,) positions of values (k, m) that are neither known nor earlier in the list."""
    apart = torch.cdist(values, torch.cat([known, values]), p=torch.inf)
    same = apart <= EXACT * values.abs().amax(1, keepdim=True)
    earlier = torch.ones_like(same).tril(len(known) - 1)
    kept: Tensor = (~(same & earlier).any(1)).nonzero().squeeze(1)
    return kept
