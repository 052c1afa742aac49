"""Root after root of one mixture, each search aimed at what the ones before have not found.

The dual of an example is c = S^-1 U^T d, up to its size, and every other example's a is orthogonal to it:
those that are unknown lie in the null space of the found ones' c. Nothing is taken away from the gradient for
it, so what is found late is as exact as what is found first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.unmixing.descent import Roots
from seepage.attacks.reading.unmixing.ledger import complement_of
from seepage.attacks.reading.unmixing.mixture import Mixture, mixture_of
from seepage.attacks.reading.unmixing.polish import unit
from seepage.attacks.reading.unmixing.starts import starts_in
from seepage.attacks.reading.unmixing.told import Told, told
from seepage.core.progress import Clock
from seepage.models.signals import BackwardSignals

ROWS_EACH = 2
"""Neurons for each unknown example below which no search is tried. Derived: of N equations, u only say where
the span is, and u - 1 are unknowns."""


def mixture_at(
    residual: Residual,
    index: Tensor,
    found: Found,
    signals: BackwardSignals,
    made_up: Callable[[int], Tensor],
) -> Mixture | None:
    """The rows `index` (r,) of a residual, with the gates of all neurons; None where their rank says no."""
    return mixture_of(
        lambda: residual.columns(index, found),
        residual.biases(index, found),
        noise=residual.noise(index, found)[1],
        layer=signals.parameters,
        made_up=made_up,
        rows_each=ROWS_EACH,
    )


def gather(
    mixture: Mixture,
    reached: Callable[[Tensor], Roots],
    signals: BackwardSignals,
    index: Tensor,
    *,
    starts: int,
    enough: float,
    patience: int,
    equations: int,
    generator: torch.Generator,
    clock: Clock,
) -> Told | None:
    """What is told of a mixture at the rows `index` (r,), from rounds of `starts` starts each; None: nothing.

    reached: the roots that starts (t, u) lead to; enough: share of the unknown examples that ends it;
    patience: rounds in vain that do; equations: as `told` has it.
    """
    have: Told | None = None
    roots: list[Roots] = []
    vain = 0
    while vain < patience and not clock.expired:
        span = torch.eye(mixture.unknown).to(mixture.gates) if have is None else _unknown(mixture, have)
        roots.append(reached(starts_in(mixture, span, starts, generator)))
        before = 0 if have is None else len(have)
        if len(roots[-1].a):
            have = told(signals, mixture, Roots.joined(roots), index, equations=equations)
        found = 0 if have is None else len(have)
        vain = 0 if found > before else vain + 1
        if found >= enough * mixture.unknown:
            break
    return have


def _unknown(mixture: Mixture, found: Told) -> Tensor:
    """(u, left) orthonormal: where the a of the unknown examples are."""
    return complement_of(unit(found.inside / mixture.sizes))
