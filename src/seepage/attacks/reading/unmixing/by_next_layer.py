"""Taking a residual apart by what the next layer reads, whatever activation stands between.

A row of a layer without a ReLU holds every example, and no backward signal is sparse. Kariyappa et al. 2023
(Cocktail Party) take such a mixture apart by independent components, a statistical guess. But the next
layer's gradient spans what *it* reads of the examples, and the server knows how that follows from the example
(`next_equations`): examples are the only points of the first span that the second one holds. The second one
holds all of them only while there are fewer than the next layer has neurons (of an output layer, classes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.peeling.tolerances import MOST_ROWS, SURE
from seepage.attacks.reading.unmixing.assemble import Unmixed
from seepage.attacks.reading.unmixing.descent import Roots
from seepage.attacks.reading.unmixing.gather import ROWS_EACH, gather, mixture_at
from seepage.attacks.reading.unmixing.mixture import Mixture, column_space
from seepage.attacks.reading.unmixing.next_equations import Span, descend
from seepage.attacks.reading.unmixing.told import blur
from seepage.core.progress import Clock
from seepage.models.between import Between
from seepage.models.signals import ROUNDING, BackwardSignals

_STARTS, _ROUNDS, _AT_ONCE = 48, 10, 8
"""Starts at a time, rounds in vain, and the share of the unknown examples that is enough to go on with where
the others are easier to find when those are gone. Cost: time."""


class NextLayerUnmixer:
    """Unmixes residuals of one layer with the help of the next one's."""

    def __init__(
        self,
        signals: BackwardSignals,
        between: Between,
        after: Residual,
        after_signals: BackwardSignals,
        made_up: Callable[[int], Tensor],
        *,
        seed: int = 0,
    ) -> None:
        """signals, after_signals: of this layer and of the next; after: the next layer's gradient."""
        self.signals, self.between = signals, between
        self.after, self.after_signals = after, after_signals
        self.made_up = made_up
        self.unknown: int | None = None
        """At the last try; None where the rank said no."""
        self._generator = torch.Generator().manual_seed(seed)

    def unmix(
        self, residual: Residual, index: Tensor, found: Found, clock: Clock, *, whole: bool = False
    ) -> Unmixed | None:
        """Some of the examples that the rows `index` (r,) of a residual are made of; None: none is found.

        whole: as many as possible at once, for what is taken away leaves its error in the rest.
        """
        self.unknown = None
        mixture = mixture_at(residual, index, found, self.signals, self.made_up)
        span = None if mixture is None else self._span(residual, found)
        if mixture is None or span is None:
            return None
        self.unknown = mixture.unknown
        told = gather(
            mixture,
            lambda starts: self._reached(mixture, span, starts),
            self.signals,
            index,
            starts=_STARTS,
            enough=1.0 if whole else 1 / _AT_ONCE,
            patience=_ROUNDS,
            equations=len(mixture.gates) - len(span.sizes) - mixture.unknown + 1,
            generator=self._generator,
            clock=clock,
        )
        return None if told is None else told.unmixed()

    def _span(self, residual: Residual, found: Found) -> Span | None:
        """What the next layer's gradient holds once the found examples are taken out of it as well."""
        after, signals = self.after, self.after_signals
        after.factor = residual.factor
        weight, bias = self.signals.parameters
        read = self.between.apply((found.features @ weight.T + bias).double()).to(after.weight)
        held = replace(found, features=read, signals=signals.at_all_rows(read, found.labels))
        index = (after.norm > 0).nonzero().squeeze(1)[:MOST_ROWS]
        if len(index) < 2:
            return None
        ones = after.biases(index, held).unsqueeze(1)
        most = min(len(index) - 1, after.weight.shape[1] // ROWS_EACH)
        space = column_space(lambda: after.columns(index, held), ones, most=most)
        if space is None:
            return None
        directions, sizes, beyond, width = space
        back = directions / sizes
        rows = [part.double().T @ back for part in after.columns(index, held)]
        basis = torch.linalg.qr(torch.cat([*rows, ones.T @ back])).Q
        typical = after.noise(index, held)[1].square().mean().sqrt() / width**0.5
        noise = max(float(typical), float(beyond) / (len(index) ** 0.5 + width**0.5))
        return Span(basis, sizes, noise, constant=float(bool(after.bias.any())))

    def _reached(self, mixture: Mixture, span: Span, starts: Tensor) -> Roots:
        """Where some starts end, as far as that can be examples."""
        gates = mixture.gates * mixture.gate_size
        roots = descend(gates, mixture.ones, self.between, span, starts, self._generator)
        near = roots.residual <= SURE * self._expected(mixture, span, roots)
        return roots.select(near.nonzero().squeeze(1))

    def _expected(self, mixture: Mixture, span: Span, roots: Roots) -> Tensor:
        """(t,) what noise leaves of r at an example: that of the span, and that of the example's own."""
        inside = (roots.values @ span.basis[:-1] + span.constant * span.basis[-1]) / span.sizes
        of_span = span.noise * inside.norm(dim=1) * roots.values.shape[1] ** 0.5
        weight = self.signals.parameters[0].double()
        of_example = (roots.state * weight.norm(dim=1)).norm(dim=1) * blur(mixture, roots.a)
        expected: Tensor = of_span + of_example + ROUNDING * roots.values.norm(dim=1)
        return expected
