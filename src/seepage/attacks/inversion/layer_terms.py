"""What a layer with weights adds to the gradient-matching objective of one example, written out by hand.

Layer l with input a and backward signal delta has the weight gradient g(a) = delta (*) a, which is linear in
a while delta stands still. Two things are needed of it: g itself, and the adjoint of a -> g(a), which carries
u = dD/dg back to a. Both are for one restart at a time; the passes before and after take all restarts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.nn.modules.batchnorm import _BatchNorm


class LayerTerms(ABC):
    """One layer, and what passed through it in the last forward and backward pass of all restarts."""

    forward: Callable[[Tensor], Tensor] | None = None
    """Takes the place of the module's own forward pass, where there is a faster one."""

    def __init__(self, module: nn.Module, weight: str | None, bias: str | None) -> None:
        self.module: Any = module
        self.weight, self.bias = weight, bias
        self.forget()

    def forget(self) -> None:
        """Let go of everything, before new candidates or because the graph holds on to the layer."""
        self.used = False
        self.inputs = self.output = self.delta = torch.empty(0)
        self.injected: list[Tensor] = []

    def saw(self, inputs: Tensor, output: Tensor) -> None:
        self.used, self.inputs, self.output = True, inputs, output

    def receive(self, delta: Tensor) -> None:
        """The backward signal at the layer's output."""
        self.delta = delta

    def arranged(self, weight: Tensor) -> Tensor:
        """A tensor like the layer's weight, in the order of `weight_gradient`."""
        return weight

    @abstractmethod
    def weight_gradient(self, restart: int) -> Tensor:
        """g, arranged."""

    def bias_gradient(self, restart: int) -> Tensor:
        return _over_positions(self.delta[restart])

    @abstractmethod
    def inject(self, restart: int, u: Tensor) -> None:
        """Keep the gradient of <u, g(a)> with respect to a for the last backward pass; u is arranged."""

    def roots(self) -> list[tuple[Tensor, Tensor]]:
        """Where the last backward pass is to start, and with which gradients."""
        return [(self.inputs, torch.cat(self.injected))] if self.injected else []


class DenseTerms(LayerTerms):
    """nn.Linear, at one position or at several."""

    def weight_gradient(self, restart: int) -> Tensor:
        delta, a = self.delta[restart], self.inputs[restart].detach()
        return delta.reshape(-1, delta.shape[-1]).T @ a.reshape(-1, a.shape[-1])

    def bias_gradient(self, restart: int) -> Tensor:
        delta = self.delta[restart]
        return delta.reshape(-1, delta.shape[-1]).sum(dim=0)

    def inject(self, restart: int, u: Tensor) -> None:
        self.injected.append(self.delta[restart : restart + 1] @ u)


class NormTerms(LayerTerms):
    """Batch norm with fixed statistics: its weight's gradient is linear in the normalised input."""

    def __init__(self, module: nn.Module, weight: str | None, bias: str | None) -> None:
        super().__init__(module, weight, bias)
        self._scale: Tensor = (self.module.running_var + self.module.eps).rsqrt()
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d):  # a subclass may compute something else
            self.forward = self._affine()

    def _affine(self) -> Callable[[Tensor], Tensor]:
        gain, shift = self._scale, -self.module.running_mean * self._scale
        if self.module.affine:
            gain, shift = gain * self.module.weight.detach(), shift * self.module.weight.detach()
            shift = shift + self.module.bias.detach()

        def forward(inputs: Tensor) -> Tensor:
            shape = (-1, *(1,) * (inputs.dim() - 2))
            return torch.addcmul(shift.view(shape), inputs, gain.view(shape))

        return forward

    def weight_gradient(self, restart: int) -> Tensor:
        delta, a = self.delta[restart], self.inputs[restart].detach()
        centred = a - self.module.running_mean.view(-1, *(1,) * (a.dim() - 1))
        return _over_positions(centred.mul_(delta)) * self._scale

    def inject(self, restart: int, u: Tensor) -> None:
        delta = self.delta[restart : restart + 1]
        self.injected.append(delta * (u * self._scale).view(1, -1, *(1,) * (delta.dim() - 2)))


class ConvolutionTerms(LayerTerms):
    """Any nn.Conv2d that pads with zeros."""

    @property
    def _geometry(self) -> tuple[Any, tuple[int, ...], Any, int]:
        return self.module.stride, padding_of(self.module), self.module.dilation, self.module.groups

    def weight_gradient(self, restart: int) -> Tensor:
        a, delta = self.inputs[restart : restart + 1].detach(), self.delta[restart : restart + 1]
        found: Tensor = conv2d_weight(a, self.module.weight.shape, delta, *self._geometry)
        return found

    def inject(self, restart: int, u: Tensor) -> None:
        shape = (1, *self.inputs.shape[1:])
        self.injected.append(conv2d_input(shape, u, self.delta[restart : restart + 1], *self._geometry))


def _over_positions(values: Tensor) -> Tensor:
    """(C, *positions) to (C,). Not by flattening, which copies where channels lie last."""
    return values.sum(dim=tuple(range(1, values.dim()))) if values.dim() > 1 else values


def padding_of(module: nn.Conv2d) -> tuple[int, ...]:
    """In numbers, also where it is given as a word.

    >>> padding_of(nn.Conv2d(1, 1, 5, padding="same"))
    (2, 2)
    """
    if isinstance(module.padding, str):
        if module.padding == "valid":
            return (0,) * len(module.kernel_size)
        return tuple(d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True))
    return tuple(module.padding)


def terms_of(module: nn.Module, weight: str | None, bias: str | None) -> LayerTerms | None:
    """The hand-written terms of a layer; None where there are none."""
    if isinstance(module, nn.Linear):
        return DenseTerms(module, weight, bias)
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
        return ConvolutionTerms(module, weight, bias)
    if isinstance(module, _BatchNorm) and module.running_mean is not None:
        return NormTerms(module, weight, bias)
    return None
