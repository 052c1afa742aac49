"""Discrete moves between texts: each one is kept if it lowers a score, and undone otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seepage.core.progress import Clock

Score = Callable[[Tensor], float]
"""(n, length) token ids to what is to be lowered."""


def rearranged(
    tokens: Tensor,
    score: Score,
    allowed: Sequence[int],
    *,
    tries: int,
    generator: torch.Generator,
    clock: Clock,
    enough: float = 0.0,
) -> tuple[Tensor, float]:
    """The tokens (n, length) after some tries of moves, and their score, which is never above the start's.

    enough: a score at which nothing more is tried.

    >>> start, wanted = torch.tensor([[1, 2, 3]]), torch.tensor([[3, 1, 2]])
    >>> chance, clock = torch.Generator().manual_seed(0), Clock(seconds=None)
    >>> score = lambda tokens: float((tokens != wanted).sum())
    >>> rearranged(start, score, [1, 2, 3], tries=60, generator=chance, clock=clock)
    (tensor([[3, 1, 2]]), 0.0)
    """
    best, value = tokens, score(tokens)
    for _ in range(tries):
        if value <= enough or clock.expired:
            break
        other = moved(best, allowed, generator)
        if not torch.equal(other, best) and (found := score(other)) < value:
            best, value = other, found
    return best, value


def moved(tokens: Tensor, allowed: Sequence[int], generator: torch.Generator) -> Tensor:
    """One move, drawn: of two words, a word, a passage, the beginning, or a word that comes or goes.

    The first four are those of LAMP (Balunovic et al. 2022b), two words of different texts
    included.
    """
    count, length = tokens.shape

    def draw(number: int) -> int:
        return int(torch.randint(number, (), generator=generator))

    texts: list[list[int]] = tokens.tolist()
    own, other = texts[draw(count)], texts[draw(count)]
    i, j, move = draw(length), draw(length), draw(6)
    # every token in question is in the batch, so that those which are in no text yet come first
    missing = sorted(set(allowed).difference(*texts)) if draw(2) else []
    word = (missing or allowed)[draw(len(missing or allowed))]
    if move == 0:  # swap two words
        own[i], other[j] = other[j], own[i]
    elif move == 1:  # a word to another place
        own.insert(j, own.pop(i))
    elif move == 2:  # a passage to another place
        low, high = min(i, j), max(i, j) + 1
        passage, rest = own[low:high], own[:low] + own[high:]
        place = draw(len(rest) + 1)
        own[:] = rest[:place] + passage + rest[place:]
    elif move == 3:  # the beginning behind the end
        own[:] = own[i:] + own[:i]
    elif move == 4:  # another word in the place of one
        own[i] = word
    else:  # a word goes, another one comes
        del own[i]
        own.insert(j, word)
    return torch.tensor(texts, dtype=tokens.dtype, device=tokens.device)
