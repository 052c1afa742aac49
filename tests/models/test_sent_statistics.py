"""A copy that computes in eval mode what the client computed in train mode: against the client's own pass."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from seepage.core.types import Batch, Broadcast, Exchange, LocalTraining
from seepage.models.sent_statistics import with_sent_statistics
from seepage.protocol import local_update

TRAIN = LocalTraining(batch_norm="train", send_buffers=True)


def seen(model: nn.Module, batch: Batch, local: LocalTraining = TRAIN) -> Exchange:
    sent = local_update(Broadcast(model), batch, local)
    return Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))


def test_eval_mode_with_the_sent_statistics_is_train_mode_of_the_batch() -> None:
    torch.manual_seed(0)
    for momentum in (0.1, 0.5, None):
        norms = [nn.BatchNorm1d(7, momentum=momentum) for _ in range(2)]
        model = nn.Sequential(
            nn.Linear(4, 7), norms[0], nn.ReLU(), nn.Linear(7, 7), norms[1], nn.Linear(7, 3)
        )
        for norm in norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
        batch = Batch(torch.randn(9, 4), torch.randint(3, (9,)))
        mine = with_sent_statistics(seen(model, batch), TRAIN)
        assert mine is not None
        expected = model.train()(batch.inputs)
        assert torch.allclose(mine(batch.inputs), expected, atol=1e-4)


def test_what_does_not_tell_the_batch_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    batch = Batch(torch.randn(6, 4), torch.randint(3, (6,)))
    exchange = seen(model, batch)
    assert with_sent_statistics(exchange, TRAIN) is not None
    update = exchange.update
    assert with_sent_statistics(replace(exchange, update=replace(update, num_examples=None)), TRAIN) is None
    assert with_sent_statistics(replace(exchange, update=replace(update, buffers=None)), TRAIN) is None
    assert with_sent_statistics(replace(exchange, clients=(0, 1)), TRAIN) is None
    assert with_sent_statistics(exchange, replace(TRAIN, batch_norm="eval")) is None
    steps = replace(TRAIN, algorithm="fedavg", epochs=2)
    assert with_sent_statistics(seen(model, batch, steps), steps) is None
    model[1].momentum = 0.01
    assert with_sent_statistics(seen(model, batch), TRAIN) is None, "rounding would be most of it"
