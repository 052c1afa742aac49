"""How a server gets round secure aggregation, and what clients must demand (Boenisch et al., Section 10.4).

A secure sum proves that the sum was taken, not over whom. A server that adds a victim to all-zero fakes
learns the victim's update but for a factor. The remedy is a minimum number of contributors that prove to each
other that they are honest; even then the sum of m updates is all that protects, and no formal guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seepage.errors import DataError, NotApplicable
from seepage.federation.aggregation import aggregate
from seepage.types import Update


def zero_fake(like: Update) -> Update:
    """A contribution of nothing, by somebody who claims as many examples as a real client has.

    >>> from seepage.types import UpdateKind
    >>> real = Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.ones(2)}, num_examples=3)
    >>> zero_fake(real).tensors["w"].tolist(), zero_fake(real).num_examples
    ([0.0, 0.0], 3)
    """
    nothing = {name: torch.zeros_like(t) for name, t in like.tensors.items()}
    return replace(like, tensors=nothing, buffers=None)


def secure_sum(honest: Sequence[Update], *, fakes: int = 0, minimum_honest: int = 1) -> Update:
    """What the server learns of a round: FedAvg's average over the honest updates and `fakes` empty ones.

    minimum_honest: clients take part only if this many of them proved to each other that they contribute.
    Fakes cannot prove it. Fewer: nobody sends anything, and NotApplicable says so.

    >>> from seepage.types import UpdateKind
    >>> victim = Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.tensor([8.0])}, num_examples=1)
    >>> secure_sum([victim], fakes=3).tensors["w"].item()
    2.0
    """
    if not honest:
        raise DataError("a secure sum needs at least one honest contributor, and there is none.")
    if fakes < 0 or minimum_honest < 1:
        raise DataError(
            f"fakes must be zero or more and minimum_honest at least 1, not {fakes} and {minimum_honest}."
        )
    if len(honest) < minimum_honest:
        raise NotApplicable(
            f"the clients refuse this round: {len(honest)} of {len(honest) + fakes} contributors proved to "
            f"be honest, and they demand {minimum_honest}."
        )
    everybody = [*honest, *(zero_fake(honest[0]) for _ in range(fakes))]
    return aggregate(everybody, "secure_sum")


def without_fakes(honest: Sequence[Update], *, fakes: int = 0, minimum_honest: int = 1) -> Update:
    """What a server that added the fakes itself makes of the secure sum: the honest clients' average.

    It knows how many examples its fakes claimed, so it can undo their share.

    >>> from seepage.types import UpdateKind
    >>> victim = Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.tensor([8.0])}, num_examples=1)
    >>> without_fakes([victim], fakes=3).tensors["w"].item()
    8.0
    """
    summed = secure_sum(honest, fakes=fakes, minimum_honest=minimum_honest)
    if fakes == 0:
        return summed
    claimed = honest[0].num_examples
    if summed.num_examples is None or claimed is None:
        return replace(summed, tensors=_times(summed, (len(honest) + fakes) / len(honest)))
    own = summed.num_examples - fakes * claimed
    return replace(summed, tensors=_times(summed, summed.num_examples / own), num_examples=own)


def _times(update: Update, factor: float) -> dict[str, Tensor]:
    return {name: t * factor for name, t in update.tensors.items()}


def groups_with_fakes(clients: Sequence[int], minimum_honest: int) -> list[tuple[int, ...]]:
    """The smallest groups that a server may ask for, each filled up with fakes; nobody is left out.

    >>> groups_with_fakes([0, 1, 2, 3, 4], 2)
    [(0, 1), (2, 3, 4)]
    """
    number = max(1, len(clients) // minimum_honest)
    starts = [i * minimum_honest for i in range(number)]
    ends = [*starts[1:], len(clients)]
    return [tuple(clients[a:b]) for a, b in zip(starts, ends, strict=True)]
