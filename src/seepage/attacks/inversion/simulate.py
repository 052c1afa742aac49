"""The update that candidate inputs would lead to: the client's own local training, kept differentiable.

Equal bit for bit to `protocol.local_update` on the same examples. Several local steps are played again on
the way back (see `replay`), so that memory hardly grows with their number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from seepage.attacks.inversion.embeddings import forward_from_embeddings
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.relaxed_labels import as_targets
from seepage.protocol import LOSSES, local_batches, loss_name, trainable
from seepage.protocol.optimising import Gradient, grouped, local_step
from seepage.protocol.replay import Replay

SOFTNESS = 0.3
"""Of Adam in a search, where it took one step: that is little more than a sign, and a sign has no slope (see
`optimising.local_step`). Several steps have one of their own. Tested: test_softness_lies_on_a_plateau."""


def simulated_update(
    problem: Problem, inputs: Tensor, labels: Tensor, *, functional: bool = False
) -> tuple[Tensor, ...]:
    """What the clients of `problem` would send if they held these inputs and labels.

    functional: take gradients by torch.func, which vmap needs, instead of autograd, which replay needs.
    The model must already be in the mode that clients train in.
    """
    if problem.one_gradient:
        return _client_update(problem, inputs, labels, functional=functional)
    sizes = problem.client_sizes
    parts = [
        _client_update(problem, x, y, functional=functional)
        for x, y in zip(inputs.split(sizes), labels.split(sizes), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    # the aggregate weights clients by their examples
    shares = [size / problem.num_examples for size in sizes]
    weighted = ([share * t for t in part] for share, part in zip(shares, parts, strict=True))
    return tuple(torch.stack(tensors).sum(dim=0) for tensors in zip(*weighted, strict=True))


def _client_update(
    problem: Problem, inputs: Tensor, labels: Tensor, *, functional: bool
) -> tuple[Tensor, ...]:
    gradient = _by_func(problem) if functional else _by_autograd(problem)
    received = trainable(problem.model)
    # detached and watched anew: the broadcast model's own parameters are never part of a graph
    weights = [received[name].detach() for name in problem.names]
    if not functional:
        weights = [weight.requires_grad_() for weight in weights]
    if problem.training.algorithm == "fedsgd":
        return gradient(weights, inputs, labels, True)
    return _delta(problem, gradient, weights, inputs, labels, replay=not functional)


def _delta(
    problem: Problem,
    gradient: Gradient,
    received: list[Tensor],
    inputs: Tensor,
    labels: Tensor,
    *,
    replay: bool,
) -> tuple[Tensor, ...]:
    training, count = problem.training, len(received)
    groups = grouped(local_batches(len(inputs), training), training)
    softness = SOFTNESS if len(groups) == 1 else 0.0
    step = local_step(gradient, training, count, groups, softness=softness)
    batches = [torch.cat(group) for group in groups]
    state: tuple[Tensor, ...] = tuple(received)
    if replay and len(batches) > 1:
        state = Replay(step, batches, state).final_state(inputs, labels)
    else:
        for number, index in enumerate(batches):
            where = index.to(inputs.device)
            state = step(number, inputs[where], labels[where], *state)
    return tuple(new - old for new, old in zip(state[:count], received, strict=True))


def loss_of(problem: Problem, weights: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """Of the clients' loss on these inputs under these weights."""
    model = problem.model
    # copies: train-mode batch norm moves its buffers in place
    buffers = {
        name: b.clone() if problem.training.batch_norm == "train" else b for name, b in model.named_buffers()
    }
    tensors = {**dict(zip(problem.names, weights, strict=True)), **buffers}
    if problem.embedding is None:
        logits: Tensor = functional_call(model, tensors, (inputs,))
    else:
        logits = forward_from_embeddings(model, problem.embedding, tensors, inputs)
    outputs = logits.shape[-1]
    name = loss_name(problem.training.loss, outputs, numbers=problem.spec.num_targets > 0)
    return LOSSES[name](logits, as_targets(labels, outputs, name))


def _by_autograd(problem: Problem) -> Gradient:
    def gradient(
        weights: Sequence[Tensor], inputs: Tensor, labels: Tensor, differentiable: bool
    ) -> tuple[Tensor, ...]:
        value = loss_of(problem, weights, inputs, labels)
        grads = torch.autograd.grad(value, list(weights), create_graph=differentiable, allow_unused=True)
        return tuple(torch.zeros_like(w) if g is None else g for w, g in zip(weights, grads, strict=True))

    return gradient


def _by_func(problem: Problem) -> Gradient:
    def gradient(
        weights: Sequence[Tensor], inputs: Tensor, labels: Tensor, differentiable: bool
    ) -> tuple[Tensor, ...]:
        found = torch.func.grad(lambda w: loss_of(problem, w, inputs, labels))(tuple(weights))
        return tuple(found)

    return gradient
