"""Taking a residual apart by the backward signals of the examples in it, behind any smooth activation.

What the next layer reads (`by_next_layer`) tells examples apart while that layer has more neurons than there
are examples. The output layer behind a single hidden one has as many as there are classes. But the signal
that the network computes for an example must lie in the column space of the layer itself
(`signal_equations`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.peeling.tolerances import SURE
from seepage.attacks.reading.unmixing.assemble import Unmixed
from seepage.attacks.reading.unmixing.descent import Roots, descended
from seepage.attacks.reading.unmixing.gather import gather, mixture_at
from seepage.attacks.reading.unmixing.mixture import Mixture
from seepage.attacks.reading.unmixing.signal_equations import SignalEquations
from seepage.attacks.reading.unmixing.told import blur
from seepage.core.progress import Clock
from seepage.models.curvature import SignalCurvature
from seepage.models.signals import BackwardSignals

_STARTS, _IN_VAIN = 20, 3
"""Starts for a label, and labels in a row without an example after which no further one is tried: they
come in the order of how well made-up inputs fit with them. Cost: time."""
_ROUNDS, _AT_ONCE = 2, 2
"""Rounds in vain that end it, and the share of the unknown examples that is enough to go on with. Cost:
time."""
_MOST_WORK = 1 << 25
"""Unknown examples times weights behind the layer, beyond which nothing is tried. Cost: a step from one start
takes a few times as many operations."""


class SignalUnmixer:
    """Unmixes residuals of one layer."""

    def __init__(self, signals: BackwardSignals, made_up: Callable[[int], Tensor], *, seed: int = 0) -> None:
        self.signals, self.made_up = signals, made_up
        self.unknown: int | None = None
        """At the last try; None where the rank or the work said no."""
        own = signals.parameters[0].numel() + signals.parameters[1].numel()
        self.behind = sum(p.numel() for p in signals.model.parameters()) - own
        self._generator = torch.Generator().manual_seed(seed)
        self._curvature: SignalCurvature | None = None

    def unmix(
        self, residual: Residual, index: Tensor, found: Found, clock: Clock, *, whole: bool = False
    ) -> Unmixed | None:
        """As `NextLayerUnmixer.unmix`."""
        self.unknown = None
        mixture = mixture_at(residual, index, found, self.signals, self.made_up)
        if mixture is None or mixture.unknown < 2 or mixture.unknown * self.behind > _MOST_WORK:
            return None
        curvature = self._curvature = self._curvature or SignalCurvature(self.signals)
        if not curvature.exists():
            return None
        self.unknown = mixture.unknown
        told = gather(
            mixture,
            lambda starts: self._all_labels(mixture, curvature, starts, index, clock),
            self.signals,
            index,
            starts=_STARTS,
            enough=1.0 if whole else 1 / _AT_ONCE,
            patience=_ROUNDS,
            equations=len(index) - 2 * mixture.unknown + 1,
            generator=self._generator,
            clock=clock,
        )
        return None if told is None else told.unmixed()

    def _all_labels(
        self, mixture: Mixture, curvature: SignalCurvature, starts: Tensor, index: Tensor, clock: Clock
    ) -> Roots:
        """Where starts (t, u) end with each label that an example seems to have."""
        roots: list[Roots] = []
        vain = 0
        for equations in self._likely_first(mixture, curvature, starts, index):
            if roots and (vain == _IN_VAIN or clock.expired):
                break
            roots.append(self._reached(mixture, equations, starts))
            vain = 0 if len(roots[-1].a) else vain + 1
        return Roots.joined(roots)

    def _likely_first(
        self, mixture: Mixture, curvature: SignalCurvature, starts: Tensor, index: Tensor
    ) -> list[SignalEquations]:
        """One for each label; those first that some example seems to have."""
        classes = max(2, self.signals.spec.num_classes)
        each = [SignalEquations(mixture, curvature, label, index) for label in range(classes)]
        return sorted(each, key=lambda one: float(one.at(starts)[0].norm(dim=1).median()))

    def _reached(self, mixture: Mixture, equations: SignalEquations, starts: Tensor) -> Roots:
        """Where starts end, as far as that can be examples: what noise leaves of r there is not less."""
        roots = descended(equations, starts)
        inside = (roots.values @ mixture.directions / mixture.sizes).norm(dim=1)
        noise = mixture.noise.square().mean().sqrt()
        of_span = noise * inside * len(equations.index) ** 0.5 / roots.values.norm(dim=1)
        weight = self.signals.parameters[0].double()
        of_example = equations.blurred(roots.state, roots.values, weight.norm(dim=1)) * blur(mixture, roots.a)
        expected = of_span + of_example + self.signals.rounding
        return roots.select((roots.residual <= SURE * expected).nonzero().squeeze(1))
