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

from seepage.attacks.reading.cut import hidden_values, smallest_sent
from seepage.attacks.reading.one_each import Counted, Received, one_each, step_of
from seepage.attacks.reading.peeling.codes import NumberCode, Snapped
from seepage.attacks.reading.peeling.labelling import Labelled, Labeller
from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.peeling.residual import Residual
from seepage.attacks.reading.peeling.span import SignalSpan
from seepage.attacks.reading.peeling.tolerances import BLOCK_BYTES, FINE
from seepage.attacks.reading.scale import TOGETHER, Scale
from seepage.core.types import InputSpec
from seepage.models.gradients import LayerGradient
from seepage.models.precision import EXACT, Precision
from seepage.models.signals import BackwardSignals

HALF_SURE = FINE
"""Mismatch of the bias gradient at which the confidence in a plain reading is one half. Derived: a hundredth
of another example in the row moves the bias gradient by as little."""


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
    evidence: Tensor | None
    """(k,) that each is the product of one example; see `products`. None: the update does not show it."""
    computed: torch.dtype | None = None
    """As `products.as_computed` has it."""
    differs: bool = False
    """The update is a difference of weights."""
    tokens: bool = False
    """The alphabet is a table of embeddings, in which no row is the mean of two."""
    believe_grid: bool = True
    """Whether the grid and the declared number are enough; see `one_each`."""
    accidents: float = 0.0
    """Mixtures expected to be points of an alphabet by accident; see `codes.Snapped`."""


