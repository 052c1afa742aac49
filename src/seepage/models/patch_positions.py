"""Where a vision transformer cuts a picture and adds positions: the two parameters, found by running it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec
from seepage.models.patches import Pass, PatchGrid, close, probe_of, run_probe
from seepage.protocol import trainable, training_mode

_ELSE = "use 'inverting_gradients'."


@dataclass(frozen=True, kw_only=True)
class EmbeddingLayout(PatchGrid):
    """Where the two gradients of the equation are found in an update."""

    weight: str
    """The patch embedding's weight."""
    position: str
    """The parameter whose gradient is that of the tokens."""
    first: int
    """Index of the first patch's row; a class token comes before it."""
    dim: int


def trace_embedding(model: nn.Module, spec: InputSpec, *, train: bool = False) -> EmbeddingLayout:
    """Find both parameters by running the model, or say why the equation does not hold (NotApplicable).

    train: whether clients run the model in train mode (dropout before the positions breaks the equation).
    """
    probe = probe_of(model, spec)
    names = {id(parameter): name for name, parameter in trainable(probe).items()}
    with torch.enable_grad(), training_mode(probe, train):
        seen = run_probe(probe, spec)
        embedding, patches = seen.patch_embedding()
        if id(embedding.weight) not in names:
            raise NotApplicable(f"the patch embedding is frozen, so its gradient is not sent: {_ELSE}")
        count, dim = patches.shape[-2] * patches.shape[-1], embedding.out_channels
        if count > dim:
            raise NotApplicable(
                f"a picture has {count} patches, but each of their values stands in {dim} equations only, "
                f"one for each dimension, so that they cannot be told apart: {_ELSE}"
            )
        position, first = _position(probe, seen, patches)
    return EmbeddingLayout(
        patch=(embedding.kernel_size[0], embedding.kernel_size[1]),
        grid=(patches.shape[-2], patches.shape[-1]),
        weight=names[id(embedding.weight)],
        position=position,
        first=first,
        dim=dim,
    )


def _position(model: nn.Module, seen: Pass, patches: Tensor) -> tuple[str, int]:
    """The parameter with a row for each token whose gradient is that of the embedded patches."""
    count, dim = patches[0, 0].numel(), patches.shape[1]
    rows = {
        name: p
        for name, p in trainable(model).items()
        if p.dim() >= 2 and p.shape[-1] == dim and p.numel() // dim >= count and p.shape[:-2].numel() == 1
    }
    at_patches, *at_rows = torch.autograd.grad(
        seen.random_loss(), [patches, *rows.values()], allow_unused=True, materialize_grads=True
    )
    wanted = at_patches.sum(dim=0).flatten(1).T  # (patches, dim)
    if not bool(wanted.any()):
        raise NotApplicable(
            "the model's output does not depend on its patches (a layer of zeros?), so no update shows "
            "anything of them: attack a later round."
        )
    for name, gradient in zip(rows, at_rows, strict=True):
        each = gradient.reshape(-1, dim)
        for first in range(len(each) - count + 1):
            if close(each[first : first + count], wanted):
                return name, first
    raise NotApplicable(
        "the model trains no position embedding that is added to the embedded patches as they are (fixed or "
        "relative positions, none, or a layer in between), so the gradient at the patches is not sent: "
        f"{_ELSE}"
    )
