"""Per-example gradients, clipped one by one and summed (Abadi et al. 2016, Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from seepage.core.types import Batch
from seepage.defenses.dense_clipping import dense_clipped_sum, is_plain_dense
from seepage.defenses.recurrent import taken_apart
from seepage.defenses.recurrent_clipping import has_recurrent, numbers_an_example, recurrent_clipped_sum
from seepage.protocol.local import batch_gradients, forward_loss

MOST_NUMBERS_AT_ONCE = 2**23
"""Gradient entries held at a time. Cost: 32 MB in float32. Larger blocks go back to the system after every
use (glibc's largest threshold), and getting them again costs more than taking a batch in parts."""

Tensors = dict[str, Tensor]


def per_example_gradients(
    model: nn.Module, parameters: Tensors, buffers: Tensors, batch: Batch, loss: str
) -> Tensors:
    """By parameter, (n, *shape): the gradient of each example's own loss.

    Models that vmap cannot handle (control flow that depends on values, packed sequences) are looped over.

    >>> model = nn.Linear(3, 2)
    >>> batch = Batch(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> per_example_gradients(model, dict(model.named_parameters()), {}, batch, "auto")["bias"].shape
    torch.Size([4, 2])
    """
    if batch.targets is not None:
        return loop_gradients(model, parameters, buffers, batch, loss)
    fixed = {name: p.detach() for name, p in parameters.items()}

    def loss_of_one(values: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return forward_loss(model, {**values, **buffers}, Batch(x.unsqueeze(0), y.unsqueeze(0)), loss)

    each = vmap(grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    try:
        with taken_apart(model):
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
    model: nn.Module,
    parameters: Tensors,
    buffers: Tensors,
    batch: Batch,
    loss: str,
    *,
    clip: float,
    user_examples: int = 1,
    at_once: int | None = None,
) -> Tensors:
    """The sum over the examples of g_i / max(1, ||g_i|| / clip), the norm taken over all parameters.

    user_examples: so many examples in a row are one user's, whose mean gradient is clipped as one (the last
    user may have fewer). at_once: users (examples) whose gradients are held at a time.
    """
    ghost = user_examples == 1 and is_plain_dense(model)
    recurrent = user_examples == 1 and has_recurrent(model)
    size = sum(p.numel() for p in parameters.values())
    if recurrent:
        size = min(size, numbers_an_example(model, parameters, batch))
    users = at_once or (len(batch) if ghost else max(1, MOST_NUMBERS_AT_ONCE // size))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    step = max(1, users) * user_examples
    for start in range(0, len(batch), step):
        part = batch.select(slice(start, start + step))
        sums: Tensors | None = None
        if ghost:
            sums = dense_clipped_sum(model, parameters, buffers, part, loss, clip=clip)
        elif recurrent:
            sums = recurrent_clipped_sum(model, parameters, buffers, part, loss, clip=clip)
        if sums is None:
            sums = _clipped(_by_user(model, parameters, buffers, part, loss, user_examples), clip)
        for name, found in sums.items():
            total[name] += found
    return {name: t.detach() for name, t in total.items()}


def _by_user(
    model: nn.Module, parameters: Tensors, buffers: Tensors, batch: Batch, loss: str, user_examples: int
) -> Tensors:
    """Each user's mean gradient, as its examples' own ones give it."""
    grads = per_example_gradients(model, parameters, buffers, batch, loss)
    if user_examples == 1:
        return grads
    return {
        name: torch.stack([one.mean(dim=0) for one in found.split(user_examples)])
        for name, found in grads.items()
    }


def _clipped(grads: Tensors, clip: float) -> Tensors:
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)  # (n,)
    factors = clip_factors(norms, clip)
    return {name: torch.tensordot(factors.to(found), found, dims=1) for name, found in grads.items()}


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """What brings each norm down to `clip` at most.

    >>> clip_factors(torch.tensor([0.0, 0.5, 4.0]), 1.0).tolist()
    [1.0, 1.0, 0.25]
    """
    return (clip / norms).clamp(max=1.0)  # an all-zero gradient: clip / 0 = inf, clamped to 1


def check_counts(user_examples: int, at_once: int | None) -> None:
    """Both count examples."""
    for name, value in (("user_examples", user_examples), ("at_once", at_once)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, not {value}")
