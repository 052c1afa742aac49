"""A decoder from features to pictures, trained on public examples: ridge regression in closed form.

Scale-MIA's decoder is a generative network trained on many public examples. With some hundred of them the
linear map that leaves single ones out best is what they support, and it needs no training loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.features.feature_inversion import search_pictures
from seepage.attacks.features.spectrum import Spectrum
from seepage.attacks.inversion.problem import pose_problem
from seepage.core.progress import Clock
from seepage.core.types import Exchange, Knowledge, Reconstruction
from seepage.models.layers import LinearLayer

_RIDGES = tuple(10.0**k for k in range(-8, 3))
"""Tried, in units of the mean squared length of a feature vector. Derived: from rounding to flat."""


@dataclass(frozen=True)
class Decoder:
    """pictures = mean + (K(features, public) + offset) weights, K the inner products of centred features."""

    features: Tensor
    """(n, m) of the public examples, centred."""
    middle: Tensor
    """(m,) their mean."""
    weights: Tensor
    """(n, d)"""
    offset: float
    """The square of a constant feature."""
    mean: Tensor
    """(d,) mean public picture."""
    error: float
    """Root mean square over public examples, each left out when it is decoded."""

    def __call__(self, features: Tensor) -> Tensor:
        """(k, m) to (k, d)."""
        inner = (features.to(self.features) - self.middle) @ self.features.T + self.offset
        return (self.mean + inner @ self.weights).to(features)


def train_decoder(features: Tensor, pictures: Tensor) -> Decoder:
    """From (n, m) features and (n, d) pictures of public examples, at least two of them.

    The ridge is the one with the least error where each example is left out, which has a closed form: the
    residual of a left-out example is (K + r)^-1 y over the diagonal of (K + r)^-1.

    >>> _ = torch.manual_seed(0)
    >>> x, front = torch.rand(40, 6), torch.randn(6, 9)
    >>> decoder = train_decoder(x @ front, x)                     # the front loses nothing
    >>> new = torch.rand(3, 6)
    >>> torch.allclose(decoder(new @ front), new, atol=1e-4), decoder.error < 1e-4
    (True, True)
    """
    f, x = features.double(), pictures.double()
    middle, mean = f.mean(dim=0), x.mean(dim=0)
    f, x = f - middle, x - mean
    inner = f @ f.T
    size = float(inner.diagonal().mean().clamp_min(torch.finfo(f.dtype).tiny))
    # Centred features add up to 0, so an example that is left out would be known from the others.
    inner = inner + size
    best: tuple[float, Tensor] | None = None
    for ridge in _RIDGES:
        inverse = torch.linalg.inv(inner + ridge * size * torch.eye(len(f), dtype=f.dtype, device=f.device))
        weights = inverse @ x
        error = float((weights / inverse.diagonal().unsqueeze(1)).square().mean().sqrt())
        if best is None or error < best[0]:
            best = error, weights
    assert best is not None
    return Decoder(features=f, middle=middle, weights=best[1], offset=size, mean=mean, error=best[0])


def pictures_of(
    read: Reconstruction,
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    latent: Tensor,
    *,
    steps: int,
) -> Reconstruction:
    """The pictures behind features that were read from a layer: decoded, then searched for from there.

    latent: (n, m) features of the public examples.
    """
    public = known.auxiliary
    assert public is not None
    sure = 0 if read.claimed is None else int(read.claimed.sum())
    problem = pose_problem(exchange, known, num_examples=len(read))
    decoder = train_decoder(latent, public.inputs.flatten(1))
    decoded = decoder(read.values).reshape(-1, *problem.shape)
    spectrum = Spectrum.of(problem.shape, centre=decoded, unit=decoder.error, like=read.values)
    found, steps = search_pictures(problem, layer, read.values, spectrum, Clock(seconds=None), steps=steps)
    note = (
        f"{len(read)} feature vectors were read, {sure} of them for certain. A decoder trained on "
        f"{len(public)} public examples made pictures of them (left out, those are missed by "
        f"{decoder.error:.2g} in model units), and {steps} steps of a search brought their features to "
        f"within {float(found.off.sqrt().median()):.1%} (median). Pictures are approximations: none is "
        "claimed."
    )
    return Reconstruction(
        values=problem.spec.to_raw(problem.project(found.pictures)),
        model_units=known.normalised,
        label_counts=read.label_counts,
        confidence=(1 - found.off.sqrt()).clamp(0, 1).cpu().double(),
        notes=(*read.notes, note),
    )
