"""Believing a reading where targets are numbers: the span of the gradient judges its signal; see `slopes`."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.certifier import Certifier
from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.peeling.residual import Found
from seepage.attacks.reading.slopes import MOST_OUTPUTS, inside, slopes


class NumbersCertifier(Certifier):
    """Finds examples, and vouches for none: nothing says how often each was counted."""

    def certify(
        self, readings: Readings, known: Found, active: Tensor, *, bent: bool = False, accidents: float = 0.0
    ) -> Found:
        """Those with a signal that the gradient holds; there is no factor to learn, so none is bent.

        Slopes depend on x by its activation pattern alone, so a mixture with one example's pattern has its
        slopes as well: a row by itself, which nothing else speaks for, is not believed.
        """
        readings = readings.select(readings.evident.nonzero().squeeze(1))
        if bent or not len(readings) or self.signals.spec.num_targets > MOST_OUTPUTS:
            return self._nothing()
        span = self.spanned(active)
        if span.basis is None:  # the gradient holds too many examples to tell
            return self._nothing()
        of = slopes(self.signals, readings.features)  # (k, outputs, N)
        weights = inside(of[:, :, span.index], span.basis)
        at_row = (of[torch.arange(len(of)), :, readings.row].double() * weights).sum(1)
        weights = weights * (readings.bias / at_row).unsqueeze(1)
        there = weights.isfinite().all(1).nonzero().squeeze(1)
        readings, sent = readings.select(there), weights[there].to(of)
        doubt = torch.full_like(readings.bias, self.signals.rounding)
        single = torch.zeros_like(readings.exact)  # no other label could explain a bent signal
        new = self._found(readings, sent, torch.zeros_like(doubt), doubt, single)
        return new.select((~span.refutes(new.signals, new.features)).nonzero().squeeze(1))
