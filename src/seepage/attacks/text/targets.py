"""What each token of known texts was trained towards: its class, or the word behind a mask.

With the texts every activation is known. A layer's gradient is sum_i delta_i x a_i over the tokens: with no
more tokens than features least squares gives each delta_i: nothing where a token has no target.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from seepage.core.types import PADDING
from seepage.models.blocks import matrices
from seepage.models.hooks import hooked
from seepage.protocol import training_mode

NONE = 1e-3
"""A token's delta relative to the largest, at most, for it to have no target. Derived: rounding leaves 1e-5;
a target that the model gives a probability of .999 is taken for none, and the proof notices."""


def token_targets(model: nn.Module, ids: Tensor, gradients: Mapping[str, Tensor]) -> Tensor | None:
    """(n, length) targets, `PADDING` for none; None where the update does not tell.

    The last layer with a weight of its own is read: the classifier, or the dense layer before a tied head.
    What a target y sends back there is J^T (softmax - e_y), J the Jacobian of the logits, and y is what fits.
    """
    with torch.enable_grad(), training_mode(model, False):
        calls: list[tuple[str, Tensor, Tensor]] = []

        def seen(name: str, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            calls.append((name, args[0], output))

        with hooked(matrices(model), after=seen):
            logits = model(ids)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    uses = [id(p) for module in model.modules() for p in module._parameters.values() if p is not None]
    last = None
    for name, read, made in calls:
        module = model.get_submodule(name)
        weight = module.get_parameter("weight")
        if names[id(weight)] in gradients and uses.count(id(weight)) == 1 and isinstance(module, nn.Linear):
            last = (read, made, gradients[names[id(weight)]])
    there = ids != PADDING
    if last is None or int(there.sum()) > last[0].shape[-1]:
        return None
    read, made, gradient = last
    likely = _likely(model, gradients, names, logits.shape[-1])
    if likely is None:
        return None
    sent = torch.linalg.lstsq(
        read.detach().reshape(*ids.shape, -1)[there].double().T, gradient.detach().double().T
    ).solution  # (tokens, outputs of the layer)
    size = sent.norm(dim=1)
    has = size > NONE * size.max()

    def sent_back(weights: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(logits, made, weights.expand_as(logits), retain_graph=True)
        return found.reshape(*ids.shape, -1)[there].double()

    wanted = sent_back(logits.detach().softmax(dim=-1)) - int(has.sum()) * sent  # J^T e_y
    each = [sent_back(nn.functional.one_hot(y, logits.shape[-1]).to(logits)) for y in likely]
    apart = torch.stack([(one - wanted).norm(dim=1) for one in each])
    targets = torch.full_like(ids, PADDING)
    targets[there] = torch.where(has, likely[apart.argmin(dim=0)], PADDING)
    return targets


def _likely(
    model: nn.Module, gradients: Mapping[str, Tensor], names: Mapping[int, str], outputs: int
) -> Tensor | None:
    """All classes of a classifier; of a vocabulary the words whose bias is to rise: only targets are."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None:
        return torch.arange(outputs, device=next(model.parameters()).device) if outputs <= MOST else None
    bias = gradients.get(names.get(id(head.bias), "")) if isinstance(head.bias, Tensor) else None
    return None if bias is None else (bias.detach() < 0).nonzero().squeeze(1)


MOST = 512
"""Classes that are tried one by one. Cost: each is a pass back through the last layers."""
