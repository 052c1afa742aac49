"""From places in a residual's row space that are examples to what each of them sent.

Whose label is whose follows from the layer's column space, in which the backward signal of an example with
its label lies. How large its contribution is follows from the rank: G - d [x, 1] / w has one less for
w = [x, 1] G^+ d and no other w (Wedderburn 1934).
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import BEYOND, COARSE, SURE
from seepage.attacks.reading.unmixing.assemble import Unmixed
from seepage.attacks.reading.unmixing.descent import Roots, distinct
from seepage.attacks.reading.unmixing.mixture import Mixture
from seepage.models.signals import ROUNDING, BackwardSignals


def told(
    signals: BackwardSignals, mixture: Mixture, roots: Roots, index: Tensor, *, equations: int
) -> Unmixed | None:
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
    observed, explained = _signals(signals, mixture, features, a, index)
    if not bool(explained.any()):
        return None
    relative = (error / a.norm(dim=1)).clamp_min(ROUNDING)
    return Unmixed(features[explained], observed[explained], relative[explained])


def blur(mixture: Mixture, a: Tensor) -> Tensor:
    """(t,) root mean square of the noise in each value of V a = G^T U S^-1 a."""
    noise: Tensor = mixture.noise.square().mean().sqrt() * (a / mixture.sizes).norm(dim=1)
    return noise


def _signals(
    signals: BackwardSignals, mixture: Mixture, features: Tensor, a: Tensor, index: Tensor
) -> tuple[Tensor, Tensor]:
    """(k, r) backward signals as the gradient holds them, and (k,) bool where it holds one at all."""
    best = torch.full((len(a),), torch.inf, dtype=a.dtype, device=a.device)
    observed = torch.zeros(len(a), mixture.rows, dtype=a.dtype, device=a.device)
    for label in range(max(2, signals.spec.num_classes)):
        labels = torch.full((len(a),), label, device=a.device)
        d = signals.at_all_rows(features, labels)[:, index].double()
        inside = d @ mixture.directions  # (k, u)
        outside = (d - inside @ mixture.directions.T).norm(dim=1) / d.norm(dim=1)
        weight = ((inside / mixture.sizes) * a).sum(1, keepdim=True)  # w of Wedderburn's formula
        better = outside < best
        best = torch.where(better, outside, best)
        observed = torch.where(better.unsqueeze(1), d / weight, observed)
    explained = (best <= COARSE) & observed.isfinite().all(1)
    return observed.to(features.dtype), explained
