"""DP-SGD on the client: local differential privacy, with no trust in the server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seepage.core.errors import ModelError
from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.accounting import uses_per_round
from seepage.defenses.calibration import settled_sigma
from seepage.defenses.clipping import check_norm
from seepage.defenses.entry import Deployment
from seepage.defenses.gaussian_noise import add_noise, check_sigma
from seepage.defenses.per_example import check_counts, clipped_sum
from seepage.defenses.randomness import noise_source
from seepage.protocol.local import local_update


def dp_sgd(
    *,
    clip: float = 1.0,
    sigma: float = 1.0,
    epsilon: float | None = None,
    user_examples: int = 1,
    at_once: int | None = None,
    cryptographic: bool = False,
    seed: int | None = None,
    deployment: Deployment | None = None,
) -> Defense:
    """Client: DP-SGD. Each example's gradient is clipped to `clip`, N(0, (sigma clip)^2) added to their sum.

    sigma is the noise multiplier, as accountants take it; the mean of n examples thus carries noise of
    sigma * clip / n. Under FedAvg every local step is noised. sigma = 0: per-example clipping alone.
    epsilon: in the place of sigma, what the whole deployment may cost (all rounds, at the audit's delta).
    user_examples: so many examples, one after another, are one user's: their mean gradient is clipped as one,
    and the promise is about a user. at_once: examples whose gradients are held at a time (a virtual batch),
    which changes memory and no figure; None: as many as 32 MB hold. cryptographic: noise from the system's
    own generator, for a deployment; a simulation, which gives a seed, must be repeatable and draws from that.

    The batch size is taken to be public; that of a Poisson sample is not, so its sum is divided by the
    expected size. Epsilon: `accounting.epsilon`, at the rate of the Poisson sample, else at sampling rate 1
    and `accounting.uses_per_round` compositions a round, for local mini-batches are not Poisson samples.

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
    around = deployment or Deployment()
    training, schedule = around.training, around.schedule
    uses = uses_per_round(training, schedule.batch_size)
    sigma = settled_sigma("dp_sgd", sigma, epsilon, schedule, uses=uses)
    check_sigma(sigma)
    check_counts(user_examples, at_once)
    _refuse_cut_users(user_examples, around)
    source = noise_source(seed, cryptographic=cryptographic)
    drawn = schedule.batch_size if schedule.poisson else None

    def private_gradients(
        model: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch, loss: str
    ) -> Sequence[Tensor]:
        clipped = clipped_sum(
            model, parameters, buffers, batch, loss, clip=clip, user_examples=user_examples, at_once=at_once
        )
        planted = around.canaries if around.canaries is not None and around.canaries.active else None
        noisy = add_noise(clipped if planted is None else planted.join(clipped, clip), sigma * clip, source)
        if planted is not None:
            planted.look(noisy, clipped)
        parts = -(-(drawn or len(batch)) // user_examples)
        if loss == "cross_entropy_sum":  # the other losses are means
            parts = 1
        return [noisy[name] / parts for name in parameters]

    def train(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        _refuse_batch_statistics(broadcast.model, training.batch_norm)
        update = local_update(broadcast, batch, training, gradients=private_gradients)
        # The size of a Poisson sample tells whether somebody is in it.
        return update if drawn is None else replace(update, num_examples=drawn)

    return train


def _refuse_cut_users(user_examples: int, around: Deployment) -> None:
    """A user whose examples fall into two batches would pay twice, and be counted once."""
    if user_examples == 1:
        return
    if around.schedule.poisson:
        raise ValueError("Poisson samples are drawn example by example: leave user_examples or them out")
    whole, training = around.schedule.batch_size, around.training
    step = training.batch_size or whole
    if step % user_examples or whole % user_examples or training.shuffle_seed is not None:
        raise ValueError(
            f"user_examples = {user_examples} would cut users apart: every batch of {step} must hold whole "
            "users, in their order"
        )


def _refuse_batch_statistics(model: nn.Module, batch_norm: str) -> None:
    if batch_norm == "train" and any(isinstance(m, _BatchNorm) for m in model.modules()):
        raise ModelError(
            "DP-SGD cannot bound one example's influence where BatchNorm mixes the examples of a batch: "
            "set batch_norm = 'eval', or use a model with GroupNorm."
        )
