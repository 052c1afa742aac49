"""Peeling a batch out of a linear layer's gradient, as decoders of fountain codes do.

A row that a single example is left in shows it: x = G_w[i] / G_b[i]. Its label follows from the bias
gradient, its whole contribution to the layer from the model; taking that away leaves other rows with a single
example.
Nothing here sees the truth: an example counts as found when what it must have sent is what was received.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.parts.peeling.bent import SUSPECT, absorb_observed, straightened
from seepage.attacks.parts.peeling.codes import Code, Snapped
from seepage.attacks.parts.peeling.match import AMBIGUOUS, Scale, find_scale, match_labels
from seepage.attacks.parts.peeling.readings import Readings, too_many_by_chance
from seepage.attacks.parts.peeling.refine import refine
from seepage.attacks.parts.peeling.residual import ROUNDING, Found, Residual, Rows
from seepage.attacks.parts.peeling.signals import BackwardSignals
from seepage.attacks.parts.peeling.span import SignalSpan
from seepage.attacks.parts.peeling.sparse import unmix
from seepage.attacks.parts.rows import agreeing_rows, representatives

READABLE = 20.0
"""A bias residual below this many times its rounding error is taken for nothing."""
_WORST_READING = 1e-2
"""Relative error beyond which a reading is not looked at."""
_SAME = 1e-3
"""Readings nearer than this (relative) to a found example are that example again."""
_CHUNK_BYTES = 1 << 21
_LOOSEST, _LOOSE, _TIGHT = 3e-2, 1e-3, 5e-6
"""Mismatch of the bias gradient allowed to readings on an alphabet (if the row is that noisy), to readings
with other evidence, and to those with none."""
_SKETCH = 16
_ATTEMPTS = 3
_MOST_ROWS = 2000
_FEWEST_ROWS = 4
_UNMIXING = 1e-4
"""Relative error given to examples that were unmixed; least squares corrects them afterwards."""
_BENT_CLEAR = 2.0
"""Clearer by this factor than any other must the label of a bent signal be. The example itself is proven by
the alphabet, and where it is alone its signal is taken as observed: a wrong label does little harm."""
_CONFIRMED = 2
"""Examples that must fit a common factor which is no whole number before it is believed."""
_JUMP = 1e-3


class Peeling:
    """The loop. `found` and `residual` are its result."""

    def __init__(
        self,
        residual: Residual,
        signals: BackwardSignals,
        code: Code,
        *,
        kappa: float | None,
        max_rounds: int = 200,
    ) -> None:
        self.residual = residual
        self.signals = signals
        self.code = code
        self.expected = kappa
        self.scale: Scale | None = None
        self.max_rounds = max_rounds
        rows, columns = residual.weight.shape
        generator = torch.Generator().manual_seed(residual.seed)
        self.projection = torch.randn(columns, _SKETCH, generator=generator).to(residual.weight)
        self.found = Found.none(rows, columns, residual.weight)
        self.active = torch.zeros(rows, dtype=torch.bool, device=residual.weight.device)
        self.first = self._none()
        """What plain extraction reads, certified or not."""
        self.noisy = 0
        """Active rows whose rounding hides what they hold."""
        self.rounds = 0
        self.attempts = 0
        self.tangled = False
        """Whether examples without a neuron of their own were looked for in vain."""
        self.unmixed = False
        """Whether some were found where no neuron was alone."""
        self.span: SignalSpan | None = None
        """Computed for the first reading that needs it: those on an alphabet do not."""

    def run(self) -> None:
        index = self._all_rows()
        while self.rounds < self.max_rounds and len(index):
            rows = self.residual.scan(index, self.found)
            if self.rounds == 0:
                self.active = rows.scan.active
            new = self._certify(self._read(rows))
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

    def _stalled(self) -> Found:
        """Where no changed row shows anything new: look at all rows again, less strictly; then unmix."""
        rows = self.remaining()
        if rows is None:
            return self.found.select(self.found.row[:0])
        if self.scale is not None and bool(self.found.exact.any()):
            new = self._certify(self._read(rows), bent=True)
            if len(new):
                return new
        return self._unmix(rows)

    def _unmix(self, rows: Rows) -> Found:
        """Where no row shows a single example: all that are left at once, if they are few."""
        nothing = self.found.select(self.found.row[:0])
        if self.attempts >= _ATTEMPTS:
            return nothing
        self.attempts += 1
        index = rows.index[rows.norm > READABLE * rows.weight_noise]
        index = index[:_MOST_ROWS]
        if len(index) < _FEWEST_ROWS:
            return nothing
        bias = self.residual.biases(index, self.found)
        apart = unmix(self.residual.weights(index, self.found), bias, seed=self.residual.seed)
        self.tangled = apart is None
        if apart is None:
            return nothing
        strongest = apart.signals.abs().argmax(1)
        snapped = self.code.snap(apart.features)
        noise = rows.noise[torch.isin(rows.index, index)][strongest]
        observed = apart.signals.gather(1, strongest.unsqueeze(1)).squeeze(1)
        readings = Readings(
            row=index[strongest],
            support=torch.full_like(strongest, 2),  # many rows agree; two count as evidence
            bias=observed,
            noise=noise,
            error=torch.full_like(observed, _UNMIXING),
            features=snapped.features,
            exact=snapped.exact,
            undecided=snapped.undecided,
        )
        new = self._certify(self._distinct(readings.select(snapped.possible.nonzero().squeeze(1))))
        self.unmixed |= len(new) > 0
        new.round += 1  # not plain extraction, even if nothing came before
        return new

    def read_only(self) -> None:
        """Plain extraction, without a certificate: for updates that the model's signals do not explain."""
        rows = self.residual.scan(self._all_rows(), self.found)
        self.active = rows.scan.active
        self._read(rows)

    def _all_rows(self) -> Tensor:
        return torch.arange(len(self.residual.bias), device=self.residual.bias.device)

    def remaining(self) -> Rows | None:
        """The residual of every row that was active; None for a dead layer."""
        index = self.active.nonzero().squeeze(1)
        return self.residual.scan(index, self.found) if len(index) else None

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
        jumped = (after - before).abs().amax(1) > _JUMP * before.abs().amax(1)
        found.signals[moved] = torch.where(jumped.unsqueeze(1), before, after)
        self.found = found

    def _read(self, rows: Rows) -> Readings:
        """Rows that can show a single example, one for each example."""
        error = rows.weight_noise / rows.norm + rows.noise / rows.bias.abs()
        if self.rounds == 0:
            self.noisy = int((rows.scan.active & (error > _WORST_READING)).sum())
        ok = rows.scan.active & rows.scan.readable & (rows.bias.abs() > READABLE * rows.noise)
        ok &= (error <= _WORST_READING) & self._in_bounds(rows, error)
        ok = ok.nonzero().squeeze(1)
        if len(ok) == 0:
            return self._none()
        best, support = representatives(agreeing_rows(rows.scan.sketch[ok]), 1 / error[ok])
        kept = ok[best.to(ok.device)]
        snapped = self._snap(rows.index[kept], rows.bias[kept])
        readings = Readings(
            row=rows.index[kept],
            support=support.to(kept.device),
            bias=rows.bias[kept],
            noise=rows.noise[kept],
            error=error[kept],
            features=snapped.features,
            exact=snapped.exact,
            undecided=snapped.undecided,
        ).select(snapped.possible.nonzero().squeeze(1))
        if self.rounds == 0:
            self.first = readings
        return self._distinct(readings)

    def _none(self) -> Readings:
        found = self.found.select(self.found.row[:0])
        return Readings(
            found.row,
            found.support,
            found.error,
            found.error,
            found.error,
            found.features,
            found.exact,
            found.exact,
        )

    def _in_bounds(self, rows: Rows, error: Tensor) -> Tensor:
        bounds = self.code.bounds()
        if bounds is None:
            return torch.ones_like(rows.scan.active)
        low, high = (b.to(rows.bias) for b in bounds)
        slack = (high - low) * (1e-3 + 5 * error).unsqueeze(1)
        return ((rows.scan.low >= low - slack) & (rows.scan.high <= high + slack)).all(1)

    def _snap(self, rows: Tensor, bias: Tensor) -> Snapped:
        """x = G_w[i] / G_b[i] (eq. 5 of Boenisch et al.), put on the alphabet; a few rows at a time."""
        columns = self.residual.weight.shape[1] * self.residual.weight.element_size()
        size = max(1, _CHUNK_BYTES // columns)
        parts = [
            self.code.snap(self.residual.weights(i, self.found).div_(b.unsqueeze(1)))
            for i, b in zip(rows.split(size), bias.split(size), strict=True)
        ]
        return Snapped(**{k: torch.cat([getattr(p, k) for p in parts]) for k in vars(parts[0])})

    def _distinct(self, readings: Readings) -> Readings:
        """Without those found before, and (after the alphabet merged them) each only once."""
        if self.found.exact.any() or int(readings.exact.sum()) >= 2:
            # The data are written in an alphabet: what is plainly beside it is a mixture.
            readings = readings.select((readings.exact | readings.undecided).nonzero().squeeze(1))
        if len(readings) == 0:
            return readings
        order = (readings.exact.double() * 2 - readings.error.double()).argsort(descending=True)
        readings = readings.select(order)
        # A short sketch: differences of whole rows would drown in the rounding of the matrix product.
        new = readings.features @ self.projection
        known = torch.cat([self.found.features @ self.projection, new])
        size = known.norm(dim=1).clamp_min(1e-12)
        distance = torch.cdist(new, known, compute_mode="donot_use_mm_for_euclid_dist")
        same = distance <= _SAME * size.unsqueeze(0)  # (k, found + k)
        absorb_observed(self.found, readings, same[:, : len(self.found)], self.signals)
        earlier = torch.ones_like(same).tril(len(self.found) - 1)
        return readings.select((~(same & earlier).any(1)).nonzero().squeeze(1))

    def _certify(self, readings: Readings, *, bent: bool = False) -> Found:
        """Those for which some label's backward signal is what was received.

        bent: of those on an alphabet, also where a deeper ReLU near 0 changed the signal by a few percent.
        """
        nothing = self.found.select(self.found.row[:0])
        if len(readings) == 0:
            return nothing
        predicted = self.signals.at_one_row(readings.features, readings.row)  # (k, labels)
        evident = readings.exact | (readings.support > 1)
        if self.scale is None:
            voters = evident if bool(evident.any()) else torch.ones_like(evident)
            scale = find_scale(predicted[voters], readings.bias[voters], expected=self.expected)
            if scale is None:
                return nothing
            self.scale = scale
            self.residual.factor *= scale.kappa
            new = self._matched(readings.rescaled(scale.kappa), predicted, evident)
            if scale.num_examples is None and len(new) < _CONFIRMED:
                # Ratios that merely lie near each other: alike mixtures, not single examples.
                self.scale = None
                self.residual.factor /= scale.kappa
                return nothing
            return new
        return self._matched(readings, predicted, evident, bent=bent)

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
            copies=torch.where(evident, tight, 0.0),
            clear=_BENT_CLEAR if bent else AMBIGUOUS,
        )
        chosen = [j for j, labels in enumerate(match.labels) for _ in labels]
        labels = [y for several in match.labels for y in several]
        if not chosen:
            return self.found.select(self.found.row[:0])
        return self._found(
            readings.select(torch.tensor(chosen, device=readings.row.device)),
            torch.tensor(labels, device=readings.row.device),
            match.mismatch[torch.tensor(chosen, device=readings.row.device)],
        )

    def _found(self, readings: Readings, labels: Tensor, mismatch: Tensor) -> Found:
        signals = self.signals.at_all_rows(readings.features, labels)
        for j in (readings.exact & (mismatch > SUSPECT)).nonzero().squeeze(1).tolist():
            signals[j] = straightened(
                readings.features[j],
                labels[j],
                signals[j],
                row=int(readings.row[j]),
                observed=readings.bias[j],
                by=self.signals,
                seed=self.residual.seed,
            )
        return self._unrefuted(readings, labels, mismatch, signals)

    def _unrefuted(self, readings: Readings, labels: Tensor, mismatch: Tensor, signals: Tensor) -> Found:
        """Those on an alphabet, and of the others those whose signal the gradient holds at every neuron."""
        doubtful = (~readings.exact).nonzero().squeeze(1)
        kept = torch.ones_like(readings.exact)
        if len(doubtful):
            if self.span is None:
                self.span = SignalSpan(self.residual, self.active.nonzero().squeeze(1))
            kept[doubtful] = ~self.span.refutes(signals[doubtful], readings.features[doubtful])
        found = Found(
            features=readings.features,
            labels=labels,
            signals=signals,
            error=torch.where(readings.exact, torch.zeros_like(readings.error), readings.error),
            exact=readings.exact,
            mismatch=mismatch,
            row=readings.row,
            support=readings.support,
            round=torch.full_like(labels, self.rounds),
        )
        return found if bool(kept.all()) else found.select(kept.nonzero().squeeze(1))
