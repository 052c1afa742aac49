"""Which label a reading has, if it is a single example at all, and the common factor of the update.

Nothing here sees the truth: a reading is labelled when the bias gradient that some label must have caused is
the one that was received, within the rounding of the update and no nearer than chance would have it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.parts.peeling.match import AMBIGUOUS, Match, Scale, find_scale, label_sets, match_labels
from seepage.attacks.parts.peeling.readings import Readings, improbable, too_many_by_chance
from seepage.attacks.parts.peeling.signals import BackwardSignals
from seepage.attacks.parts.precision import EXACT

_LOOSEST, _LOOSE, _TIGHT = 3e-2, 1e-3, 5e-6
"""Mismatch of the bias gradient allowed at most to readings on an alphabet (if the row is that noisy), to
readings with other evidence (likewise), and to those with none. Off an alphabet it is what rounding explains
and no more: a hundredth of another example in the row may move the bias gradient by as little as 1e-4."""
_BENT_CLEAR = 2.0
"""Clearer by this factor than any other must the label of a bent signal be. The example itself is proven by
the alphabet, and where it is alone its signal is taken as observed: a wrong label does little harm."""
_UNDECIDED = 1e-4
"""Share of the largest label's signal that the smallest must be: with p = 1 - q it is about q."""


@dataclass(frozen=True)
class Labelled:
    """Readings that were compared with what their labels predict."""

    readings: Readings
    """In units of a sum over examples."""
    match: Match


class Labeller:
    """Compares readings with what the model predicts; remembers the common factor (`scale`) once it is known.

    kappa: the factor that is expected, the batch size of a mean loss; None: unknown.
    """

    def __init__(self, signals: BackwardSignals, *, kappa: float | None) -> None:
        self.signals = signals
        self.expected = kappa
        self.scale: Scale | None = None

    def label(
        self, readings: Readings, *, bent: bool = False, certain: bool = True, accidents: float = 0.0
    ) -> Labelled | None:
        """None: no reading can be compared, or no common factor is to be had.

        bent: of those on an alphabet, also where a deeper ReLU near 0 changed the signal by a few percent.
        certain: those on an alphabet also where the model is certain of its prediction.
        accidents: mixtures expected to lie on the alphabet by accident, of all that were read.
        """
        if len(readings) == 0:
            return None
        predicted = self.signals.at_one_row(readings.features, readings.row).to(readings.bias)  # (k, labels)
        telling = (readings.exact & certain) | (_undecided_loss(predicted) & ~readings.spoiled)
        if not bool(telling.all()):
            keep = telling.nonzero().squeeze(1)
            readings, predicted = readings.select(keep), predicted[keep]
        if len(readings) == 0:
            return None
        if self.scale is None:
            evident = _evident(readings)
            voters = evident if bool(evident.any()) else torch.ones_like(evident)
            self.scale = find_scale(predicted[voters], readings.bias[voters], expected=self.expected)
            if self.scale is None:
                return None
            readings = readings.rescaled(self.scale.kappa)
        return Labelled(readings, self._match(readings, predicted, bent=bent, accidents=accidents))

    def _match(self, readings: Readings, predicted: Tensor, *, bent: bool, accidents: float) -> Match:
        """Those of the readings whose bias gradient is that of some label (or of copies)."""
        evident = _evident(readings)
        size = predicted.abs().amax(1)
        own = (readings.bias.abs() / size).nan_to_num(nan=0.0)
        rounding = (5 * (self.signals.rounding + readings.noise / size)).nan_to_num(nan=0.0)
        tight = rounding.clamp(max=_TIGHT)
        labels = predicted.shape[1]
        loose = improbable(_LOOSEST if bent else _LOOSE, accidents * labels)
        believed = readings.exact & (tight <= improbable(_TIGHT, accidents * label_sets(labels)))
        weak = not too_many_by_chance(predicted, readings.bias, tight, ~evident)
        # A share of another example moves the signal by a share of itself: to vouch for values to `EXACT`, a
        # faint signal must fit to as much of itself.
        off = torch.where(evident, rounding.clamp(_TIGHT, _LOOSE), tight if weak else -1.0)
        return match_labels(
            predicted,
            readings.bias,
            torch.where(
                readings.exact,
                rounding.clamp(loose, _LOOSEST),
                torch.minimum(off, own * EXACT),
            ),
            # Off the alphabet, two that are nearly alike cannot be told from two copies of their mean.
            copies=torch.where(believed, tight, 0.0),
            clear=_BENT_CLEAR if bent else AMBIGUOUS,
        )


def _evident(readings: Readings) -> Tensor:
    """(k,) bool: something besides its label speaks for the reading."""
    return readings.exact | (readings.support > 1)


def _undecided_loss(predicted: Tensor) -> Tensor:
    """(k,) bool: signals (k, labels) of a prediction that is not certain of any label.

    Where p is 0 or 1, examples that fire the same neurons have the same signal: in every row, several look
    like copies of their mean, or like u + v - w alone, and only an alphabet can tell. Otherwise p differs.
    """
    size = predicted.abs()
    return size.amin(1) > _UNDECIDED * size.amax(1)
