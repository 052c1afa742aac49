"""From places in a residual's row space that are examples to what each of them sent.

Whose label is whose follows from the layer's column space, in which the backward signal of an example with
its label lies. How large its contribution is follows from the rank: G - d [x, 1] / w has one less for
w = [x, 1] G^+ d and no other w (Wedderburn 1934).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import BEYOND, COARSE, SURE
from seepage.attacks.reading.slopes import inside, slopes
from seepage.attacks.reading.unmixing.assemble import Unmixed
from seepage.attacks.reading.unmixing.descent import Roots, distinct
from seepage.attacks.reading.unmixing.mixture import Mixture
from seepage.models.signals import ROUNDING, BackwardSignals


@dataclass(frozen=True)
class Told:
    """Examples of a mixture, each once, all (k, ...)."""

    a: Tensor
    """(k, u)"""
    error: Tensor
    """(k,) of a"""
    features: Tensor
    """(k, m)"""
    observed: Tensor
    """(k, r) backward signals as the gradient holds them."""
    inside: Tensor
    """(k, u) U^T d"""

    def __len__(self) -> int:
        return len(self.a)

    def unmixed(self) -> Unmixed:
        relative = (self.error / self.a.norm(dim=1)).clamp_min(ROUNDING)
        return Unmixed(self.features, self.observed, relative)


def told(
    signals: BackwardSignals, mixture: Mixture, roots: Roots, index: Tensor, *, equations: int
) -> Told | None:
    """Each example once, with the label and the size that the gradient at the rows `index` (r,) shows.

    equations: how many of them the roots solve beyond the unknowns.
    """
    roots = roots.select(roots.residual.argsort())  # the surest one of each
    values = signals.parameters[0].shape[1] ** 0.5
    place = roots.spread * roots.residual / max(1, equations) ** 0.5
    # Of the place in the span, and of the span itself.
    error = BEYOND * torch.hypot(place, blur(mixture, roots.a) * values)
    kept = distinct(roots.a, apart=2 * SURE * error)
    a, error = roots.a[kept], error[kept]
    features = mixture.examples(a).to(signals.parameters[0].dtype)
    best = torch.full_like(error, torch.inf)
    inside, observed = torch.zeros_like(a), a.new_zeros(len(a), mixture.rows)
    for d in _possible(signals, features, index, mixture.directions):
        within = d @ mixture.directions  # (k, u)
        outside = (d - within @ mixture.directions.T).norm(dim=1) / d.norm(dim=1)
        weight = ((within / mixture.sizes) * a).sum(1, keepdim=True)  # w of Wedderburn's formula
        better = outside < best
        best = torch.where(better, outside, best)
        observed = torch.where(better.unsqueeze(1), d / weight, observed)
        inside = torch.where(better.unsqueeze(1), within, inside)
    ok = (best <= COARSE) & observed.isfinite().all(1)
    if not bool(ok.any()):
        return None
    return Told(a[ok], error[ok], features[ok], observed[ok].to(features.dtype), inside[ok])


def _possible(
    signals: BackwardSignals, features: Tensor, index: Tensor, directions: Tensor
) -> Iterator[Tensor]:
    """(k, r) what candidates may have sent, with each label; of numbers what lies in the span best."""
    if signals.spec.num_targets:
        of = slopes(signals, features)[:, :, index]
        yield (of.double() * inside(of, directions).unsqueeze(2)).sum(1)
        return
    for label in range(max(2, signals.spec.num_classes)):
        labels = torch.full((len(features),), label, device=features.device)
        yield signals.at_all_rows(features, labels)[:, index].double()


def blur(mixture: Mixture, a: Tensor) -> Tensor:
    """(t,) root mean square of the noise in each value of V a = G^T U S^-1 a."""
    noise: Tensor = mixture.noise.square().mean().sqrt() * (a / mixture.sizes).norm(dim=1)
    return noise