@dataclass(frozen=True)
class Claims:
    """What is vouched for, and the common factor that the predictions agree on."""

    claimed: Tensor
    mismatch: Tensor
    """(k,) of the best label's bias gradient; inf where nothing could be compared."""
    scale: Scale | None
    if_declared: bool = False
    """As `Reconstruction.if_declared`."""

    @staticmethod
    def none(count: int) -> Claims:
        return Claims(torch.zeros(count, dtype=torch.bool), torch.full((count,), torch.inf), None)


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
    each = max(1, BLOCK_BYTES // max(1, read.shape[1] * read.element_size()))
    parts = [code.snap(r, b) for r, b in zip(read.split(each), bound.split(each), strict=True)]
    return Snapped(**{name: torch.cat([getattr(p, name) for p in parts]) for name in vars(parts[0])})


def vouch(
    candidates: Candidates,
    gradient: LayerGradient,
    signals: BackwardSignals,
    *,
    kappa: float | None,
    certain: bool = True,
    received: LayerGradient | None = None,
    at_layer: LayerGradient | None = None,
) -> Claims:
    """The candidates that some label explains, and nothing else does within rounding.

    certain: also where the model is certain of its prediction, if they lie on an alphabet.
    received: the gradient that was received, where `gradient` has a bias that was made up.
    at_layer: the layer's own gradient, where `gradient` is that of the inputs which a pass-through carries to
    it; the candidates' features are what the layer reads.
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
        evidence=torch.zeros_like(observed) if candidates.evidence is None else candidates.evidence,
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
    labels: list[tuple[int, ...]] = [()] * count
    for k, several in zip(where.tolist(), labelled.match.labels, strict=True):
        labels[k] = several
    sent = received or gradient
    alone, if_declared = _no_other_way(candidates, labeller, sent, at_layer or sent, labels)
    claimed[where] = fits & alone[where]
    kept = claimed[where].nonzero().squeeze(1)
    claimed[where[kept]] = ~_contradicted(labelled, kept, signals)
    scale = labeller.scale
    if scale is not None and scale.num_examples is None and int(claimed.sum()) < TOGETHER:
        claimed, scale = no, None
    return Claims(claimed.cpu(), mismatch.cpu(), scale, if_declared and bool(claimed.any()))


def _contradicted(labelled: Labelled, claimed: Tensor, signals: BackwardSignals) -> Tensor:
    """(c,) bool: of those `claimed` (c,) on no alphabet, which cannot be alone if the others are right.

    Each was read as the only example at its row. If another fires there too, and not too faintly to spoil a
    value, one of the two is no example: most often a mixture beside the example that most of it is. Nothing
    says which, so neither is vouched for; what lies on an alphabet is no mixture and stands. Two readings
    that agree within what rounding may have added are one example, read twice: neither speaks against the
    other.
    """
    readings = labelled.readings.select(claimed)
    labels = [labelled.match.labels[j][0] for j in claimed.tolist()]
    if bool(readings.exact.all()):
        return torch.zeros_like(readings.exact)
    sent = signals.at_all_rows(readings.features, torch.tensor(labels, device=claimed.device))
    there = sent[:, readings.row].abs().double()  # (c, c): of each at the row of each
    disturbs = there > EXACT * readings.bias.abs()
    disturbs &= ~_same_within_rounding(readings, disturbs)
    contradicted: Tensor = (disturbs.any(0) | disturbs.any(1)) & ~readings.exact
    return contradicted


def _same_within_rounding(readings: Readings, asked: Tensor) -> Tensor:
    """(c, c) bool: of the pairs that are `asked` (c, c) about, those whose features rounding alone parts."""
    same = torch.zeros_like(asked)
    pairs = asked.nonzero()
    each = max(1, BLOCK_BYTES // max(1, readings.features.shape[1] * readings.features.element_size()))
    for some in pairs.split(each):
        one, other = some.unbind(1)
        apart = (readings.features[one] - readings.features[other]).abs().amax(1)
        same[one, other] = apart <= readings.error[one] + readings.error[other]
    return same


def _no_other_way(
    candidates: Candidates,
    labeller: Labeller,
    gradient: LayerGradient,
    at_layer: LayerGradient,
    labels: list[tuple[int, ...]],
) -> tuple[Tensor, bool]:
    """(k,) bool: rounding leaves no value open, and it is no mean of several that are nearly alike; and
    whether that takes the declared number of examples at its word.

    labels: (k) those that fit each; none: not asked about.
    """
    unit = candidates.features.abs().amax(1).double()
    if candidates.unit is not None:
        unit = torch.full_like(unit, candidates.unit)
    sure: Tensor = candidates.on_alphabet | (candidates.bound <= EXACT * unit)
    if candidates.evidence is not None:
        sure &= candidates.on_alphabet | (candidates.evidence <= 0)
    if not candidates.tokens:
        smallest = smallest_sent(gradient.weight, gradient.bias)
        hidden = hidden_values(gradient.weight, smallest, candidates.rows, gradient.bias[candidates.rows])
        sure &= hidden <= step_of(unit, candidates.on_alphabet)
    which = torch.tensor([len(several) > 0 for several in labels], device=sure.device).nonzero().squeeze(1)
    if candidates.tokens or not len(which):
        return sure, False
    single = torch.zeros_like(sure)
    known = one_each(
        _counted(candidates, which, [several for several in labels if several], unit),
        Received(
            scale=labeller.scale,
            expected=labeller.expected,
            summed=labeller.signals.loss.endswith("_sum"),
            computed=candidates.computed,
            fine=Residual(gradient).fine and not candidates.differs,
            signals=labeller.signals,
            span=lambda: _span(gradient, labeller.scale),
            left=lambda rows: _left(at_layer, labeller, candidates.features, labels, rows),
        ),
    )
    single[which] = known.single
    return sure & single, known.if_declared


def _counted(candidates: Candidates, which: Tensor, labels: list[tuple[int, ...]], unit: Tensor) -> Counted:
    """Those of the candidates (w,) that labels fit."""
    grid, evidence, device = candidates.on_alphabet[which], candidates.evidence, which.device
    # Copies with several labels are no product, and no near copies: those would leave the alphabet.
    one = torch.tensor([len(set(several)) == 1 for several in labels], device=device)
    return Counted(
        features=candidates.features[which],
        labels=torch.tensor([several[0] for several in labels], device=device),
        row=candidates.rows[which],
        on_grid=grid & candidates.believe_grid,
        lone=torch.full_like(grid, evidence is not None),
        evidence=unit.new_zeros(len(which)) if evidence is None else torch.where(one, evidence[which], 0.0),
        times=torch.tensor([max(several.count(y) for y in several) for several in labels], device=device),
        step=step_of(unit[which], grid),
    )


def _span(gradient: LayerGradient, scale: Scale | None) -> SignalSpan:
    residual = _summed(gradient, scale)
    return SignalSpan(residual, residual.norm.nonzero().squeeze(1))


def _left(
    gradient: LayerGradient, labeller: Labeller, features: Tensor, labels: list[tuple[int, ...]], rows: Tensor
) -> Tensor:
    """(r, m) of rows (r,), without what readings (k, m) with these labels send there."""
    several = [(k, label) for k, each in enumerate(labels) for label in each]
    which, label = torch.tensor(several, device=rows.device).unbind(1)
    sent = labeller.signals.at_all_rows(features[which], label)[:, rows]
    residual = _summed(gradient, labeller.scale)
    return residual.weight[rows].double() * residual.factor - sent.T.double() @ features[which].double()


def _summed(gradient: LayerGradient, scale: Scale | None) -> Residual:
    """In units of a sum over examples."""
    residual = Residual(gradient)
    residual.factor *= 1.0 if scale is None else scale.kappa
    return residual
