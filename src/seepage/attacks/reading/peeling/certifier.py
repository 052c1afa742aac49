"""Believing a reading: an example counts as found when what it must have sent is what was received.

The label follows from the bias gradient at the row, the common factor of the update from all readings
together. Nothing here sees the truth.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.bent import as_observed
from seepage.attacks.reading.peeling.labelling import Labelled, Labeller
from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.peeling.span import SignalSpan
from seepage.attacks.reading.peeling.tolerances import FEW
from seepage.attacks.reading.scale import TOGETHER, Scale
from seepage.models.signals import BackwardSignals


class Certifier:
    """Keeps what all certificates share: the common factor (`scale`) and the span of the gradient."""

    def __init__(self, residual: Residual, signals: BackwardSignals, *, kappa: float | None) -> None:
        self.residual = residual
        self.signals = signals
        self.labeller = Labeller(signals, kappa=kappa)
        self.span: SignalSpan | None = None
        """Computed for the first reading that needs it: those on an alphabet do not."""

    @property
    def scale(self) -> Scale | None:
        return self.labeller.scale

    def certify(
        self, readings: Readings, known: Found, active: Tensor, *, bent: bool = False, accidents: float = 0.0
    ) -> Found:
        """Those for which some label's backward signal is what was received; `active` (N,) bool.

        bent: of those on an alphabet, also where a deeper ReLU near 0 changed the signal by a few percent.
        accidents: as `Labeller.label` has it.
        """
        first = self.scale is None
        labelled = self.labeller.label(readings, bent=bent, accidents=accidents)
        if labelled is None or self.scale is None:
            return self._nothing()
        if not first:
            return self._unrefuted(self._matched(labelled), known, active)
        self.residual.factor *= self.scale.kappa
        new = self._unrefuted(self._matched(labelled), known, active)
        if self.scale.num_examples is None and len(new) < TOGETHER:
            # Ratios that merely lie near each other: alike mixtures, not single examples.
            self.residual.factor /= self.scale.kappa
            self.labeller.scale = self.span = None
            return self._nothing()
        return new

    def spanned(self, active: Tensor) -> SignalSpan:
        """The span of the rows that are `active` (N,)."""
        if self.span is None:
            self.span = SignalSpan(self.residual, active.nonzero().squeeze(1))
        return self.span

    def _nothing(self) -> Found:
        return Found.none(self.residual.weight)

    def _matched(self, labelled: Labelled) -> Found:
        """Those of the readings whose bias gradient is that of some label (or of copies)."""
        readings, match = labelled.readings, labelled.match
        chosen = [j for j, labels in enumerate(match.labels) for _ in labels]
        if not chosen:
            return self._nothing()
        device = readings.row.device
        which = torch.tensor(chosen, device=device)
        labels = torch.tensor([y for several in match.labels for y in several], device=device)
        # Of copies, what was observed is a sum: nothing to learn about the signal of one.
        single = torch.tensor([len(match.labels[j]) == 1 for j in chosen], device=device)
        times = [several.count(y) for several in match.labels for y in several]
        doubt = self.signals.rounding * (match.largest / readings.bias.abs())[which]
        found = self._found(readings.select(which), labels, match.mismatch[which], doubt, single)
        count = torch.tensor(times, device=device)
        # Copies with several labels are no product, and no near copies: those would leave the alphabet.
        evidence = torch.where(single | (count > 1), found.evidence, 0.0)
        return replace(found, times=count, evidence=evidence)

    def _found(
        self, readings: Readings, labels: Tensor, mismatch: Tensor, doubt: Tensor, single: Tensor
    ) -> Found:
        signals = self.signals.at_all_rows(readings.features, labels)
        as_observed(signals, readings, labels, which=readings.exact & single, by=self.signals)
        return Found(
            features=readings.features,
            labels=labels,
            signals=signals,
            error=torch.where(readings.exact, torch.zeros_like(readings.error), readings.error),
            doubt=doubt,
            exact=readings.exact,
            mismatch=mismatch,
            row=readings.row,
            support=readings.support,
            round=torch.zeros_like(labels),
            evidence=readings.evidence,
            times=torch.ones_like(labels),
            shared=readings.moved.isinf(),
        )

    def _unrefuted(self, new: Found, known: Found, active: Tensor) -> Found:
        """Those on an alphabet, and of the others those whose signal the gradient holds at every neuron."""
        doubtful = (~new.exact).nonzero().squeeze(1)
        if len(doubtful) == 0:
            return new
        span = self.spanned(active)
        refuted = torch.zeros_like(new.exact)
        refuted[doubtful] = span.refutes(new.signals[doubtful], new.features[doubtful])
        if not bool(refuted.any()) or self._misleads(span, new, known):
            return new
        return new.select((~refuted).nonzero().squeeze(1))

    def _misleads(self, span: SignalSpan, *parts: Found) -> bool:
        """Whether it refutes more than a few of the examples that the alphabet proves.

        With more examples than the layer reads different values, the gradient shows only part of their span.
        """
        proven = [part.select(part.exact.nonzero().squeeze(1)) for part in parts]
        refuted = torch.cat([span.refutes(p.signals, p.features) for p in proven])
        return len(refuted) > 0 and float(refuted.double().mean()) > FEW
