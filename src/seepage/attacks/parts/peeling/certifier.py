"""Believing a reading: an example counts as found when what it must have sent is what was received.

The label follows from the bias gradient at the row, the common factor of the update from all readings
together. Nothing here sees the truth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.parts.peeling.bent import as_observed
from seepage.attacks.parts.peeling.match import AMBIGUOUS, Scale, find_scale, match_labels
from seepage.attacks.parts.peeling.readings import Readings, too_many_by_chance
from seepage.attacks.parts.peeling.residual import ROUNDING, Found, Residual
from seepage.attacks.parts.peeling.signals import BackwardSignals
from seepage.attacks.parts.peeling.span import SignalSpan

_LOOSEST, _LOOSE, _TIGHT = 3e-2, 1e-3, 5e-6
"""Mismatch of the bias gradient allowed to readings on an alphabet (if the row is that noisy), to readings
with other evidence, and to those with none."""
_BENT_CLEAR = 2.0
"""Clearer by this factor than any other must the label of a bent signal be. The example itself is proven by
the alphabet, and where it is alone its signal is taken as observed: a wrong label does little harm."""
_REFUTED = 0.1
"""Share of proven examples that the span may refute; beyond, it is not that of the batch."""
_UNDECIDED = 1e-4
"""Share of the largest label's signal that the smallest must be: with p = 1 - q it is about q."""
_CONFIRMED = 2
"""Examples that must fit a common factor which is no whole number before it is believed."""


class Certifier:
    """Keeps what all certificates share: the common factor (`scale`) and the span of the gradient."""

    def __init__(self, residual: Residual, signals: BackwardSignals, *, kappa: float | None) -> None:
        self.residual = residual
        self.signals = signals
        self.expected = kappa
        self.scale: Scale | None = None
        self.span: SignalSpan | None = None
        """Computed for the first reading that needs it: those on an alphabet do not."""

    def certify(self, readings: Readings, known: Found, active: Tensor, *, bent: bool = False) -> Found:
        """Those for which some label's backward signal is what was received; `active` (N,) bool.

        bent: of those on an alphabet, also where a deeper ReLU near 0 changed the signal by a few percent.
        """
        if len(readings) == 0:
            return self._nothing()
        predicted = self.signals.at_one_row(readings.features, readings.row).to(readings.bias)  # (k, labels)
        telling = readings.exact | _undecided_loss(predicted)
        if not bool(telling.all()):
            keep = telling.nonzero().squeeze(1)
            readings, predicted = readings.select(keep), predicted[keep]
        if len(readings) == 0:
            return self._nothing()
        evident = readings.exact | (readings.support > 1)
        if self.scale is not None:
            new = self._matched(readings, predicted, evident, bent=bent)
            return self._unrefuted(new, known, active)
        voters = evident if bool(evident.any()) else torch.ones_like(evident)
        scale = find_scale(predicted[voters], readings.bias[voters], expected=self.expected)
        if scale is None:
            return self._nothing()
        self.scale = scale
        self.residual.factor *= scale.kappa
        new = self._matched(readings.rescaled(scale.kappa), predicted, evident)
        new = self._unrefuted(new, known, active)
        if scale.num_examples is None and len(new) < _CONFIRMED:
            # Ratios that merely lie near each other: alike mixtures, not single examples.
            self.scale = None
            self.residual.factor /= scale.kappa
            return self._nothing()
        return new

    def _nothing(self) -> Found:
        return Found.none(self.residual.weight)

    def _matched(
        self, readings: Readings, predicted: Tensor, evident: Tensor, *, bent: bool = False
    ) -> Found:
        """Those of the readings whose bias gradient is that of some label (or of copies)."""
        rounding = (5 * (ROUNDING + readings.noise / predicted.abs().amax(1))).nan_to_num(nan=0.0)
        tight = rounding.clamp(max=_TIGHT)
        weak = not too_many_by_chance(predicted, readings.bias, tight, ~evident)
        match = match_labels(
            predicted,
            readings.bias,
            torch.where(
                readings.exact,
                rounding.clamp(_LOOSEST if bent else _LOOSE, _LOOSEST),
                torch.where(evident, _LOOSE, tight if weak else -1.0),
            ),
            # Off the alphabet, two that are nearly alike cannot be told from two copies of their mean.
            copies=torch.where(readings.exact, tight, 0.0),
            clear=_BENT_CLEAR if bent else AMBIGUOUS,
        )
        chosen = [j for j, labels in enumerate(match.labels) for _ in labels]
        if not chosen:
            return self._nothing()
        device = readings.row.device
        which = torch.tensor(chosen, device=device)
        labels = torch.tensor([y for several in match.labels for y in several], device=device)
        # Of copies, what was observed is a sum: nothing to learn about the signal of one.
        single = torch.tensor([len(match.labels[j]) == 1 for j in chosen], device=device)
        return self._found(readings.select(which), labels, match.mismatch[which], single)

    def _found(self, readings: Readings, labels: Tensor, mismatch: Tensor, single: Tensor) -> Found:
        signals = self.signals.at_all_rows(readings.features, labels)
        as_observed(signals, readings, labels, which=readings.exact & single, by=self.signals)
        return Found(
            features=readings.features,
            labels=labels,
            signals=signals,
            error=torch.where(readings.exact, torch.zeros_like(readings.error), readings.error),
            exact=readings.exact,
            mismatch=mismatch,
            row=readings.row,
            support=readings.support,
            round=torch.zeros_like(labels),
        )

    def _unrefuted(self, new: Found, known: Found, active: Tensor) -> Found:
        """Those on an alphabet, and of the others those whose signal the gradient holds at every neuron."""
        doubtful = (~new.exact).nonzero().squeeze(1)
        if len(doubtful) == 0:
            return new
        if self.span is None:
            self.span = SignalSpan(self.residual, active.nonzero().squeeze(1))
        refuted = torch.zeros_like(new.exact)
        refuted[doubtful] = self.span.refutes(new.signals[doubtful], new.features[doubtful])
        if not bool(refuted.any()) or self._misleads(self.span, new, known):
            return new
        return new.select((~refuted).nonzero().squeeze(1))

    def _misleads(self, span: SignalSpan, *parts: Found) -> bool:
        """Whether it refutes examples that the alphabet proves.

        With more examples than the layer reads different values, the gradient shows only part of their span.
        """
        proven = [part.select(part.exact.nonzero().squeeze(1)) for part in parts]
        refuted = torch.cat([span.refutes(p.signals, p.features) for p in proven])
        return len(refuted) > 0 and float(refuted.double().mean()) > _REFUTED


def _undecided_loss(predicted: Tensor) -> Tensor:
    """(k,) bool: signals (k, labels) of a prediction that is not certain of any label.

    Where p is 0 or 1, examples that fire the same neurons have the same signal: in every row, several look
    like copies of their mean, or like u + v - w alone, and only an alphabet can tell. Otherwise p differs.
    """
    size = predicted.abs()
    return size.amin(1) > _UNDECIDED * size.amax(1)
