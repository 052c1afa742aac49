"""What APRIL must know of a vision transformer (Lu et al. 2021, Section 3), found by running it.

Nothing goes by name or class. One pass over dummy pictures shows which convolution cuts the picture into
patches, which linear layers read the embedded tokens z first (query, key and value, or one fused layer), and
which parameter is added to z (its gradient is dL/dz). The equation APRIL solves is then tested on the dummy
pictures themselves: a layer norm or a residual connection breaks it, whatever its name.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.parts.layers import PROBE_EXAMPLES, dummy_inputs, run_model
from seepage.errors import NotApplicable
from seepage.federation import trainable, training_mode
from seepage.types import InputSpec, Modality

_HOLDS = 1e-8
"""Largest relative difference of two sides of an equation that holds in float64."""
_REMEDY = "attack a vision transformer without both in its first block, or use 'inverting_gradients'."


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """z[first + t] = kernel @ patch_t + constant[first + t]; other tokens are constant. float64, CPU."""

    projections: tuple[str, ...]
    """Weights that read z: query, key and value."""
    position: str
    """The parameter whose gradient is dL/dz."""
    weights: tuple[Tensor, ...]
    """The projections' weights, (m, dim) each."""
    constant: Tensor
    """(T, dim): z of a picture of zeros."""
    kernel: Tensor
    """(dim, values of a patch): the patch embedding."""
    first: int
    """Index of the first patch's token; a class token comes before it."""
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
class _Pass:
    """One forward pass over dummy pictures; tensors are still part of the graph."""

    convolutions: list[tuple[nn.Conv2d, Tensor, Tensor]]
    """In the order of execution: the module, its input, its output."""
    linear: list[tuple[nn.Linear, Tensor]]
    output: Tensor


def trace_tokens(model: nn.Module, spec: InputSpec, *, train: bool = False) -> TokenLayout:
    """Where the tokens come from and who reads them, or NotApplicable with the reason.

    train: whether clients run the model in train mode (dropout on the tokens breaks the equation).
    """
    if spec.modality is not Modality.IMAGE or len(spec.shape) != 3:
        raise NotApplicable(
            "APRIL inverts vision transformers, and these inputs are no pictures: use another attack."
        )
    # float64, so that an equation that holds can be told from one that nearly does; on the CPU, for not
    # every device has it
    probe = copy.deepcopy(model).cpu().double()
    inputs = dummy_inputs(spec, PROBE_EXAMPLES, like=probe)
    with torch.enable_grad(), training_mode(probe, train):
        seen = _run(probe, inputs)
        embedding, patches = _patch_embedding(seen, inputs)
        readers, tokens = _readers(seen, embedding.out_channels)
        names = {id(parameter): name for name, parameter in trainable(probe).items()}
        if any(id(layer.weight) not in names for layer in readers):
            raise NotApplicable(
                "a linear layer that reads the tokens is frozen, so its gradient is not sent and APRIL's "
                "equations lack their right side: use 'inverting_gradients'."
            )
        position = _position(probe, seen.output, tokens, readers)
        first = _first_patch(tokens, patches)
    height, width = patches.shape[-2:]
    constant = tokens[0].detach().clone()
    flat = patches[0].detach().flatten(1).T  # (patches, dim)
    bias = 0.0 if embedding.bias is None else embedding.bias.detach()
    constant[first : first + len(flat)] += bias - flat
    return TokenLayout(
        projections=tuple(names[id(layer.weight)] for layer in readers),
        position=position,
        weights=tuple(layer.weight.detach() for layer in readers),
        constant=constant,
        kernel=embedding.weight.detach().flatten(1),
        first=first,
        patch=(embedding.kernel_size[0], embedding.kernel_size[1]),
        grid=(height, width),
    )


def _run(model: nn.Module, inputs: Tensor) -> _Pass:
    convolutions: list[tuple[nn.Conv2d, Tensor, Tensor]] = []
    linear: list[tuple[nn.Linear, Tensor]] = []

    def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            convolutions.append((module, args[0], output))
        elif isinstance(module, nn.Linear):
            linear.append((module, args[0]))

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                stack.callback(module.register_forward_hook(record).remove)
        return _Pass(convolutions, linear, run_model(model, inputs))


