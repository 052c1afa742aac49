"""What APRIL must know of a vision transformer (Lu et al. 2021, Section 3), found by running it.

Nothing goes by name or class. One pass over dummy pictures shows which convolution cuts the picture into
patches, which linear layers read the embedded tokens z first (query, key and value, or one fused layer), and
which parameter is added to z (its gradient is dL/dz). The equation APRIL solves is then tested on the dummy
pictures themselves: a layer norm or a residual connection breaks it, whatever its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec
from seepage.models.patches import Pass, PatchGrid, close, probe_of, run_probe
from seepage.protocol import trainable, training_mode

_REMEDY = "attack a vision transformer without both in its first block, or use 'inverting_gradients'."


@dataclass(frozen=True, kw_only=True)
class TokenLayout(PatchGrid):
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


def trace_tokens(model: nn.Module, spec: InputSpec, *, train: bool = False) -> TokenLayout:
    """Where the tokens come from and who reads them, or NotApplicable with the reason.

    train: whether clients run the model in train mode (dropout on the tokens breaks the equation).
    """
    probe = probe_of(model, spec)
    with torch.enable_grad(), training_mode(probe, train):
        seen = run_probe(probe, spec)
        embedding, patches = seen.patch_embedding()
        readers, tokens = _readers(seen, embedding.out_channels)
        names = {id(parameter): name for name, parameter in trainable(probe).items()}
        if any(id(layer.weight) not in names for layer in readers):
            raise NotApplicable(
                "a linear layer that reads the tokens is frozen, so its gradient is not sent and APRIL's "
                "equations lack their right side: use 'inverting_gradients'."
            )
        position = _position(probe, seen, tokens, readers)
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


def _readers(seen: Pass, dim: int) -> tuple[list[nn.Linear], Tensor]:
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


def _position(model: nn.Module, seen: Pass, tokens: Tensor, readers: Sequence[nn.Linear]) -> str:
    """The parameter whose gradient is dL/dz, after a check that dL/dz comes through the readers alone."""
    wanted = tokens.shape[1:]
    candidates = {name: p for name, p in trainable(model).items() if p.shape in (wanted, (1, *wanted))}
    if not candidates:
        raise NotApplicable(
            "the model trains no position embedding of one vector for each token, so the gradient at the "
            "tokens is not sent and APRIL cannot invert it: use 'inverting_gradients'."
        )
    weights = [layer.weight for layer in readers]
    at_tokens, *rest = torch.autograd.grad(
        seen.random_loss(),
        [tokens, *weights, *candidates.values()],
        allow_unused=True,
        materialize_grads=True,
    )
    at_weights, at_positions = rest[: len(weights)], rest[len(weights) :]
    total = at_tokens.sum(dim=0)
    if not bool(total.any()):
        raise NotApplicable(
            "the model's output does not depend on its tokens (a layer of zeros?), so no update shows "
            "anything of them: attack a later round."
        )
    position = next(
        (name for name, g in zip(candidates, at_positions, strict=True) if close(g.reshape(wanted), total)),
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
    if not close(left, right):
        raise NotApplicable(
            "gradients reach the tokens past the first attention as well (a residual connection), so APRIL's "
            f"equations do not hold: {_REMEDY}"
        )
    return position


def _first_patch(tokens: Tensor, patches: Tensor) -> int:
    """Where the patches begin: there z minus the patch embedding is the same for all pictures."""
    flat = patches.flatten(2).transpose(1, 2)  # (n, patches, dim)
    for first in range(tokens.shape[1] - flat.shape[1] + 1):
        rest = tokens.clone()
        rest[:, first : first + flat.shape[1]] -= flat
        if close(rest[0], rest[1]):
            return first
    raise NotApplicable(
        "the tokens at the first attention are not the patch embeddings plus something known, so pixels "
        "cannot be read from them: use 'inverting_gradients'."
    )
