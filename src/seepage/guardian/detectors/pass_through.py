"""Filters and neurons that hand one single value on (Boenisch et al. 2021, Section 7 and Appendix B).

Permuted places, random gains and noise in the other filters do not change what is looked for: rows whose
weight sits in one entry. Training and pruning make some, so their number is compared with what the sparsity
of the layer's *other* rows leads to expect, and lone weights that just escaped pruning do not count. And an
input has to pass *every* convolution on its way, or every value of it a dense layer: single rows of single
layers, as MobileNets have them by the dozen, carry nothing to anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import beta, binom
from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, is_recurrent, mixing_convolutions, of_kind

_PEAK = 0.99
"""Share of a row's energy in its largest entry. Tested:
test_constants_of_weight_detectors_lie_on_a_plateau."""
_RAREST = 1e-12
"""Smallest probability that is reckoned with. Derived: nine rows of it reach `_MOST_SURPRISE`."""
_ABOVE_PRUNED = 3.0
"""A lone weight is made, not left over, if it is so many times the smallest that pruning left elsewhere. No
plateau test yet."""
_FEW = 4
"""Weights of a row that count as nearly one. Tested: test_constants_of_weight_detectors_lie_on_a_plateau."""
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
    convs, dense = mixing_convolutions(layers, fan_in=8), of_kind(layers, "dense", fan_in=8)
    if not convs and not dense:
        raise NotApplicable("the model has no layer of 8 or more inputs, so this could not be checked.")
    readings = [_weakest([passed(layer) for layer in convs])] if convs else []
    # Layers that begin as the identity keep passing values on in part: that leads to no trap by itself, and
    # what comes behind is looked at (`reading_input`).
    readings += [one.reading() for one in map(passed, dense) if one.carries_all and one.exact]
    nothing = "no chain of layers passes single values on more often than the layers' sparsity explains"
    return max(
        (reading for reading in readings if reading.score > 0),
        key=lambda reading: reading.score,
        default=Reading(score=0.0, layer=None, evidence=nothing),
    )


def reading_input(layers: Sequence[WeightLayer]) -> list[WeightLayer]:
    """Dense layers that the input could reach unaltered, by shapes: a trap has to sit in one of them.

    Every convolution before them passes values on, and their inputs are no other layer's outputs, or those of
    one that passes values on, or of one that puts back what they take out (an inserted layer). Where all
    layers fit each other, any may be the first, unless inputs come in through an embedding or a recurrent
    layer. Recurrent layers sum over the steps of an example, which hides single rows.
    """
    if any(passed(layer).count == 0 for layer in mixing_convolutions(layers, fan_in=8)):
        return []
    dense = [layer for layer in layers if layer.kind == "dense" and not is_recurrent(layer.name)]
    made = Counter(len(layer.rows) for layer in dense)
    # What a recurrent layer hands on is its hidden state, which it also reads itself, or that of two ways.
    hidden = [x.inputs for x in layers if x.name.rpartition(".")[2].startswith("weight_hh")]
    made.update([*hidden, *(2 * width for width in hidden)])
    first = [
        one for one in dense if made[one.inputs] == (one.inputs == len(one.rows)) or _put_back(one, dense)
    ]
    handed_on = {len(one.rows) for one in first if passed(one).carries_all}
    first += [one for one in dense if one.inputs in handed_on and not any(one is other for other in first)]
    other_entrance = any(layer.kind == "embedding" or is_recurrent(layer.name) for layer in layers)
    return first or ([] if other_entrance else dense)


def _put_back(layer: WeightLayer, dense: Sequence[WeightLayer]) -> bool:
    """Whether it and layers of the transposed shape read from each other alone. The two of a transformer's
    block do not: attention makes what the first one reads."""
    here = tuple(layer.rows.shape)
    there = here[::-1]

    def all_made_by(values: int, shape: tuple[int, ...]) -> bool:
        makers = [tuple(other.rows.shape) for other in dense if len(other.rows) == values]
        return bool(makers) and all(made == shape for made in makers)

    return here[0] != here[1] and all_made_by(here[1], there) and all_made_by(here[0], here)


@dataclass(frozen=True)
class _Passed:
    """What one layer hands on."""

    layer: WeightLayer
    count: int
    """Single-entry rows."""
    surprise: float
    """-log10 of the chance that the other rows' sparsity leaves so many."""
    columns: int
    """Values that are read."""
    arriving: int
    """Different values among those that single-entry rows hand on."""
    exact: bool
    """The other entries are zero, while those of other rows are not."""

    @property
    def carries_all(self) -> bool:
        """Half of all values that a dense layer reads or can hand on: with less, no input arrives. Many rows
        that look at one value, as regressions of ten numbers have them, hand on that one alone."""
        return 2 * self.arriving >= min(self.columns, len(self.layer.rows))

    def reading(self) -> Reading:
        words = (
            f"{self.count} of {len(self.layer.rows)} rows of '{self.layer.name}' pass a single value on and "
            "ignore all others"
        )
        return Reading(score=self.surprise, layer=self.layer.name, evidence=words, exact=self.exact)


def passed(layer: WeightLayer) -> _Passed:
    """Counted over all columns or, where that is more surprising, over those that carry data."""
    rows = layer.rows
    found = [_Passed(layer, *_tail(rows))]
    if layer.kind == "dense" and len(rows) > 1:
        zero = rows == 0
        holed = zero.any(dim=1)
        # Appendix B, measures 3 and 4: among the columns that carry data one-hot, elsewhere random.
        columns = zero[holed].float().mean(dim=0) > 0.5 if bool(holed.any()) else zero[0] & False
        if 8 <= int(columns.sum()) < rows.shape[1]:
            found.append(_Passed(layer, *_tail(rows[:, columns])))
    return max(found, key=lambda one: one.surprise)


def _weakest(chain: Sequence[_Passed]) -> Reading:
    """A chain of convolutions passes as much as the one that passes least."""
    return min((one.reading() for one in chain), key=lambda reading: reading.score)


def _tail(rows: Tensor) -> tuple[int, float, int, int, bool]:
    """(single-entry rows, their surprise, columns in use and handed on, whether they are exactly that)."""
    total = torch.linalg.vector_norm(rows, dim=1).square()
    largest = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)).square()
    peaked = (total > 0) & (largest >= _PEAK * total)
    if not bool(peaked.any()):  # nearly always, and a pass over a large layer costs time
        return 0, 0.0, rows.shape[1], 0, False
    others = rows[(total > 0) & ~peaked]
    if bool((others == 0).any()):
        least = float(others.abs()[others != 0].min())
        peaked &= rows.abs().amax(dim=1) >= _ABOVE_PRUNED * least
    count, alive = int(peaked.sum()), int((total > 0).sum())
    size, live = rows.shape[1], int((rows != 0).any(dim=0).sum())
    if not count:
        return 0, 0.0, live, 0, False
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
    single_entries = float(((rows[peaked] != 0).sum(dim=1) == 1).float().mean())
    exact = single_entries > 0.5 and (not len(others) or float((others != 0).float().mean()) > 0.5)
    arriving = len(rows[peaked].abs().argmax(dim=1).unique())
    return count, min(_MOST_SURPRISE, max(0.0, tail)), live, arriving, exact
