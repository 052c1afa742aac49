"""Small smooth models and updates that the tests of inversion share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.attacks.inversion.problem import Problem, pose_problem
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Update,
)
from seepage.protocol import local_update

CLASSES = 5


def image_spec(channels: int = 1, size: int = 8) -> InputSpec:
    return InputSpec(modality=Modality.IMAGE, shape=(channels, size, size), num_classes=CLASSES)


def dense_net(spec: InputSpec, *, width: int = 40, scale: float = 1.0) -> nn.Sequential:
    torch.manual_seed(3)
    inputs = int(torch.tensor(spec.shape).prod())
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, spec.num_classes)
    ).double()
    for parameter in model.parameters():
        parameter.data.mul_(scale)
    return model


def conv_net(spec: InputSpec, *, norm: bool = False, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A sigmoid LeNet with weights from U(-0.5, 0.5), as Zhu et al. draw them."""
    torch.manual_seed(3)
    channels, size, _ = spec.shape
    layers: list[nn.Module] = [nn.Conv2d(channels, 6, 3, padding=1)]
    if norm:
        layers.append(nn.BatchNorm2d(6))
    layers += [nn.Sigmoid(), nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.Sigmoid(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(6 * (size // 2) ** 2, spec.num_classes)).to(dtype)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def random_batch(spec: InputSpec, labels: list[int], *, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1000 + seed)  # apart from the attack's own
    inputs = torch.rand((len(labels), *spec.shape), generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.tensor(labels))


def exchange_for(
    model: nn.Module,
    batch: Batch,
    local: LocalTraining,
    *,
    grant_labels: bool = True,
    grant_count: bool = True,
) -> Exchange:
    update = local_update(Broadcast(model), batch, local)
    shown = Update(
        kind=update.kind,
        tensors=update.tensors,
        num_examples=update.num_examples if grant_count else None,
        buffers=update.buffers,
    )
    labels = batch.labels if grant_labels else None
    return Exchange(broadcast=Broadcast(model), update=shown, clients=(0,), labels=labels)


def knowledge(spec: InputSpec, local: LocalTraining | None) -> Knowledge:
    return Knowledge(input=spec, local=local, loss="cross_entropy" if local is None else _loss(local))


def _loss(local: LocalTraining) -> str:
    return "cross_entropy" if local.loss == "auto" else local.loss


def problem_for(model: nn.Module, spec: InputSpec, batch: Batch, local: LocalTraining) -> Problem:
    exchange = exchange_for(model, batch, local)
    return pose_problem(exchange, knowledge(spec, local), num_examples=len(batch))


def psnr(values: Tensor, truth: Tensor) -> float:
    """Of the worst example, each with the candidate nearest to it."""
    errors = (values[:, None] - truth[None]).flatten(2).square().mean(2)  # (candidates, truths)
    return float(-10 * errors.min(dim=0).values.max().log10())
