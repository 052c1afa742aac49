"""Last tokens of a language model's texts where clients train adapters, and neither its head nor last layer.

What their targets send back to the head's input, u_i = W^T (softmax - e_y) / tokens for each text, reaches
all that is trained by one linear map J^T, so that it is the least squares solution of J^T u = what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from seepage.core.types import PADDING
from seepage.models.hooks import hooked
from seepage.protocol import training_mode
from seepage.protocol.losses import next_token

ROUNDS = 200
"""Of conjugate gradients (CGLS, Hestenes and Stiefel 1952). Cost: two passes back each."""
ENOUGH = 1e-4
"""Of what is left that may stay unexplained. Derived: rounding of float32 leaves about 1e-5 of it; rows of a
vocabulary lie about their own length apart."""


def left_by_known_targets(model: nn.Module, ids: Tensor, gradients: Mapping[str, Tensor]) -> list[Tensor]:
    """What is left of each gradient without all tokens but the last of each text.

    Left in the equations as unknowns, they would drown the few others in rounding: activations are alike.
    """
    tokens = int((ids != PADDING).sum())
    known = tokens - len(ids)
    sent = [tensor.detach() for tensor in gradients.values()]
    if known == 0:
        return sent
    weights = [model.get_parameter(name) for name in gradients]
    with torch.enable_grad(), training_mode(model, False):
        loss = next_token(model(ids), ids) * (known / tokens)
        found = torch.autograd.grad(loss, weights, materialize_grads=True)
    return [tensor - own for tensor, own in zip(sent, found, strict=True)]


def by_all_layers(model: nn.Module, ids: Tensor, gradients: Mapping[str, Tensor]) -> Tensor:
    """(n,) the token behind each of n texts (n, length)."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    there = ids != PADDING
    rows, ends = torch.arange(len(ids), device=ids.device), there.sum(dim=1) - 1
    left = left_by_known_targets(model, ids, gradients)
    weights = [model.get_parameter(name) for name in gradients]
    fed: list[Tensor] = []
    with (
        torch.enable_grad(),
        training_mode(model, False),
        hooked({"head": head}, before=lambda _name, _module, args: fed.append(args[0])),
    ):
        likely = model(ids)[rows, ends].detach().softmax(dim=-1)
        sent = _solved(fed[-1][rows, ends], weights, left)
    table = head.weight.detach()
    wanted = likely.to(table) @ table - int(there.sum()) * sent.to(table)  # W[y]
    return torch.cdist(wanted.float(), table.float()).argmin(dim=1)


def _solved(ends: Tensor, weights: Sequence[Tensor], left: Sequence[Tensor]) -> Tensor:
    """u like `ends` (n, width) with |J^T u - left| least."""
    probe = torch.zeros_like(ends, requires_grad=True)
    spread = torch.autograd.grad(ends, weights, probe, create_graph=True, materialize_grads=True)

    def back(u: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(ends, weights, u, retain_graph=True, materialize_grads=True))

    def forth(each: Sequence[Tensor]) -> Tensor:
        (found,) = torch.autograd.grad(spread, probe, each, retain_graph=True)
        return found

    u, rest = torch.zeros_like(ends), [one.to(w) for one, w in zip(left, weights, strict=True)]
    slope = forth(rest)
    along, size, whole = slope, slope.square().sum(), _square(rest)
    for _ in range(ROUNDS):
        moved = back(along)
        step = size / _square(moved)
        u, rest = u + step * along, [one - step * other for one, other in zip(rest, moved, strict=True)]
        slope = forth(rest)
        before, size = size, slope.square().sum()
        if not bool(step.isfinite()) or _square(rest) <= ENOUGH**2 * whole:
            break
        along = slope + size / before * along
    return u.detach()


def _square(each: Sequence[Tensor]) -> Tensor:
    return torch.stack([one.square().sum() for one in each]).sum()
