"""Which label a reading has, if it is a single example at all, and the common factor of the update.

Nothing here sees the truth: a reading is labelled when the bias gradient that some label must have caused is
the one that was received, within the rounding of the update and no nearer than chance would have it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.match import Match, label_sets, match_labels
from seepage.attacks.reading.peeling.readings import Readings, improbable, too_many_by_chance
from seepage.attacks.reading.peeling.tolerances import BENT, BENT_CLEAR, FINE, SURE, TIGHT
from seepage.attacks.reading.scale import Scale, find_scale
from seepage.models.precision import EXACT
from seepage.models.signals import BackwardSignals

_PROBED = 16
"""Readings that show whether a layer has silent neurons. Cost: a backward pass; one would do, but for those
that saturate the loss."""


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
            evident = readings.evident
            voters = evident if bool(evident.any()) else torch.ones_like(evident)
            self.scale = find_scale(predicted[voters], readings.bias[voters], expected=self.expected)
            if self.scale is None:
                return None
            readings = readings.rescaled(self.scale.kappa)
        return Labelled(readings, self._match(readings, predicted, bent=bent, accidents=accidents))

    def _match(self, readings: Readings, predicted: Tensor, *, bent: bool, accidents: float) -> Match:
        """Those of the readings whose bias gradient is that of some label (or of copies).

        Readings on an alphabet may miss it by as much as a bent signal does, if their row is that noisy, and
        readings with other evidence by `EXACT`. Off an alphabet it is what rounding explains and no more: a
        hundredth of another example in the row may move the bias gradient by as little as 1e-4. Products of
        one example (`products`) have no other in their row.
        """
        evident = readings.evident
        size = predicted.abs().amax(1)
        own = (readings.bias.abs() / size).nan_to_num(nan=0.0)
        noise = (readings.noise / size).nan_to_num(nan=0.0)
        rounding = SURE * (self.signals.rounding + noise)
        labels = predicted.shape[1]
        loose = improbable(BENT if bent else EXACT, accidents * labels)
        believed = readings.exact & (improbable(TIGHT, accidents * label_sets(labels)) == TIGHT)
        weak = not bool(evident.all()) and self._parts_examples(readings.features[~evident][:_PROBED])
        weak = weak and not too_many_by_chance(predicted, readings.bias, TIGHT, ~evident)
        off = torch.where(evident, rounding.clamp(max=EXACT), TIGHT if weak else -1.0)
        off = torch.where(readings.proven, off, torch.minimum(off, self._faint(own, noise)))
        return match_labels(
            predicted,
            readings.bias,
            torch.where(readings.exact, rounding.clamp(loose, BENT), off),
            # Off the alphabet, two that are nearly alike cannot be told from two copies of their mean.
            copies=torch.where(believed, TIGHT, 0.0),
            clear=BENT_CLEAR if bent else SURE,
        )

    def _parts_examples(self, features: Tensor) -> bool:
        """Whether examples like these (k, m) leave some rows without a signal, as they do behind a ReLU.

        Otherwise every row holds all examples, and where one fits a label it does so by accident.
        """
        labels = torch.zeros(len(features), dtype=torch.long, device=features.device)
        zero = self.signals.at_all_rows(features, labels) == 0
        return bool((zero.any(1) & ~zero.all(1)).any())  # a loss that is saturated is zero in all rows

    def _faint(self, own: Tensor, noise: Tensor) -> Tensor:
        """(k,) how near a signal must be that is `own` (k,) of the largest label's, which has `noise` (k,).

        A share w of another example moves the bias gradient by w of itself, and the prediction by w times the
        slope of log d towards that example: where those nearly agree, little of w is seen, so a signal must
        fit as well as the numbers allow. p - y is a difference of numbers up to 1, in which the client's p
        and ours are each off by a last digit; what the logits' rounding changes goes with the signal. And
        to vouch for values to `EXACT`, a signal must fit to a tenth of that of itself, whatever the rounding,
        for only a tenth of w may be seen.
        """
        digits = 2 * (2 * self.signals.precision.relative)
        rounded = digits + SURE * (self.signals.rounding * own + noise)
        return torch.minimum(rounded, own * FINE)


def _undecided_loss(predicted: Tensor) -> Tensor:
    """(k,) bool: signals (k, labels) of a prediction that is not certain of any label.

    Where p is 0 or 1, examples that fire the same neurons have the same signal: in every row, several look
    like copies of their mean, or like u + v - w alone, and only an alphabet can tell. Otherwise p differs.
    """
    size = predicted.abs()
    return size.amin(1) > FINE * size.amax(1)  # with p = 1 - q this share is about q