def _patch_embedding(seen: _Pass, inputs: Tensor) -> tuple[nn.Conv2d, Tensor]:
    """The convolution that reads the picture in patches that do not overlap, and its output."""
    for layer, read, output in seen.convolutions:
        plain = layer.padding in ((0, 0), "valid") and layer.dilation == (1, 1) and layer.groups == 1
        rows, columns = (
            side % kernel for side, kernel in zip(inputs.shape[-2:], layer.kernel_size, strict=True)
        )
        whole = layer.kernel_size == layer.stride and not rows and not columns
        if plain and whole and torch.equal(read, inputs):
            return layer, output
    raise NotApplicable(
        "the model does not begin with a convolution that cuts the picture into patches, so it is no vision "
        "transformer and APRIL has nothing to invert: use 'inverting_gradients'."
    )


def _readers(seen: _Pass, dim: int) -> tuple[list[nn.Linear], Tensor]:
    """The linear layers that are the first to read tokens (n, T, dim), and these tokens."""
    tokens = next((read for _, read in seen.linear if read.dim() == 3 and read.shape[-1] == dim), None)
    if tokens is None:
        raise NotApplicable(
            f"no linear layer reads tokens of {dim} values, so the model is no vision transformer whose "
            "attention is made of linear layers, and APRIL cannot invert it: use 'inverting_gradients'."
        )
    return [layer for layer, read in seen.linear if read is tokens or _equal(read, tokens)], tokens


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _position(model: nn.Module, output: Tensor, tokens: Tensor, readers: Sequence[nn.Linear]) -> str:
    """The parameter whose gradient is dL/dz, after a check that dL/dz comes through the readers alone."""
    wanted = tokens.shape[1:]
    candidates = {name: p for name, p in trainable(model).items() if p.shape in (wanted, (1, *wanted))}
    if not candidates:
        raise NotApplicable(
            "the model trains no position embedding of one vector for each token, so the gradient at the "
            "tokens is not sent and APRIL cannot invert it: use 'inverting_gradients'."
        )
    generator = torch.Generator().manual_seed(1)
    loss = (output * torch.randn(output.shape, generator=generator, dtype=output.dtype)).sum()
    weights = [layer.weight for layer in readers]
    at_tokens, *rest = torch.autograd.grad(
        loss, [tokens, *weights, *candidates.values()], allow_unused=True, materialize_grads=True
    )
    at_weights, at_positions = rest[: len(weights)], rest[len(weights) :]
    total = at_tokens.sum(dim=0)
    if not bool(total.any()):
        raise NotApplicable(
            "the model's output does not depend on its tokens (a layer of zeros?), so no update shows "
            "anything of them: attack a later round."
        )
    position = next(
        (name for name, g in zip(candidates, at_positions, strict=True) if _close(g.reshape(wanted), total)),
        None,
    )
    if position is None:
        raise NotApplicable(
            "something (a layer norm, dropout) stands between the position embedding and the first "
            f"attention, so the gradient at the attention's tokens is not sent: {_REMEDY}"
        )
    left = torch.einsum("ntd,nte->de", at_tokens, tokens)
    right = sum(w.T @ g for w, g in zip(weights, at_weights, strict=True))
    assert isinstance(right, Tensor)
    if not _close(left, right):
        raise NotApplicable(
            "gradients reach the tokens past the first attention as well (a residual connection), so APRIL's "
            f"equations do not hold: {_REMEDY}"
        )
    return position


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= _HOLDS * b.norm())


def _first_patch(tokens: Tensor, patches: Tensor) -> int:
    """Where the patches begin: there z minus the patch embedding is the same for all pictures."""
    flat = patches.flatten(2).transpose(1, 2)  # (n, patches, dim)
    for first in range(tokens.shape[1] - flat.shape[1] + 1):
        rest = tokens.clone()
        rest[:, first : first + flat.shape[1]] -= flat
        if _close(rest[0], rest[1]):
            return first
    raise NotApplicable(
        "the tokens at the first attention are not the patch embeddings plus something known, so pixels "
        "cannot be read from them: use 'inverting_gradients'."
    )
