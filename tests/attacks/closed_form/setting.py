"""A small vision transformer, one update of it, and APRIL's answer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.attacks.closed_form.april import april
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.models import MODELS
from seepage.protocol import local_update

GREY = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 12), num_classes=4)


def plain_vit(
    spec: InputSpec = GREY,
    *,
    seed: int = 0,
    patch_size: int = 4,
    dim: int = 32,
    dtype: torch.dtype = torch.float64,
    norm: bool = False,
    residual: bool = False,
) -> nn.Module:
    torch.manual_seed(seed)
    model = MODELS["vit"].build(
        spec, patch_size=patch_size, dim=dim, norm_first_block=norm, residual_first_block=residual
    )
    return model.to(dtype)


def random_batch(n: int = 1, spec: InputSpec = GREY, *, seed: int = 7) -> Batch:
    """Raw values, uniform over [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand((n, *spec.shape), generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.arange(n) % spec.num_classes)


def seen(model: nn.Module, data: Batch, local: LocalTraining | None = None) -> Exchange:
    dtype = next(model.parameters()).dtype
    batch = Batch(data.inputs.to(dtype), data.labels)
    update = local_update(Broadcast(model), batch, local or LocalTraining())
    return Exchange(broadcast=Broadcast(model), update=update, clients=(0,))


def attack(exchange: Exchange, spec: InputSpec = GREY, local: LocalTraining | None = None) -> Reconstruction:
    return april().run([exchange], Knowledge(input=spec, local=local))


def psnr(found: Tensor, truth: Tensor) -> float:
    return float(-10 * (found.double() - truth.double()).square().mean().log10())
