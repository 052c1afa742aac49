"""How a vision transformer cuts a picture into patches, found by running it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec, Modality
from seepage.models.hooks import hooked, modules_of
from seepage.models.probes import PROBE_EXAMPLES, dummy_inputs, run_model

HOLDS = 1e-8
"""Largest relative difference of two sides of an equation that holds in float64. Derived: the root of its
rounding, 1.5e-8."""


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """Patches that do not overlap and cover the picture."""

    patch: tuple[int, int]
    grid: tuple[int, int]
    """Patches down and across."""

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    def to_picture(self, patches: Tensor) -> Tensor:
        """(patches, values of a patch) to (1, C, H, W)."""
        size = (self.grid[0] * self.patch[0], self.grid[1] * self.patch[1])
        return nn.functional.fold(patches.T.unsqueeze(0), size, self.patch, stride=self.patch)

    def to_patches(self, picture: Tensor) -> Tensor:
        """(1, C, H, W) to (patches, values of a patch)."""
        return nn.functional.unfold(picture, self.patch, stride=self.patch)[0].T


@dataclass(frozen=True)
class Pass:
    """One forward pass over dummy pictures; tensors are still part of the graph."""

    inputs: Tensor
    convolutions: list[tuple[nn.Conv2d, Tensor, Tensor]]
    """In the order of execution: the module, its input, its output."""
    linear: list[tuple[nn.Linear, Tensor]]
    output: Tensor

    def patch_embedding(self) -> tuple[nn.Conv2d, Tensor]:
        """The convolution that reads the picture in patches that do not overlap, and its output."""
        inputs = self.inputs
        for layer, read, output in self.convolutions:
            plain = layer.padding in ((0, 0), "valid") and layer.dilation == (1, 1) and layer.groups == 1
            rows, columns = (
                side % kernel for side, kernel in zip(inputs.shape[-2:], layer.kernel_size, strict=True)
            )
            whole = layer.kernel_size == layer.stride and not rows and not columns
            if plain and whole and torch.equal(read, inputs):
                return layer, output
        raise NotApplicable(
            "the model does not begin with a convolution that cuts the picture into patches, so it is no "
            "vision transformer with patches to solve for: use 'inverting_gradients'."
        )

    def random_loss(self) -> Tensor:
        """A fixed random projection of the outputs, on which equations between gradients are tested."""
        generator = torch.Generator().manual_seed(1)
        weights = torch.randn(self.output.shape, generator=generator, dtype=self.output.dtype)
        return (self.output * weights).sum()


def probe_of(model: nn.Module, spec: InputSpec) -> nn.Module:
    """A copy in float64, so that an equation that holds can be told from one that nearly does; on the CPU,
    for not every device has it. None is made for what reads no pictures, and may be large."""
    if spec.modality is not Modality.IMAGE or len(spec.shape) != 3:
        raise NotApplicable(
            "this attack solves for a vision transformer's patches, and these inputs are no pictures: use "
            "another attack."
        )
    return copy.deepcopy(model).cpu().double()


def run_probe(probe: nn.Module, spec: InputSpec) -> Pass:
    """Run dummy pictures and record what convolutions and linear layers read."""
    convolutions: list[tuple[nn.Conv2d, Tensor, Tensor]] = []
    linear: list[tuple[nn.Linear, Tensor]] = []

    def record(_name: str, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            convolutions.append((module, args[0], output))
        elif isinstance(module, nn.Linear):
            linear.append((module, args[0]))

    inputs = dummy_inputs(spec, PROBE_EXAMPLES, like=probe)
    with hooked(modules_of(probe, nn.Conv2d, nn.Linear), after=record):
        return Pass(inputs, convolutions, linear, run_model(probe, inputs))


def close(a: Tensor, b: Tensor) -> bool:
    """Equal in float64, up to rounding."""
    return bool((a - b).norm() <= HOLDS * b.norm())
