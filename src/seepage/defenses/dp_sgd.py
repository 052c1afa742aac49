"""DP-SGD on the client: local differential privacy, with no trust in the server."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seepage.core.errors import ModelError
from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.clipping import check_norm
from seepage.defenses.entry import Deployment
from seepage.defenses.gaussian_noise import add_noise, check_sigma
from seepage.defenses.per_example import clipped_sum
from seepage.defenses.randomness import noise_generator
from seepage.protocol.local import local_update


def dp_sgd(
    *, clip: float = 1.0, sigma: float = 1.0, seed: int | None = None, deployment: Deployment | None = None
) -> Defense:
    """Client: DP-SGD. Each example's gradient is clipped to `clip`, N(0, (sigma clip)^2) added to their sum.

    sigma is the noise multiplier, as accountants take it; the mean of n examples thus carries noise of
    sigma * clip / n. Under FedAvg every local step is noised. sigma = 0: per-example clipping alone.
    The batch size is taken to be public. Epsilon: `accounting.epsilon`, at sampling rate 1 and
    `accounting.uses_per_round` compositions a round, for local mini-batches are not Poisson samples.

    >>> import torch
    >>> from seepage.protocol import client
    >>> from seepage.core.types import LocalTraining
    >>> batch = Batch(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> received = Broadcast(nn.Linear(3, 2))
    >>> plain = client(LocalTraining())(received, batch)
    >>> same = client(LocalTraining(), [dp_sgd(clip=1e6, sigma=0.0)])(received, batch)
    >>> torch.allclose(plain.tensors["weight"], same.tensors["weight"], atol=1e-6)
    True
    """
    check_norm("clip", clip)
    if clip == math.inf:
        raise ValueError("clip must be finite: without a bound no amount of noise hides an example")
    check_sigma(sigma)
    training = (deployment or Deployment()).training
    generator = noise_generator(seed)

    def private_gradients(
        model: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch, loss: str
    ) -> Sequence[Tensor]:
        clipped = clipped_sum(model, parameters, buffers, batch, loss, clip=clip)
        noisy = add_noise(clipped, sigma * clip, generator)
        parts = 1 if loss == "cross_entropy_sum" else len(batch)  # the other losses are means
        return [noisy[name] / parts for name in parameters]

    def train(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        _refuse_batch_statistics(broadcast.model, training.batch_norm)
        return local_update(broadcast, batch, training, gradients=private_gradients)

    return train


def _refuse_batch_statistics(model: nn.Module, batch_norm: str) -> None:
    if batch_norm == "train" and any(isinstance(m, _BatchNorm) for m in model.modules()):
        raise ModelError(
            "DP-SGD cannot bound one example's influence where BatchNorm mixes the examples of a batch: "
            "set batch_norm = 'eval', or use a model with GroupNorm."
        )
