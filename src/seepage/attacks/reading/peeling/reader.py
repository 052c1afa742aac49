"""From rows of the residual to readings: what each may show, put on the alphabet, every example once.

x = G_w[i] / G_b[i] (eq. 5 of Boenisch et al. 2021) for rows whose rounding lets it be read. Nothing is
believed here; `certifier` does that.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.bent import absorb_observed
from seepage.attacks.reading.peeling.codes import Code, Snapped
from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.peeling.residual import Found, Residual, Rows, row_norms
from seepage.attacks.reading.peeling.tolerances import BLOCK_BYTES, READABLE, SURE
from seepage.attacks.reading.products import best_proven, joint_evidence, product_evidence
from seepage.attacks.reading.rows import SKETCH, agreeing_rows, representatives
from seepage.attacks.reading.scale import TOGETHER
from seepage.models.precision import EXACT
from seepage.models.signals import BackwardSignals


class RowReader:
    """Reads any rows of one residual."""

    def __init__(self, residual: Residual, code: Code, signals: BackwardSignals) -> None:
        self.residual = residual
        self.code = code
        self.signals = signals
        self.accidents = 0.0
        """Mixtures of nearly alike examples expected to look exact by accident, of all that were read."""
        columns = residual.weight.shape[1]
        generator = torch.Generator().manual_seed(residual.seed)
        self.projection = torch.randn(columns, SKETCH, generator=generator).to(residual.weight)

    def read(self, rows: Rows, found: Found, *, mixtures: bool = False) -> Readings:
        """Rows that can show a single example, one for each example.

        mixtures: keep what is plainly beside an alphabet that the others are written in.
        """
        error = reading_error(rows)
        ok = rows.scan.active & rows.scan.readable & (rows.bias.abs() > READABLE * rows.noise)
        ok &= (error <= self.code.worst_reading) & self._in_bounds(rows, error)
        ok = ok.nonzero().squeeze(1)
        if len(ok) == 0:
            return Readings.none(self.residual.weight)
        groups, evidence = agreeing_rows(rows.scan.sketch[ok]), self._evidence(rows.index[ok], found)
        best, support = representatives(groups, best_proven(1 / error[ok], evidence))
        kept = ok[best.to(ok.device)]
        single = torch.zeros_like(rows.bias[kept]) if evidence is None else joint_evidence(groups, evidence)
        support = support.to(kept.device)
        parts: list[Readings] = []
        seen = TOGETHER if bool(found.exact.any()) else 0
        for which, snapped, moved in self._snapped(rows.index[kept], rows.bias[kept], error[kept], found):
            i = kept[which]
            part = Readings(
                row=rows.index[i],
                support=support[which],
                bias=rows.bias[i],
                noise=rows.noise[i],
                error=error[i],
                features=snapped.features,
                exact=snapped.exact,
                undecided=snapped.undecided,
                spoiled=snapped.spoiled,
                moved=moved,
                evidence=single[which],
            ).select(snapped.possible.nonzero().squeeze(1))
            seen += int(part.exact.sum())
            # A row of features is as long as one of the gradient: mixtures are dropped as soon as known.
            parts.append(part)
            if seen >= TOGETHER and not mixtures:
                parts = [p.on_alphabet() for p in parts]
        return Readings.joined(parts)

    def _evidence(self, rows: Tensor, found: Found) -> Tensor | None:
        """(r,) as `product_evidence` has it, of the gradient as it was received: a residual is no product."""
        computed = self.residual.computed
        if computed is None or len(found):
            return None
        return product_evidence(self.residual.weight, self.residual.bias, rows, computed)

    def _in_bounds(self, rows: Rows, error: Tensor) -> Tensor:
        bounds = self.code.bounds()
        if bounds is None:
            return torch.ones_like(rows.scan.active)
        low, high = (b.to(rows.bias) for b in bounds)
        slack = (high - low) * (EXACT + SURE * error).unsqueeze(1)
        return ((rows.scan.low >= low - slack) & (rows.scan.high <= high + slack)).all(1)

    def _snapped(
        self, rows: Tensor, bias: Tensor, error: Tensor, found: Found
    ) -> Iterator[tuple[Tensor, Snapped, Tensor]]:
        """Positions in `rows`, what is read there on the alphabet, and how far that is; a few at a time."""
        columns = self.residual.weight.shape[1] * self.residual.weight.element_size()
        for which in torch.arange(len(rows), device=rows.device).split(max(1, BLOCK_BYTES // columns)):
            read = self.residual.weights(rows[which], found).div_(bias[which].unsqueeze(1))
            size, bound = row_norms(read), self.residual.value_bound(rows[which], bias[which], read)
            snapped = self.code.snap(read, bound, error[which] * size / read.shape[1] ** 0.5)
            self.accidents += float(snapped.accident.sum())
            yield which, snapped, row_norms(snapped.features - read) / size

    def distinct(self, readings: Readings, found: Found) -> Readings:
        """Without those found before, and (after the alphabet merged them) each only once."""
        if found.exact.any() or int(readings.exact.sum()) >= TOGETHER:
            readings = readings.on_alphabet()
        if len(readings) == 0:
            return readings
        order = (readings.exact.double() * 2 - readings.error.double()).argsort(descending=True)
        readings = readings.select(order)
        # A short sketch: differences of whole rows would drown in the rounding of the matrix product.
        new = readings.features @ self.projection
        known = torch.cat([found.features @ self.projection, new])
        size = known.norm(dim=1).clamp_min(torch.finfo(known.dtype).tiny)
        distance = torch.cdist(new, known, compute_mode="donot_use_mm_for_euclid_dist")
        same = distance <= EXACT * size.unsqueeze(0)  # (k, found + k)
        absorb_observed(found, readings, same[:, : len(found)], self.signals)
        earlier = torch.ones_like(same).tril(len(found) - 1)
        return readings.select((~(same & earlier).any(1)).nonzero().squeeze(1))

    def too_noisy(self, rows: Rows) -> Tensor:
        """(r,) bool: active rows whose rounding hides what they hold."""
        return rows.scan.active & (reading_error(rows) > self.code.worst_reading)


def reading_error(rows: Rows) -> Tensor:
    """(r,) relative, expected, of G_w[i] / G_b[i]."""
    return rows.weight_noise / rows.norm + rows.noise / rows.bias.abs()
