"""Metrics that an audit computes only where it names them, in the form of a metric from outside."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.errors import DataError, SeepageError, SpecError
from seepage.core.metric import Metric
from seepage.core.types import INPUT_SPACE, InputSpec
from seepage.core.user_code import reason
from seepage.metrics import image, registered, wavelet
from seepage.metrics.scales import data_range


def lpips(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    """(n,): `image.lpips`, over the spec's value range or the true examples' own."""
    low, high = spec.value_range or (float(truth.min()), float(truth.max()))
    return image.lpips(recon, truth, value_range=(low, high))


def registered_psnr(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    """(n,): `registered.registered_psnr`."""
    return registered.registered_psnr(recon, truth, data_range=data_range(spec, truth))


def cw_ssim(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    """(n,): `wavelet.cw_ssim`."""
    return wavelet.cw_ssim(recon, truth, data_range=data_range(spec, truth))


def score_requested(
    metrics: Sequence[Metric], recon: Tensor, truth: Tensor, spec: InputSpec, *, space: str
) -> dict[str, Tensor]:
    """Scores (n,) of n matched pairs by name, in float64, of the metrics that are about this space.

    What goes wrong inside of one is said in one sentence, and so is a result that is not one score for each.
    """
    wanted = "input" if space == INPUT_SPACE else "features"
    return {
        metric.name: _scores(metric, recon, truth, spec)
        for metric in metrics
        if metric.space in (wanted, "any")
    }


def check_requested(metrics: Sequence[Metric], examples: Tensor, spec: InputSpec) -> None:
    """Refuse a metric that this kind of data does not have, or that cannot score it, before anything runs."""
    for metric in metrics:
        if spec.modality not in metric.modalities:
            raise SpecError(
                f"metrics: {metric.name} is measured on {' and '.join(metric.modalities)} data, and these "
                f"are {spec.modality}: leave it out."
            )
    try:
        score_requested(metrics, examples, examples, spec, space=INPUT_SPACE)
    except SeepageError as error:
        raise SpecError(f"metrics: {error}") from None


def _scores(metric: Metric, recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    if len(truth) == 0:
        return torch.zeros(0, dtype=torch.float64)
    try:
        found = torch.as_tensor(metric.compute(recon.clone(), truth.clone(), spec))
    except SeepageError:
        raise
    except Exception as cause:  # code from outside may raise anything
        raise DataError(
            f"metric '{metric.name}' failed ({type(cause).__name__}: {reason(cause)}): mend it, or "
            "leave it out."
        ) from cause
    if found.shape != truth.shape[:1]:
        raise DataError(
            f"metric '{metric.name}' gives values of shape {tuple(found.shape)} for {len(truth)} examples: "
            "return one number for each."
        )
    return found.detach().cpu().double()
