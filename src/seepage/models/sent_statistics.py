"""Batch norm in train mode as the client computed it, from the running statistics that it sends.

running = (1 - m) received + m batch, with momentum m and the unbiased variance: the batch's own mean and
variance follow. With them in place, a copy of the model computes in eval mode, for each example by itself,
what the client's model computed for it in train mode.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seepage.core.types import Exchange, LocalTraining
from seepage.models.hooks import modules_of

STATISTICS = 2e-6
"""Relative error of a batch's statistics. Derived: float32's rounding of the running ones, 6e-8, over the
least momentum that is taken."""
_LEAST_MOMENTUM = 0.03
"""Derived: `STATISTICS`, over float32's rounding. torch's own default is 0.1."""


def with_sent_statistics(exchange: Exchange, local: LocalTraining | None) -> nn.Module | None:
    """A copy whose batch norms hold the statistics of the one batch behind the update; None: not to be had.

    It takes one client that makes one step in train mode, says how many examples it has and sends buffers.

    >>> from seepage.core.types import Batch, Broadcast
    >>> from seepage.protocol import local_update
    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    >>> local = LocalTraining(batch_norm="train", send_buffers=True)
    >>> batch = Batch(torch.tensor([[1.0, 4.0], [3.0, 0.0]]), torch.tensor([0, 1]))
    >>> sent = local_update(Broadcast(model), batch, local)
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> norm = with_sent_statistics(seen, local)[0]
    >>> [[round(v, 4) for v in each.tolist()] for each in (norm.running_mean, norm.running_var)]
    [[2.0, 2.0], [1.0, 4.0]]
    """
    model, update = exchange.broadcast.model, exchange.update
    norms = modules_of(model, _BatchNorm)
    examples, buffers = update.num_examples, update.buffers
    if local is None or local.batch_norm != "train" or not norms or buffers is None:
        return None
    if len(exchange.clients) != 1 or examples is None or examples < 2 or local.num_steps(examples) != 1:
        return None
    mine = copy.deepcopy(model).eval()
    for name, norm in modules_of(mine, _BatchNorm).items():
        sent = [buffers.get(f"{name}.running_{which}") for which in ("mean", "var")]
        if not isinstance(norm, nn.BatchNorm1d) or any(each is None for each in sent):
            return None  # of pictures, the variance is one over an unknown number of places
        if _momentum(norm) < _LEAST_MOMENTUM:
            return None
        mean, variance = (
            _of_the_batch(before, after, norm)
            for before, after in zip((norm.running_mean, norm.running_var), sent, strict=True)
        )
        with torch.no_grad():
            norm.running_mean.copy_(mean)  # type: ignore[union-attr]
            norm.running_var.copy_(variance * (examples - 1) / examples)  # type: ignore[union-attr]
    return mine


def _momentum(norm: _BatchNorm) -> float:
    """The batch's share of the running statistics; without a fixed one, that of a mean over all batches."""
    seen = 0 if norm.num_batches_tracked is None else int(norm.num_batches_tracked)
    return 1 / (seen + 1) if norm.momentum is None else float(norm.momentum)


def _of_the_batch(before: Tensor | None, after: Tensor | None, norm: _BatchNorm) -> Tensor:
    assert before is not None and after is not None
    share = _momentum(norm)
    return ((after.double() - (1 - share) * before.double()) / share).to(before)
