"""Canaries inside a private training: what its releases show of one example (Andrew et al. 2023).

A canary is an example whose gradient has a random direction, of a norm far above the clipping bound. It
joins the real examples: it is drawn as they are, clipped as they are, and lies under the same noise. Each
canary has a part of the release for itself, so that none disturbs another, and whatever stands in that part
without it is independent of its direction.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from seepage.defenses.entry import Schedule
from seepage.defenses.per_example import clip_factors

LONG = 1e3
"""The norm that canaries come with. Derived: far beyond any clipping bound in use (1 or so), so that clipping
is audited too."""
FEWEST, NARROWEST = 10, 8
"""Canaries that a bound can be counted from, and numbers of the release that one needs for itself. A choice:
with fewer canaries a bound of 95 % says nothing, and in fewer numbers random directions are alike by
chance."""

Tensors = dict[str, Tensor]


def random_directions(count: int, width: int, seed: int) -> Tensor:
    """(count, width) unit vectors. Not by torch's generator: with one seed that would draw the mechanism's
    own noise as a canary.

    >>> random_directions(3, 5, 0).norm(dim=1).round(decimals=4).tolist()
    [1.0, 1.0, 1.0]
    """
    drawn = np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)
    directions: Tensor = torch.from_numpy(drawn)
    directions /= directions.norm(dim=1, keepdim=True)
    return directions


class Canaries:
    """The canaries of one client, and the sum of what its releases hold beside the real examples.

    A server that knows all other examples can subtract them, which is what differential privacy is about; a
    canary's own share and the noise are left.
    """

    def __init__(self, count: int, size: int, *, schedule: Schedule, seed: int) -> None:
        """size: numbers in a release. schedule: how often an example is used."""
        width = size // max(1, count)
        if count < FEWEST or width < NARROWEST:
            raise ValueError(
                f"{count} canaries do not fit into releases of {size} numbers: take at least {FEWEST}, and "
                f"at most one for every {NARROWEST} numbers"
            )
        self.directions = random_directions(count, width, seed)
        self.seen = torch.zeros(count, width, dtype=torch.float64)
        self.active = True
        """Whether the client that is now at work has them."""
        self._schedule, self._releases = schedule, 0
        self._chance = np.random.default_rng([seed, 1])
        self._theirs = True
        """Whether the last release may hold them: whose turn it was is known, who was sampled is not."""

    @property
    def sampled(self) -> tuple[int, float]:
        """Releases so far, and the chance of a canary to be in one."""
        return self._releases, self._schedule.sampling_rate

    def join(self, clipped: Tensors, clip: float) -> Tensors:
        """The sum of clipped gradients with the canaries that this round draws."""
        count = len(self.directions)
        if self._schedule.poisson:
            drawn = self._chance.random(count) < self._schedule.sampling_rate
        else:  # they are in the first of the batches that take turns
            self._theirs = self._releases % self._schedule.turns == 0
            drawn = np.full(count, self._theirs)
        self._releases += 1
        norms = LONG * self.directions.norm(dim=1)
        factors = LONG * clip_factors(norms, clip) * torch.from_numpy(drawn)
        planted = (factors.unsqueeze(1) * self.directions).flatten()
        found, start = {}, 0
        for name, tensor in clipped.items():
            mine = planted[start : start + tensor.numel()]
            mine = torch.cat([mine, mine.new_zeros(tensor.numel() - len(mine))])
            found[name] = tensor + mine.view_as(tensor).to(tensor)
            start += tensor.numel()
        return found

    def look(self, released: Tensors, clipped: Tensors) -> None:
        """What a release holds beside the real examples."""
        beside = torch.cat([(released[name] - tensor).flatten() for name, tensor in clipped.items()])
        if self._theirs:
            self.seen += beside[: self.seen.numel()].view_as(self.seen).to(self.seen)
