"""Which plain readings an attack vouches for as individual examples, without the truth.

A row that shows one example, x = G_w[i] / G_b[i], also says what that example must have sent: its bias
gradient there is d_i(x, y) / n for its label y. A mixture fails this for every label but for a coincidence,
and coincidences are counted. What remains is claimed only where nothing else explains it within the rounding
of the update: see `peeling.labelling` and `peeling.outcome`, which peeling shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.parts.gradients import LayerGradient
from seepage.attacks.parts.peeling.codes import NumberCode, Snapped
from seepage.attacks.parts.peeling.labelling import Labeller
from seepage.attacks.parts.peeling.match import Scale
from seepage.attacks.parts.peeling.outcome import counts_several_times
from seepage.attacks.parts.peeling.readings import Readings
from seepage.attacks.parts.peeling.signals import BackwardSignals
from seepage.attacks.parts.precision import EXACT, Precision
from seepage.types import Exchange, InputSpec, Knowledge, UpdateKind

_CHUNK_BYTES = 1 << 22
_CONFIRMED = 2
"""Readings that must fit a common factor which is no whole number before it is believed."""


@dataclass(frozen=True)
class Candidates:
    """Plain readings before anybody vouches for them."""

    rows: Tensor
    """(k,) where each was read."""
    support: Tensor
    features: Tensor
    """(k, m) what the layer reads."""
    on_alphabet: Tensor
    """(k,) bool: a point of an alphabet, which a mixture is not."""
    spoiled: Tensor
    """(k,) bool: as `codes.Snapped` has it."""
    bound: Tensor
    """(k,) what rounding may have added to any value."""
    unit: float | None
    """Range of the values; None: unknown."""
    all_agree: bool
    """Every active row of the layer shows the same."""
    accidents: float = 0.0
    """Mixtures expected to be points of an alphabet by accident; see `codes.Snapped`."""


@dataclass(frozen=True)
class Claims:
    """What is vouched for, and the common factor that the predictions agree on."""

    claimed: Tensor
    mismatch: Tensor
    """(k,) of the best label's bias gradient; inf where nothing could be compared."""
    scale: Scale | None

    @staticmethod
    def none(count: int) -> Claims:
        return Claims(torch.zeros(count, dtype=torch.bool), torch.full((count,), torch.inf), None)


def expected_kappa(exchange: Exchange, known: Knowledge) -> float | None:
    """What the mean gradient must be multiplied by to be a sum over examples; None where nobody says."""
    if known.loss.endswith("_sum"):
        return 1.0
    n = exchange.update.num_examples
    scaled = exchange.update.kind is UpdateKind.GRADIENT or known.local is not None
    return float(n) if n is not None and scaled else None


def quotient_bounds(
    gradient: LayerGradient, rows: Tensor, read: Tensor, *, weights: tuple[Tensor, Tensor, Precision] | None
) -> Tensor:
    """(k,) what the update's rounding may have added to any value of the quotients (k, m).

    weights: the layer's weight (N, m), bias (N,) and their precision, where the update is a difference of
    such, rounded to their last digits.
    """
    largest, bias = read.abs().amax(1).double(), gradient.bias[rows].double()
    of = gradient.precision.of
    weight_error, bias_error = of(largest * bias), of(bias)
    if weights is not None:
        weight_error += weights[2].of(weights[0][rows].abs().amax(1))
        bias_error += weights[2].of(weights[1][rows])
    return (weight_error + largest * bias_error) / bias.abs()


def on_the_grid(read: Tensor, bound: Tensor, spec: InputSpec) -> Snapped:
    """Readings (k, d) of the model's input on their grid, a few at a time."""
    code = NumberCode(spec)
    each = max(1, _CHUNK_BYTES // max(1, read.shape[1] * read.element_size()))
    parts = [code.snap(r, b) for r, b in zip(read.split(each), bound.split(each), strict=True)]
    return Snapped(**{name: torch.cat([getattr(p, name) for p in parts]) for name in vars(parts[0])})


def vouch(
    candidates: Candidates,
    gradient: LayerGradient,
    signals: BackwardSignals,
    *,
    kappa: float | None,
    certain: bool = True,
) -> Claims:
    """The candidates that some label explains, and nothing else does within rounding.

    certain: also where the model is certain of its prediction, if they lie on an alphabet.
    """
    count = len(candidates.rows)
    if count == 0 or gradient.scale is None or gradient.steps != 1:
        return Claims.none(count)
    observed = gradient.bias[candidates.rows].double() * gradient.scale
    no = torch.zeros_like(candidates.on_alphabet)
    readings = Readings(
        row=candidates.rows,
        support=candidates.support.to(candidates.rows.device),
        bias=observed,
        noise=gradient.precision.of(gradient.bias[candidates.rows]) * abs(gradient.scale),
        error=candidates.bound,
        features=candidates.features,
        # One that all rows agree on needs no alphabet: mixtures in every row would have to be the same.
        exact=candidates.on_alphabet | candidates.all_agree,
        undecided=no,
        spoiled=candidates.spoiled,
        moved=candidates.bound,
    )
    labeller = Labeller(signals, kappa=kappa)
    labelled = labeller.label(readings, certain=certain, accidents=candidates.accidents)
    if labelled is None:
        return Claims.none(count)
    fits = torch.tensor([len(labels) > 0 for labels in labelled.match.labels], device=observed.device)
    place = torch.full((len(gradient.bias),), -1, device=observed.device)
    place[candidates.rows] = torch.arange(count, device=observed.device)
    where = place[labelled.readings.row]
    claimed, mismatch = no.clone(), torch.full_like(observed, torch.inf)
    mismatch[where] = labelled.match.mismatch.to(mismatch)
    claimed[where] = fits & _no_other_way(candidates, labeller)[where]
    scale = labeller.scale
    if scale is not None and scale.num_examples is None and int(claimed.sum()) < _CONFIRMED:
        claimed, scale = no, None
    return Claims(claimed.cpu(), mismatch.cpu(), scale)


def _no_other_way(candidates: Candidates, labeller: Labeller) -> Tensor:
    """(k,) bool: rounding leaves no value open, and it is no mean of several that are nearly alike."""
    unit = candidates.features.abs().amax(1).double() if candidates.unit is None else candidates.unit
    accurate = candidates.bound <= EXACT * unit
    once = not counts_several_times(labeller.scale, labeller.expected)
    sure: Tensor = candidates.on_alphabet | (accurate & once)
    return sure
