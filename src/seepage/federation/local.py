"""What a client computes: a FedSGD gradient or a FedAvg weight delta. The received model is never changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.errors import DataError
from seepage.federation.losses import LOSSES, loss_name
from seepage.types import Batch, Broadcast, Defense, LocalStep, LocalTraining, Update, UpdateKind

Gradients = Callable[[nn.Module, dict[str, Tensor], dict[str, Tensor], Batch, str], Sequence[Tensor | None]]
"""(model, parameters, buffers, mini-batch, loss) to one gradient a parameter: what one local step uses."""


@contextmanager
def training_mode(model: nn.Module, train: bool) -> Iterator[None]:
    """Set the mode of every module, and put each one back as it was."""
    before = [(module, module.training) for module in model.modules()]
    model.train(train)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters a client trains and sends, by name; frozen ones are not sent."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def local_batches(num_examples: int, training: LocalTraining) -> list[Tensor]:
    """Index of the examples of every local step, in order; reshuffled each epoch when a seed is given.

    >>> [b.tolist() for b in local_batches(5, LocalTraining(algorithm="fedavg", batch_size=2))]
    [[0, 1], [2, 3], [4]]
    """
    if training.algorithm == "fedsgd":
        return [torch.arange(num_examples)]
    generator = None
    if training.shuffle_seed is not None:
        generator = torch.Generator().manual_seed(training.shuffle_seed)
    batches: list[Tensor] = []
    for _ in range(training.epochs):
        order = torch.arange(num_examples)
        if generator is not None:
            order = torch.randperm(num_examples, generator=generator)
        batches += order.split(training.batch_size or num_examples)
    return batches[: training.num_steps(num_examples)]


def forward_loss(model: nn.Module, tensors: dict[str, Tensor], batch: Batch, loss: str) -> Tensor:
    """The loss of a batch under these parameters and buffers."""
    try:
        logits = functional_call(model, tensors, (batch.inputs,))
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise DataError(
            "BatchNorm in train mode cannot work on a batch of one example: "
            "use a larger batch, or batch_norm = 'eval'."
        ) from None
    return LOSSES[loss_name(loss, logits.shape[-1])](logits, batch.labels)


def batch_gradients(
    model: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch, loss: str
) -> tuple[Tensor | None, ...]:
    """One gradient a parameter; None for one that the loss does not reach, as in `Tensor.grad`."""
    value = forward_loss(model, {**parameters, **buffers}, batch, loss)
    return torch.autograd.grad(value, list(parameters.values()), allow_unused=True)


def local_update(
    broadcast: Broadcast, batch: Batch, training: LocalTraining, *, gradients: Gradients = batch_gradients
) -> Update:
    """Train as the protocol says and return what the client sends.

    gradients: what each local step uses in place of the plain gradient of the batch (DP-SGD).

    >>> model = nn.Linear(3, 2)
    >>> batch = Batch(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> gradient = local_update(Broadcast(model), batch, LocalTraining())
    >>> delta = local_update(Broadcast(model), batch, LocalTraining(algorithm="fedavg", lr=0.5))
    >>> torch.allclose(delta.tensors["bias"], -0.5 * gradient.tensors["bias"], atol=1e-6)
    True
    """
    if len(batch) == 0:
        raise DataError("a client has no examples: lower the batch size or the number of clients.")
    model = broadcast.model
    received = trainable(model)
    if not received:
        raise DataError(
            "the model has no trainable parameter, so a client has nothing to send and nothing can be "
            "measured: unfreeze the layers that clients train."
        )
    # Copies of the buffers: train-mode BatchNorm moves them in place.
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    with training_mode(model, training.batch_norm == "train"):
        if training.algorithm == "fedsgd":
            parameters: dict[str, Tensor] = dict(received)
            grads = gradients(model, parameters, buffers, batch, training.loss)
            tensors = {
                name: torch.zeros_like(p) if grad is None else grad
                for (name, p), grad in zip(received.items(), grads, strict=True)
            }
            kind = UpdateKind.GRADIENT
        else:
            tensors = _delta(model, received, buffers, batch, training, gradients)
            kind = UpdateKind.DELTA
    return Update(
        kind=kind,
        tensors=tensors,
        num_examples=len(batch),
        buffers=buffers if training.send_buffers else None,
    )


def _delta(
    model: nn.Module,
    received: dict[str, nn.Parameter],
    buffers: dict[str, Tensor],
    batch: Batch,
    training: LocalTraining,
    gradients: Gradients,
) -> dict[str, Tensor]:
    """Several local SGD steps; new weights minus received ones."""
    local = {name: p.detach().clone().requires_grad_() for name, p in received.items()}
    optimiser = torch.optim.SGD(
        local.values(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    for index in local_batches(len(batch), training):
        step = batch.select(index.to(batch.labels.device))
        grads = gradients(model, dict(local), buffers, step, training.loss)
        for parameter, grad in zip(local.values(), grads, strict=True):
            parameter.grad = grad  # None makes SGD skip it: zeros would let weight decay shrink it
        optimiser.step()
    return {name: local[name].detach() - p.detach() for name, p in received.items()}


def client(training: LocalTraining, defenses: Sequence[Defense] = ()) -> LocalStep:
    """A client's work in one round: local training inside its defenses, the first one outermost."""

    def train(broadcast: Broadcast, batch: Batch) -> Update:
        return local_update(broadcast, batch, training)

    step: LocalStep = train
    for defense in reversed(defenses):
        step = _wrap(defense, step)
    return step


def _wrap(defense: Defense, inner: LocalStep) -> LocalStep:
    return lambda broadcast, batch: defense(broadcast, batch, inner)
