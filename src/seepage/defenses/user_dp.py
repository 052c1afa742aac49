"""Differential privacy for a whole client (a user), who adds the noise and so trusts nobody."""

from __future__ import annotations

import math
from dataclasses import replace

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.calibration import settled_sigma
from seepage.defenses.clipping import check_norm, clip_together
from seepage.defenses.entry import Deployment
from seepage.defenses.gaussian_noise import add_noise, check_sigma
from seepage.defenses.randomness import noise_source


def user_dp(
    *,
    norm: float = 1.0,
    sigma: float = 1.0,
    epsilon: float | None = None,
    cryptographic: bool = False,
    seed: int | None = None,
    deployment: Deployment | None = None,
) -> Defense:
    """Client: clip the whole update to `norm` and add N(0, (sigma norm)^2), whatever training made it.

    The neighbours are a client that sends its update and one that sends none: everything it holds is
    protected at once, under any local training (user-level DP; McMahan et al. 2018 leave the noise to the
    server: `central_dp`). How many examples it holds is taken to be public. epsilon and cryptographic: as in
    `dp_sgd`.

    >>> import torch
    >>> from torch import nn
    >>> from seepage.core.types import LocalTraining
    >>> from seepage.protocol import client
    >>> batch = Batch(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> sent = client(LocalTraining(), [user_dp(norm=1e-9, sigma=0.0)])(Broadcast(nn.Linear(3, 2)), batch)
    >>> float(sent.tensors["weight"].norm()) <= 1e-9
    True
    """
    check_norm("norm", norm)
    if norm == math.inf:
        raise ValueError("norm must be finite: without a bound no amount of noise hides a client")
    around = deployment or Deployment()
    sigma = settled_sigma("user_dp", sigma, epsilon, around.schedule, client=True)
    check_sigma(sigma)
    source = noise_source(seed, cryptographic=cryptographic)

    def clip_then_noise(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, batch)
        noisy = add_noise(clip_together(update.tensors, norm), sigma * norm, source)
        return replace(update, tensors=noisy, buffers=None)  # statistics of a batch have had no noise

    return clip_then_noise
