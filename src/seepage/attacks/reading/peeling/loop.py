"""Peeling a batch out of a linear layer's gradient, as decoders of fountain codes do.

A row that a single example is left in shows it: x = G_w[i] / G_b[i]. Its label follows from the bias
gradient, its whole contribution to the layer from the model; taking that away leaves other rows with a single
example.
Nothing here sees the truth: an example counts as found when what it must have sent is what was received.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.certifier import Certifier
from seepage.attacks.reading.peeling.codes import Code
from seepage.attacks.reading.peeling.of_numbers import NumbersCertifier
from seepage.attacks.reading.peeling.reader import RowReader
from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.peeling.refine import refine
from seepage.attacks.reading.peeling.residual import Found, Residual, Rows, row_norms
from seepage.attacks.reading.peeling.settle import settle
from seepage.attacks.reading.peeling.tolerances import (
    BEYOND,
    MOST_ROWS,
    READABLE,
    SPARE,
    SURE,
)
from seepage.attacks.reading.scale import TOGETHER, Scale
from seepage.attacks.reading.unmixing.assemble import Unmixed
from seepage.attacks.reading.unmixing.by_next_layer import NextLayerUnmixer
from seepage.attacks.reading.unmixing.by_signals import SignalUnmixer
from seepage.attacks.reading.unmixing.unmix import Unmixer
from seepage.core.progress import Clock
from seepage.models.precision import EXACT
from seepage.models.signals import BackwardSignals
from seepage.protocol.losses import OF_NUMBERS


class Peeling:
    """The loop. `found` and `residual` are its result."""

    def __init__(
        self,
        residual: Residual,
        signals: BackwardSignals,
        code: Code,
        *,
        unmixer: Unmixer | None,
        by_next: NextLayerUnmixer | None = None,
        by_signals: SignalUnmixer | None = None,
        kappa: float | None,
        budget: float | None = None,
        max_rounds: int = 200,
    ) -> None:
        """unmixer: for a layer behind which a ReLU parts examples; by_next: where a linear layer follows;
        by_signals: where what follows is smooth; budget: seconds for all searches together."""
        self.residual = residual
        self.signals = signals
        self.code = code
        self.unmixer = unmixer
        self.by_next = by_next
        self.by_signals = by_signals
        self.budget = budget
        self._clock: Clock | None = None
        self.expected = kappa
        self.max_rounds = max_rounds
        self.reader = RowReader(residual, code, signals)
        certifier = NumbersCertifier if signals.loss in OF_NUMBERS else Certifier
        self.certifier = certifier(residual, signals, kappa=kappa)
        self.found = Found.none(residual.weight)
        self.active = torch.zeros(len(residual.bias), dtype=torch.bool, device=residual.weight.device)
        self.first = Readings.none(residual.weight)
        """What plain extraction reads, certified or not."""
        self.noisy = 0
        """Active rows whose rounding hides what they hold."""
        self.rounds = 0
        self.tangled = False
        """Whether examples without a neuron of their own were looked for in vain."""
        self.unexplained = False
        """Whether parts were told apart of which no label explains any."""
        self.unmixed = 0
        """Those found where no neuron was alone."""
        self.by_next_layer = 0
        """Those of them that the next layer's gradient told apart."""
        self.by_own_signals = 0
        """Those of them that the signals which the network computes told apart."""
        self.rough: Tensor | None = None
        """(k, m) pictures of some that were told apart, but not from those that were not."""

    @property
    def scale(self) -> Scale | None:
        return self.certifier.scale

    def run(self) -> None:
        index = self._all_rows()
        while self.rounds < self.max_rounds and len(index):
            rows = self.residual.scan(index, self.found)
            new = self._certify(self._begin(rows) if self.rounds == 0 else self._read(rows))
            if len(new) == 0:
                new = self._stalled()
            if len(new) == 0:
                break
            self.found = self.found.plus(new)
            self._sharpen_scale()
            self.rounds += 1
            index = (new.signals != 0).any(0).nonzero().squeeze(1)
            if not bool(self.found.exact.all()):
                self._refine()
                index = (self.found.signals != 0).any(0).nonzero().squeeze(1)
        self._settle()

    def read_only(self) -> None:
        """Plain extraction, without a certificate: for updates that the model's signals do not explain."""
        self._begin(self.residual.scan(self._all_rows(), self.found), mixtures=True)

    def remaining(self) -> Rows | None:
        """The residual of every row that was active; None for a dead layer."""
        index = self.active.nonzero().squeeze(1)
        return self.residual.scan(index, self.found) if len(index) else None

    def _begin(self, rows: Rows, *, mixtures: bool = False) -> Readings:
        self.active = rows.scan.active
        self.noisy = int(self.reader.too_noisy(rows).sum())
        self.first = self.reader.read(rows, self.found, mixtures=mixtures)
        return self.reader.distinct(self.first, self.found)

    def _read(self, rows: Rows) -> Readings:
        return self.reader.distinct(self.reader.read(rows, self.found), self.found)

    def _certify(self, readings: Readings, *, bent: bool = False) -> Found:
        new = self.certifier.certify(
            readings, self.found, self.active, bent=bent, accidents=self.reader.accidents
        )
        new.round += self.rounds
        return new

    def _stalled(self) -> Found:
        """Where no changed row shows anything new: look at all rows again, less strictly; then unmix."""
        rows = self.remaining()
        if rows is None:
            return self.found.select(self.found.row[:0])
        # Without kinks no signal is bent, and two near copies may look like a bent one of another label.
        if self.by_signals is None and self.scale is not None and bool(self.found.exact.any()):
            new = self._certify(self._read(rows), bent=True)
            if len(new):
                return new
        return self._unmix(rows)

    def _unmix(self, rows: Rows) -> Found:
        """Where no row shows a single example: the next layer, signals or sparsity tell."""
        index = rows.index[rows.norm > READABLE * rows.weight_noise]
        index = index[:MOST_ROWS]
        if len(index) < SPARE:
            return self.found.select(self.found.row[:0])
        self._clock = self._clock or Clock(seconds=self.budget)
        apart, self.rough = None, None
        whole = self.code.bounds() is None  # on an alphabet, what is taken away leaves no error
        if self.by_next is not None:
            apart = self.by_next.unmix(self.residual, index, self.found, self._clock, whole=whole)
        fits = apart is not None
        new = self._told_apart(apart, rows, index)
        self.by_next_layer += len(new)
        if len(new) == 0 and self.by_signals is not None:
            apart = self.by_signals.unmix(self.residual, index, self.found, self._clock, whole=whole)
            new = self._told_apart(apart, rows, index)
            self.by_own_signals += len(new)
        if len(new) == 0 and self.unmixer is not None:
            apart = self.unmixer.unmix(self.residual, index, self.found, self._clock)
            new = self._told_apart(apart, rows, index)
            self.rough = self.unmixer.pictures() if apart is None else None
        self.tangled = len(new) == 0
        self.unexplained = self.tangled and (fits or apart is not None)
        self.unmixed += len(new)
        new.round += 1  # not plain extraction, even if nothing came before
        return new

    def _told_apart(self, apart: Unmixed | None, rows: Rows, index: Tensor) -> Found:
        """Those of unmixed examples that some label explains, taken from the rows `index` (r,)."""
        if apart is None:
            return self.found.select(self.found.row[:0])
        strongest = apart.signals.abs().argmax(1)
        observed = apart.signals.gather(1, strongest.unsqueeze(1)).squeeze(1).double()
        # What moves the example moves its signal as much.
        noise = torch.hypot(rows.noise[torch.isin(rows.index, index)][strongest], observed * apart.error)
        off = apart.error * row_norms(apart.features) / apart.features.shape[1] ** 0.5
        snapped = self.code.snap(apart.features, SURE * off, off)
        readings = Readings(
            row=index[strongest],
            support=torch.full_like(strongest, TOGETHER),  # many rows agree
            bias=observed,
            noise=noise,
            error=apart.error,
            features=snapped.features,
            exact=snapped.exact,
            undecided=snapped.undecided,
            spoiled=snapped.spoiled,
            moved=torch.full_like(observed, torch.inf),  # not alone at its row
            evidence=torch.zeros_like(observed),
        )
        possible = readings.select(snapped.possible.nonzero().squeeze(1))
        return self._certify(self.reader.distinct(possible, self.found))

    def _all_rows(self) -> Tensor:
        return torch.arange(len(self.residual.bias), device=self.residual.bias.device)

    def _sharpen_scale(self) -> None:
        """A kappa that is no whole number is known only as well as the readings: take all of them."""
        scale = self.scale
        if scale is None or scale.num_examples is not None or self.rounds > 0 or self.unmixed:
            return  # unmixed examples are not alone at their rows
        plain = self.residual.bias[self.found.row].double() * self.residual.factor
        signal = self.found.signals.gather(1, self.found.row.unsqueeze(1)).squeeze(1).double()
        self.residual.factor *= float((signal / plain).median())

    def _refine(self) -> None:
        """Correct all examples that lie on no alphabet together, and what the model makes of them."""
        index = (self.found.signals != 0).any(0).nonzero().squeeze(1)
        rows = self.residual.scan(index, self.found)
        found = refine(self.residual, self.found, rows.norm, index)
        moved = (~found.exact).nonzero().squeeze(1)
        before = found.signals[moved]
        after = self.signals.at_all_rows(found.features[moved], found.labels[moved])
        # A jump means that a ReLU near 0 fell to the other side; what was certified is the signal before.
        jumped = (after - before).abs().amax(1) > EXACT * before.abs().amax(1)
        found.signals[moved] = torch.where(jumped.unsqueeze(1), before, after)
        self.found = found

    def _settle(self) -> None:
        """Rows that nothing but found examples is left in, which rounding put on another side of a ReLU."""
        rows = self.remaining()
        if rows is not None:
            noise = BEYOND * rows.weight_noise
            left = rows.norm > noise
            settle(self.residual, self.found, rows.index[left], noise[left], self.signals)
