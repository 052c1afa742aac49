"""What a client computes: a FedSGD gradient or a FedAvg weight delta. The received model is never changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.core.errors import DataError
from seepage.core.types import Batch, Broadcast, Defense, LocalStep, LocalTraining, Update, UpdateKind
from seepage.protocol.losses import LOSSES, NEXT_TOKEN, each_token, loss_name, loss_of_numbers
from seepage.protocol.masking import hidden

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
    if logits.ndim == 3 and batch.targets is not None:
        return each_token(logits, batch.targets)
    if batch.labels.is_floating_point():
        return LOSSES[loss_of_numbers(loss, batch.labels)](logits, batch.labels)
    name = loss_name(loss, logits.shape[-1], per_token=NEXT_TOKEN if logits.ndim == 3 else None)
    return LOSSES[name](logits, batch.inputs if name == NEXT_TOKEN else batch.labels)


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
    if len(batch) == 0 and gradients is batch_gradients:  # a sum with noise may be of none
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
    gradients = _under_autocast(gradients, training)
    with training_mode(model, training.batch_norm == "train"):
        if training.algorithm == "fedsgd":
            parameters: dict[str, Tensor] = dict(received)
            grads = gradients(model, parameters, buffers, hidden(batch, training.masking), training.loss)
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


def _under_autocast(gradients: Gradients, training: LocalTraining) -> Gradients:
    """Each step by itself: while autocast goes on it computes with the narrow copies of the first weights."""
    if not training.mixed_precision:
        return gradients

    def narrow(
        model: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch, loss: str
    ) -> Sequence[Tensor | None]:
        with torch.autocast(next(iter(parameters.values())).device.type, torch.bfloat16):
            return gradients(model, parameters, buffers, batch, loss)

    return narrow


def _delta(
    model: nn.Module,
    received: dict[str, nn.Parameter],
    buffers: dict[str, Tensor],
    batch: Batch,
    training: LocalTraining,
    gradients: Gradients,
) -> dict[str, Tensor]:
    """Several local steps; new weights minus received ones."""
    local = {name: p.detach().clone().requires_grad_() for name, p in received.items()}
    batches = local_batches(len(batch), training)
    groups = [batches[i : i + training.accumulation] for i in range(0, len(batches), training.accumulation)]
    optimiser = optimiser_of(local.values(), training)
    rate = schedule_of(optimiser, training, len(groups))
    for group in groups:
        optimiser.zero_grad()
        for index in group:
            step = hidden(batch.select(index.to(batch.labels.device)), training.masking)
            grads = gradients(model, dict(local), buffers, step, training.loss)
            for parameter, grad in zip(local.values(), grads, strict=True):
                # None makes an optimiser skip it: zeros would let weight decay shrink it
                if grad is not None:
                    share = grad if len(group) == 1 else grad / len(group)
                    parameter.grad = share if parameter.grad is None else parameter.grad + share
        if training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(local.values(), training.clip_norm)
        optimiser.step()
        rate.step()
    return {name: local[name].detach() - p.detach() for name, p in received.items()}


def optimiser_of(parameters: Iterable[Tensor], training: LocalTraining) -> torch.optim.Optimizer:
    """torch's own, as the protocol names it."""
    if training.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
        )
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=training.lr, weight_decay=training.weight_decay)


def schedule_of(
    optimiser: torch.optim.Optimizer, training: LocalTraining, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The rate of each step: constant, or down to zero after the last."""
    if training.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=max(1, steps))
    falls = training.schedule == "linear"
    return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda done: 1 - done / steps if falls else 1.0)


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
