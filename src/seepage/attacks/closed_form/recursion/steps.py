"""Elementwise steps between two layers that can be undone: activations and batch norm in eval mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

MARGIN = 1e-7
"""Distance that recovered features keep from the ends of an activation's range, where its inverse is
infinite. Derived: the rounding of a float32 update."""


@dataclass(frozen=True)
class Step:
    """One strictly increasing (or decreasing) map of every value by itself, and its inverse."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    """Values outside the range of `forward` are first moved into it."""


def _sigmoid() -> Step:
    return Step(torch.sigmoid, lambda y: torch.logit(y.clamp(MARGIN, 1 - MARGIN)))


def _tanh() -> Step:
    return Step(torch.tanh, lambda y: torch.atanh(y.clamp(-1 + MARGIN, 1 - MARGIN)))


def _leaky_relu(slope: float = 0.01) -> Step:
    return Step(lambda z: F.leaky_relu(z, slope), lambda y: torch.where(y < 0, y / slope, y))


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Step:
    def inverse(y: Tensor) -> Tensor:
        scaled = beta * y.clamp_min(MARGIN)
        # log(e^s - 1) = s + log(1 - e^-s), which does not overflow
        return torch.where(scaled > threshold, scaled, scaled + (-torch.expm1(-scaled)).log()) / beta

    return Step(lambda z: F.softplus(z, beta, threshold), inverse)


def _elu(alpha: float = 1.0) -> Step:
    def inverse(y: Tensor) -> Tensor:
        below = torch.log1p((y / alpha).clamp(-1 + MARGIN, 0))
        return torch.where(y < 0, below, y)

    return Step(lambda z: F.elu(z, alpha), inverse)


def _batch_norm(module: _BatchNorm) -> Step | None:
    """y = gain z + offset for each channel, from the running statistics."""
    if module.running_mean is None or module.running_var is None:
        return None
    mean, variance = module.running_mean.double(), module.running_var.double()
    gain = (variance + module.eps).rsqrt()
    offset = torch.zeros_like(gain)
    if module.affine:
        gain, offset = gain * module.weight.detach().double(), module.bias.detach().double()
    if bool((gain == 0).any()):
        return None

    def channels(values: Tensor, like: Tensor) -> Tensor:
        return values.to(like).reshape(1, -1, *(1,) * (like.dim() - 2))

    return Step(
        lambda z: (z - channels(mean, z)) * channels(gain, z) + channels(offset, z),
        lambda y: (y - channels(offset, y)) / channels(gain, y) + channels(mean, y),
    )


def step_of(module: nn.Module) -> Step | None:
    """The step a module makes, or None where it is not elementwise or cannot be undone.

    >>> step = step_of(nn.LeakyReLU(0.1))
    >>> step.inverse(torch.tensor([-0.5, 2.0])).tolist()
    [-5.0, 2.0]
    >>> step_of(nn.ReLU()) is None
    True
    """
    step: Step | None = None
    match module:
        case nn.Sigmoid():
            step = _sigmoid()
        case nn.Tanh():
            step = _tanh()
        case nn.LeakyReLU() if module.negative_slope > 0:
            step = _leaky_relu(module.negative_slope)
        case nn.Softplus():
            step = _softplus(float(module.beta), float(module.threshold))
        case nn.ELU() if module.alpha > 0:
            step = _elu(module.alpha)
        case _BatchNorm():
            step = _batch_norm(module)
    return step


def functional_step(before: Tensor, after: Tensor) -> Step | None:
    """The activation, with default settings, that was called outside any module: seen from its values."""
    for make in (_sigmoid, _tanh, _leaky_relu, _softplus, _elu):
        step = make()
        if before.dtype == after.dtype and torch.allclose(step.forward(before), after, rtol=1e-5, atol=1e-6):
            return step
    return None


def undo(steps: Sequence[Step], outputs: Tensor) -> tuple[Tensor, Tensor]:
    """What went into a row of steps, and the derivative of the row there, elementwise.

    >>> z, slope = undo([_sigmoid(), _sigmoid()], torch.sigmoid(torch.sigmoid(torch.zeros(1).double())))
    >>> bool(z.abs() < 1e-12), round(float(slope), 6)  # 1/4 * s(1/2) * (1 - s(1/2))
    (True, 0.058751)
    """
    values = outputs
    for step in reversed(steps):
        values = step.inverse(values)
    with torch.enable_grad():
        inner = values.detach().requires_grad_()
        result = inner
        for step in steps:
            result = step.forward(result)
        (slope,) = torch.autograd.grad(result.sum(), inner)
    return values, slope
