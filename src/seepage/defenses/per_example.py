"""Per-example gradients, clipped one by one and summed (Abadi et al. 2016, Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from seepage.core.types import Batch
from seepage.defenses.dense_clipping import dense_clipped_sum, is_plain_dense
from seepage.protocol.local import batch_gradients, forward_loss

MOST_NUMBERS_AT_ONCE = 2**26
"""Gradient entries held at a time. Cost: 256 MB in float32; larger batches are taken in chunks."""

Tensors = dict[str, Tensor]


def per_example_gradients(
    model: nn.Module, parameters: Tensors, buffers: Tensors, batch: Batch, loss: str
) -> Tensors:
    """By parameter, (n, *shape): the gradient of each example's own loss.

    Models that vmap cannot handle (recurrent ones, control flow that depends on values) are looped over.

    >>> model = nn.Linear(3, 2)
    >>> batch = Batch(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> per_example_gradients(model, dict(model.named_parameters()), {}, batch, "auto")["bias"].shape
    torch.Size([4, 2])
    """
    fixed = {name: p.detach() for name, p in parameters.items()}

    def loss_of_one(values: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return forward_loss(model, {**values, **buffers}, Batch(x.unsqueeze(0), y.unsqueeze(0)), loss)

    each = vmap(grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    try:
        found: Tensors = each(fixed, batch.inputs, batch.labels)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        # What vmap has no rule for. A fault of the model itself comes up again, by its own name, in the loop.
        found = loop_gradients(model, parameters, buffers, batch, loss)
    return found


def loop_gradients(
    model: nn.Module, parameters: Tensors, buffers: Tensors, batch: Batch, loss: str
) -> Tensors:
    """The same, one backward pass an example: slow, and right for every model."""
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for i in range(len(batch)):
        grads = batch_gradients(model, parameters, buffers, batch.select(slice(i, i + 1)), loss)
        for (name, parameter), found in zip(parameters.items(), grads, strict=True):
            rows[name].append(torch.zeros_like(parameter) if found is None else found)
    return {name: torch.stack(found).detach() for name, found in rows.items()}


def clipped_sum(
    model: nn.Module, parameters: Tensors, buffers: Tensors, batch: Batch, loss: str, *, clip: float
) -> Tensors:
    """The sum over the examples of g_i / max(1, ||g_i|| / clip), the norm taken over all parameters."""
    if is_plain_dense(model):
        return dense_clipped_sum(model, parameters, buffers, batch, loss, clip=clip)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    size = sum(p.numel() for p in parameters.values())
    at_once = max(1, MOST_NUMBERS_AT_ONCE // size)
    for start in range(0, len(batch), at_once):
        part = batch.select(slice(start, start + at_once))
        grads = per_example_gradients(model, parameters, buffers, part, loss)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)  # (n,)
        factors = (clip / norms).clamp(max=1.0)  # an all-zero gradient: clip / 0 = inf, clamped to 1
        for name, found in grads.items():
            total[name] += torch.tensordot(factors.to(found), found, dims=1)
    return {name: t.detach() for name, t in total.items()}
