"""How a server gets round secure aggregation, and what clients must demand (Boenisch et al., Section 10.4).

A secure sum proves that the sum was taken, not over whom. A server that adds a victim to all-zero fakes
learns the victim's update but for a factor. The remedy is a minimum number of contributors that prove to each
other that they are honest; even then the sum of m updates is all that protects, and no formal guarantee.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat

import torch
from torch import Tensor

from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Update
from seepage.protocol.aggregation import aggregate


def zero_fake(like: Update) -> Update:
    """A contribution of nothing, by somebody who claims as many examples as a real client has.

    >>> from seepage.core.types import UpdateKind
    >>> real = Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.ones(2)}, num_examples=3)
    >>> zero_fake(real).tensors["w"].tolist(), zero_fake(real).num_examples
    ([0.0, 0.0], 3)
    """
    nothing = {name: torch.zeros_like(t) for name, t in like.tensors.items()}
    return replace(like, tensors=nothing, buffers=None)


def secure_sum(
    honest: Iterable[Update],
    *,
    sizes: Sequence[int | None] | None = None,
    fakes: int = 0,
    minimum_honest: int = 1,
) -> Update:
    """What the server learns of a round: FedAvg's average over the honest updates and `fakes` empty ones.

    sizes: how many examples each honest client has; with them the updates may come from an iterator.
    minimum_honest: clients take part only if this many of them proved to each other that they contribute.
    Fakes cannot prove it. Fewer: nobody sends anything, and NotApplicable says so.

    >>> from seepage.core.types import UpdateKind
    >>> victim = Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.tensor([8.0])}, num_examples=1)
    >>> secure_sum([victim], fakes=3).tensors["w"].item()
    2.0
    """
    if sizes is None:
        honest = list(honest)
        sizes = [update.num_examples for update in honest]
    if not sizes:
        raise DataError("a secure sum needs at least one honest contributor, and there is none.")
    if fakes < 0 or minimum_honest < 1:
        raise DataError(
            f"fakes must be zero or more and minimum_honest at least 1, not {fakes} and {minimum_honest}."
        )
    if len(sizes) < minimum_honest:
        raise NotApplicable(
            f"the clients refuse this round: {len(sizes)} of {len(sizes) + fakes} contributors proved to "
            f"be honest, and they demand {minimum_honest}."
        )
    return aggregate(_and_fakes(honest, fakes), "secure_sum", sizes=[*sizes, *[sizes[0]] * fakes])


def _and_fakes(honest: Iterable[Update], fakes: int) -> Iterator[Update]:
    first: Update | None = None
    for update in honest:
        first = update if first is None else first
        yield update
    if first is not None and fakes:
        yield from repeat(zero_fake(first), fakes)


def without_fakes(
    honest: Iterable[Update],
    *,
    sizes: Sequence[int | None] | None = None,
    fakes: int = 0,
    minimum_honest: int = 1,
) -> Update:
    """What a server that added the fakes itself makes of the secure sum: the honest clients' average.

    It knows how many examples its fakes claimed, so it can undo their share.

    >>> from seepage.core.types import UpdateKind
    >>> victim = Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.tensor([8.0])}, num_examples=1)
    >>> without_fakes([victim], fakes=3).tensors["w"].item()
    8.0
    """
    if sizes is None:
        honest = list(honest)
        sizes = [update.num_examples for update in honest]
    summed = secure_sum(honest, sizes=sizes, fakes=fakes, minimum_honest=minimum_honest)
    if fakes == 0:
        return summed
    if summed.num_examples is None:
        return replace(summed, tensors=_times(summed, (len(sizes) + fakes) / len(sizes)))
    own = summed.num_examples - fakes * (sizes[0] or 0)
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
