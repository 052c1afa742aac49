"""Filters and neurons that hand one single value on (Boenisch et al. 2021, Section 7 and Appendix B).

Permuted places, random gains and noise in the other filters do not change what is looked for: rows whose
weight sits in one entry, as no training makes them. Pruning does make some, so their number is compared with
what the sparsity of the layer's *other* rows leads to expect, and lone weights that just escaped pruning do
not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.stats import beta, binom
from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, of_kind

_PEAK = 0.99
"""Share of a row's energy in its largest entry. Tested: test_constants_of_detectors_lie_on_a_plateau."""
_RAREST = 1e-12
"""Smallest probability that is reckoned with. Derived: nine rows of it reach `_MOST_SURPRISE`."""
_ABOVE_PRUNED = 3.0
"""A lone weight is made, not left over, if it is so many times the smallest that pruning left elsewhere.
Tested: test_constants_of_detectors_lie_on_a_plateau."""
_FEW = 4
"""Weights of a row that count as nearly one. Tested: test_constants_of_detectors_lie_on_a_plateau."""
_MOST_SURPRISE = 100.0
"""Largest score. Derived: a decimal logarithm of probabilities; beyond, all are impossible."""


def pass_through() -> Detector:
    """Weights: rows with a single non-zero entry, which transmit their input unaltered.

    >>> from torch import nn
    >>> from seepage.core.types import Broadcast
    >>> conv = nn.Conv2d(3, 8, 3)
    >>> conv.weight.data[:3] = 0
    >>> conv.weight.data[[0, 1, 2], [0, 1, 2], 1, 1] = 1
    >>> pass_through()(Broadcast(conv)).verdict
    <Verdict.TRAP: 'trap'>
    """
    return weight_detector("pass_through", measure)


def measure(layers: Sequence[WeightLayer]) -> Reading:
    usable = of_kind(layers, "dense", "conv", fan_in=8)
    if not usable:
        raise NotApplicable("the model has no layer of 8 or more inputs, so this could not be checked.")
    counted = [(layer, *_surprise(layer)) for layer in usable]
    total = min(_MOST_SURPRISE, sum(surprise for _, _, surprise in counted))
    layer, count, _ = max(counted, key=lambda entry: entry[2])
    words = (
        f"{count} of {len(layer.rows)} rows of '{layer.name}' pass a single value on and ignore all others"
        if count
        else "no row passes a single value on more often than the layers' sparsity explains"
    )
    return Reading(score=total, layer=layer.name if count else None, evidence=words)


def _surprise(layer: WeightLayer) -> tuple[int, float]:
    """(single-entry rows, -log10 of the chance that the other rows' sparsity leaves so many)."""
    rows = layer.rows
    found = [_tail(rows)]
    if layer.kind == "dense" and len(rows) > 1:
        zero = rows == 0
        holed = zero.any(dim=1)
        # Appendix B, measures 3 and 4: among the columns that carry data a row is one-hot, elsewhere random.
        columns = zero[holed].float().mean(dim=0) > 0.5 if bool(holed.any()) else zero[0] & False
        if 8 <= int(columns.sum()) < rows.shape[1]:
            found.append(_tail(rows[:, columns]))
    return max(found, key=lambda entry: entry[1])


def _tail(rows: Tensor) -> tuple[int, float]:
    energy = rows.square()
    total = energy.sum(dim=1)
    peaked = (total > 0) & (energy.amax(dim=1) >= _PEAK * total)
    others = rows[(total > 0) & ~peaked]
    if bool((others == 0).any()):
        least = float(others.abs()[others != 0].min())
        peaked &= rows.abs().amax(dim=1) >= _ABOVE_PRUNED * least
    count, alive = int(peaked.sum()), int((total > 0).sum())
    if not count:
        return 0, 0.0
    size = rows.shape[1]
    kept = (others != 0).sum(dim=1)
    # Where every row is peaked nothing tells the sparsity: that of a strongly pruned model is assumed.
    density = float(kept.to(torch.float32).mean()) / size if len(others) else 0.1
    by_sparsity = float(binom.pmf(1, size, density))
    # Rows of a pruned layer differ in norm: those that kept 2 to 4 weights tell how many kept a single one.
    by_neighbours = int((kept <= _FEW).sum()) / alive
    # The share of one entry in the energy of a normal row is Beta(1/2, (size - 1)/2) distributed.
    by_chance = size * float(beta.cdf(1 - _PEAK, (size - 1) / 2, 0.5))
    single = max(by_sparsity, by_neighbours, by_chance, _RAREST)
    tail = -float(binom.logsf(count - 1, alive, min(1.0, single))) / 2.302585
    return count, min(_MOST_SURPRISE, max(0.0, tail))
