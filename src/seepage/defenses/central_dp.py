"""Central differential privacy: clients clip, and the server is trusted to add the noise."""

from __future__ import annotations

import math
from dataclasses import replace

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.calibration import settled_sigma
from seepage.defenses.clipping import check_norm, clip_together
from seepage.defenses.entry import Deployment
from seepage.defenses.gaussian_noise import add_noise, check_sigma
from seepage.defenses.randomness import noise_generator


def central_dp(
    *,
    norm: float = 1.0,
    sigma: float = 1.0,
    epsilon: float | None = None,
    server_honest: bool = False,
    seed: int | None = None,
    deployment: Deployment | None = None,
) -> Defense:
    """Server: clients clip, the server adds noise to the aggregate - or, if dishonest, leaves it out.

    server_honest = false: what a server sees that omits the noise; only the clipping is left of the defense
    (Boenisch et al. 2021, Section 9.1). true: what everybody else sees of an honest server's aggregate, the
    mean over the clients plus N(0, (sigma norm / clients)^2). Privacy is for whole clients; epsilon is
    `accounting.epsilon` with one step a round, every client in every round. epsilon: as a setting, what the
    whole deployment may cost, in the place of sigma.

    The honest noise is put on in equal shares, one a client: the mean has the distribution it would have if
    the server drew it (clients have equally many examples in an audit).
    """
    check_norm("norm", norm)
    if server_honest and norm == math.inf:
        raise ValueError("norm must be finite: without a bound no amount of noise hides a client")
    around = deployment or Deployment()
    sigma = settled_sigma("central_dp", sigma, epsilon, around.schedule, client=True)
    check_sigma(sigma)
    if server_honest:
        _refuse_single_updates(around)
    share = sigma * norm / math.sqrt(around.clients) if server_honest else 0.0
    generator = noise_generator(seed)

    def clip_then_noise(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, batch)
        tensors = clip_together(update.tensors, norm)
        if share > 0:
            tensors = add_noise(tensors, share, generator)
        return replace(update, tensors=tensors)

    return clip_then_noise


def _refuse_single_updates(around: Deployment) -> None:
    """Noise that is added to an aggregate is in no single update, and a median would average it away."""
    if around.clients > 1 and around.sees_each_update:
        raise ValueError(
            "an honest server's noise is in the aggregate only, but here somebody sees each client's update: "
            "set aggregation = 'mean' with a threat model that sees aggregates only, or server_honest = false"
        )
    if around.aggregation == "median":
        raise ValueError("the noise is calibrated for a mean, not for aggregation = 'median': use 'mean'")
