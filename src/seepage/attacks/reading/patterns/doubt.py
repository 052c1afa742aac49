"""Whether a reading lies on the alphabet, and whether it may be there by accident.

A mixture of two examples that are nearly alike, x + w (y - x), differs from both in a few values. They lie
beside the grid for most w, and on it where w happens to make them whole. Rows hold the two with different w:
those that are seen beside the grid tell how often the accident must have happened.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.codes import Code, NumberCode, Snapped
from seepage.attacks.reading.peeling.tolerances import ACCIDENTS, BEYOND, BLOCK_BYTES, FEW, SPARE, SURE

_ALIKE = 0.5
"""Share of an example's values inside the range that a mixture has in common with it, from which on they are
nearly alike. Derived: of an image and an unrelated one, a few in a hundred are within a grey step; black is
no evidence, for most of a digit is black."""
_NEARLY = 1 / 32
"""Share of the range within which values of two examples are nearly the same. Derived: eight grey steps; of
unrelated images one value in ten is."""
_MOSTLY = 0.75
"""Share of the values of two examples, where either is not black, that must be nearly the same. Derived: of
two that are nearly alike all are; of the strokes of two ones that are drawn alike, half."""
_BY_CHANCE = 0.2**10
"""How probably a mixture may lie on the grid. Derived: what `on_grid` asks of ten values within a tenth of a
step; of fewer that are known better it is as much evidence."""


@dataclass(frozen=True)
class Judged:
    """Readings (k, m) as the alphabet has them."""

    features: Tensor
    exact: Tensor
    """(k,) bool: on the alphabet."""
    possible: Tensor
    """(k,) bool: in the value range, as far as it is known."""
    fine: Tensor
    """(k,) bool: read so finely that few mixtures would look exact."""


class Doubt:
    """Judges readings of one update, and remembers those beside the grid."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.beside: list[tuple[Tensor, Tensor]] = []
        """Readings (s, m) and how probably each would have been on the grid by accident (s,)."""

    def judge(self, read: Tensor, noise: Tensor, support: Tensor) -> Judged:
        """Readings (k, m) whose values have a root mean square error of `noise` (k,), each in its own way.

        support: (k,) rows that are proportional to each other, as those that hold two do not happen to be.
        """
        snapped = self.code.snap(read, noise, noise)
        few = self._few_values(read, snapped, noise, support >= SPARE)
        fine = self.remember(read, snapped.spoiled, noise, noise)
        features = torch.where(few.unsqueeze(1), self._rounded(read), snapped.features)
        return Judged(features, snapped.exact | few, snapped.possible, fine)

    def remember(self, read: Tensor, spoiled: Tensor, bound: Tensor, noise: Tensor) -> Tensor:
        """(k,) bool: fine ones of the readings (k, m). `bound`, `noise`: (k,) as `Code.snap` has them."""
        chance = self._chance(read, torch.maximum(BEYOND * bound, SURE * noise))
        fine = chance <= FEW
        beside = (spoiled & fine).nonzero().squeeze(1)
        if len(beside):
            self.beside.append((read[beside], chance[beside]))
        return fine

    def of(self, examples: Tensor) -> Tensor:
        """(k,) bool: examples (k, m) that are nearly alike to so many readings beside the grid that one of
        those would have been on it."""
        accidents = torch.zeros(len(examples), dtype=torch.float64, device=examples.device)
        if not self.beside or not isinstance(self.code, NumberCode):
            return accidents.bool()
        own, step = self._unit(examples), 1 / self.code.levels[0]
        inside = (own > step / 2) & (own < 1 - step / 2)
        each = max(1, BLOCK_BYTES // max(1, own.numel() * own.element_size()))
        for read, chance in self.beside:
            for some, by in zip(read.split(each), chance.split(each), strict=True):
                near = (self._unit(some).unsqueeze(1) - own).abs() <= step  # (s, k, values)
                alike = (near & inside).sum(2) >= _ALIKE * inside.sum(1)
                accidents += by @ alike.double()
        return accidents > ACCIDENTS

    def alike(self, examples: Tensor) -> Tensor:
        """(k,) bool: examples (k, m) that are nearly alike to another one: of x, y and their mean, any two
        explain what the right two do."""
        found = torch.zeros(len(examples), dtype=torch.bool, device=examples.device)
        if not isinstance(self.code, NumberCode) or self.code.spec.value_range is None:
            return found
        own = self._unit(examples)
        for j, one in enumerate(own):
            # Black, but for the rounding of mean and std, is no evidence: most of a digit is.
            shown = torch.maximum(own, one) > _NEARLY / 16
            near = ((own - one).abs() <= _NEARLY) & shown
            alike = near.sum(1) >= _MOSTLY * shown.sum(1)
            alike[j] = False
            found |= alike
        return found

    def _few_values(self, read: Tensor, snapped: Snapped, noise: Tensor, seen_often: Tensor) -> Tensor:
        """(k,) bool: those with too few different values for `on_grid`, but each within rounding of it.

        Pictures in black and white among them. They must be known better, or be seen in several rows.
        """
        no = torch.zeros_like(snapped.exact)
        open_ones = (snapped.undecided & snapped.possible & ~snapped.exact).nonzero().squeeze(1)
        if not isinstance(self.code, NumberCode) or self.code.spec.value_range is None or not len(open_ones):
            return no
        levels = self.code.levels[0]
        steps = self._unit(read[open_ones]) * levels
        nearest = steps.round().clamp_(0, levels)
        chance = self._chance(read[open_ones], BEYOND * noise[open_ones])
        on = ((steps - nearest).abs() <= chance.unsqueeze(1) / 2).all(1)
        seen = torch.zeros(len(steps), levels + 1, dtype=torch.bool, device=steps.device)
        different = seen.scatter_(1, nearest.long(), True)[:, 1:-1].sum(1)
        no[open_ones] = on & ((chance**different <= _BY_CHANCE) | (seen_often[open_ones] & (chance <= FEW)))
        return no

    def _rounded(self, read: Tensor) -> Tensor:
        code = self.code
        if not isinstance(code, NumberCode) or code.spec.value_range is None:
            return read
        low, high = code.spec.value_range
        raw = (self._unit(read) * code.levels[0]).round() / code.levels[0] * (high - low) + low
        inputs = code.spec.to_model(raw.reshape(-1, *code.spec.shape))
        if code.decode is None:
            return inputs.flatten(1)
        return read if code.encode is None else code.encode(inputs)

    def _unit(self, read: Tensor) -> Tensor:
        """(k, values) of the raw range."""
        assert isinstance(self.code, NumberCode) and self.code.spec.value_range is not None
        inputs = self.code.inputs(read)
        assert inputs is not None
        low, high = self.code.spec.value_range
        return (self.code.spec.to_raw(inputs).flatten(1) - low) / (high - low)

    def _chance(self, read: Tensor, off: Tensor) -> Tensor:
        """(k,) that a value which is known to within `off` (k,) lies on the grid by accident."""
        return (2 * self._steps(read) * off.double()).clamp(max=1.0)

    def _steps(self, like: Tensor) -> float:
        """Steps of the grid in a unit of what the layer reads; 0 where there is no grid but a table."""
        if not isinstance(self.code, NumberCode) or self.code.spec.value_range is None or not len(like):
            return 0.0
        return self.code.gain(like) * self.code.levels[0]
