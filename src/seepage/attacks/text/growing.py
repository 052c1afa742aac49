"""Sentences grown token by token, each tested against the span of what the second block read.

Petrov et al. 2024 (DAGER), Section 4.2: in a decoder the features at a position depend on the tokens up to it
alone, so a prefix is right if and only if its last token's features lie in that span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.text.span import Span, Threshold
from seepage.core.errors import NotApplicable
from seepage.models.blocks import Point, read_at

VOCABULARY_CHUNK, PREFIX_CHUNK = 8192, 1024
"""Rows a pass. Cost: they bound the memory, and change no result."""
SAMPLE = 256
"""Tokens that show how far from a span what is not in it usually lies. Derived: a median over so many is
known within a tenth of a deviation."""
MOST_REPEATS = 4
"""Times that a text may begin with the same token. Cost: one more beginning for every text."""
TIMES_USUAL = 3.0
"""How much farther than usual a true beginning may lie from a soft span: at most 2.8 times as far (see
`span.SOFT_SHARE`), wrong ones 2.1 to 9 times. No plateau test yet."""
NEAR = 0.3
"""Of what passes, a distance from a soft span at which no wrong beginning was seen there: from .57 on. No
plateau test yet."""
MOST_PREFIXES = 512
"""At one position. Cost: time and memory; with more, the test tells nothing apart."""


@dataclass(frozen=True)
class Reader:
    """What a block reads, with a test for it at each of its points."""

    model: nn.Module
    points: list[Point]
    tests: list[Threshold]

    def passed(self, read: list[Tensor]) -> Tensor:
        """(n,) bool: the last position of (n, length, features) lies in the span at every point."""
        kept = torch.ones(len(read[0]), dtype=torch.bool, device=read[0].device)
        for test, features in zip(self.tests, read, strict=True):
            where = kept.nonzero().squeeze(1)
            kept[where] = test.passed(features[where, -1])
        return kept

    def distance(self, read: list[Tensor]) -> Tensor:
        """(n,) of the last position: its largest distance over the points, in units of what passes."""
        each = [t.span.residual(f[:, -1]) / t.tolerance for t, f in zip(self.tests, read, strict=True)]
        return torch.stack(each).amax(dim=0)

    @property
    def soft(self) -> bool:
        """Distances tell less and more likely beginnings, and no bound is known."""
        return any(test.span.soft for test in self.tests)


def reader(model: nn.Module, points: list[Point], spans: list[Span], sample: Tensor) -> Reader | None:
    """The points where features can be told apart; None where there is none.

    sample: (n,) tokens, nearly all of them in no sentence; to the second block each is one by itself.
    """
    read = read_at(model, points, input_ids=sample[:, None])
    tests = [Threshold.against(span, features[:, -1]) for span, features in zip(spans, read, strict=True)]
    usable = [(point, test) for point, test in zip(points, tests, strict=True) if test is not None]
    return Reader(model, [p for p, _ in usable], [t for _, t in usable]) if usable else None


def tokens_at(first: Reader, positions: int, vocabulary: int) -> Iterator[Tensor]:
    """For each position the tokens whose features the first block may have read there."""
    for kept in over_vocabulary(first.model, first.points, positions, vocabulary, first.passed):
        yield kept.nonzero().squeeze(1)


def over_vocabulary(
    model: nn.Module,
    points: list[Point],
    positions: int,
    vocabulary: int,
    judge: Callable[[list[Tensor]], Tensor],
) -> Iterator[Tensor]:
    """For each position (vocabulary,): what `judge` says of each token's features there, (n, 1, features).

    Where positions do not enter the features (rotary ones come later), one look is for all of them.
    """
    device = next(model.parameters()).device
    every = torch.arange(vocabulary, device=device)

    def look(position: int) -> Tensor:
        place = torch.full((1, 1), position, device=device)
        return torch.cat(
            [
                judge(
                    read_at(model, points, input_ids=some[:, None], position_ids=place.expand(len(some), 1))
                )
                for some in every.split(VOCABULARY_CHUNK)
            ]
        )

    two = torch.zeros(2, 1, dtype=torch.long, device=device)
    apart = read_at(model, points, input_ids=two, position_ids=torch.tensor([[0], [1]], device=device))
    alike = all(torch.equal(features[0], features[1]) for features in apart)
    found = look(0)
    yield found
    for position in range(1, positions):
        yield found if alike else look(position)


def grow(
    second: Reader, candidates: Iterable[Tensor], *, most: int | None = None
) -> list[tuple[float, list[int]]]:
    """The longest prefixes that pass, each behind its largest distance (0 where nothing but passing counts).

    most: how many texts there are, where that is known: of a soft span no more are kept, the nearest.
    """
    ended: list[tuple[float, list[int]]] = []
    prefixes: Tensor | None = None
    device = next(second.model.parameters()).device
    worst, usual = torch.zeros(1, device=device), torch.zeros(0, device=device)
    for tokens in candidates:
        extended, far, before = _extended(second, prefixes, tokens)
        if second.soft and len(far):
            so_far = torch.cat([usual, far.sort().values[:most]])
            near = far <= (TIMES_USUAL * so_far.median()).clamp_min(NEAR)
            extended, far, before = extended[near], far[near], before[near]
            usual = torch.cat([usual, far])
        if prefixes is not None:
            over = sorted(set(range(len(prefixes))) - set(before.tolist()))
            ended += [(float(worst[i]), prefixes[i].tolist()) for i in over]
        prefixes, worst = extended, torch.maximum(worst[before], far)
        if second.soft:
            # one token over and over comes beside all others, see `_repeats_too_often`
            same = (prefixes == prefixes[:, :1]).all(dim=1)
            order = (worst + torch.where(same, -torch.inf, 0.0)).argsort()
            nearest = order[: None if most is None else most + int(same.sum())]
            prefixes, worst = prefixes[nearest], worst[nearest]
        if len(prefixes) > MOST_PREFIXES:
            raise NotApplicable(
                f"more than {MOST_PREFIXES} beginnings of sentences fit the second block's gradient, so that "
                "it does not tell sentences apart: attack smaller batches."
            )
        if len(prefixes) == 0:
            break
    if prefixes is not None:
        ended += zip(worst.tolist(), prefixes.tolist(), strict=True)
    return _without_repeats(sorted(ended))[: most if second.soft else None]


def _extended(second: Reader, prefixes: Tensor | None, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(m, t + 1): prefixes (n, t) with one of the tokens behind them, where they pass; (m,) their distance,
    0 where nothing but passing counts; and (m,) which prefix each goes on from."""
    if len(tokens) == 0:
        return tokens.new_zeros(0, 1), tokens.new_zeros(0).float(), tokens
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    past = None if prefixes is None else _attended(second, prefixes)
    which = torch.arange(1 if prefixes is None else len(prefixes), device=tokens.device)
    added = tokens.repeat(len(which))
    which = which.repeat_interleave(len(tokens))
    for rows, some in zip(which.split(PREFIX_CHUNK), added.split(PREFIX_CHUNK), strict=True):
        inputs: dict[str, Any] = {"input_ids": some[:, None]}
        if past is not None and prefixes is not None:
            cache = _cache()
            cache.update(past[0][rows], past[1][rows], 0)
            there = some.new_ones(len(some), prefixes.shape[1] + 1)
            inputs |= {"attention_mask": there, "past_key_values": cache, "use_cache": True}
        read = read_at(second.model, second.points, **inputs)
        passed = second.passed(read)
        read = [features[passed] for features in read]
        far = second.distance(read) if second.soft else read[0].new_zeros(len(read[0]))
        begun = some.new_zeros(len(far), 0) if prefixes is None else prefixes[rows[passed]]
        kept.append((torch.cat([begun, some[passed][:, None]], dim=1), far, rows[passed]))
    found, far, before = (torch.cat(parts) for parts in zip(*kept, strict=True))
    fine = ~_repeats_too_often(found)
    return found[fine], far[fine], before[fine]


def _repeats_too_often(prefixes: Tensor) -> Tensor:
    """(n,) bool. Under rotary positions one token again and again looks like that token once: keys turn,
    and values, which are all the same, are averaged. So this is looked into for a few tokens only."""
    return (prefixes == prefixes[:, :1]).all(dim=1) & (prefixes.shape[1] > MOST_REPEATS)


def _without_repeats(ended: list[tuple[float, list[int]]]) -> list[tuple[float, list[int]]]:
    """Without what is one token over and over, where that token begins another text."""
    begins = [row[0] for _, row in ended if len(set(row)) > 1]
    return [(far, row) for far, row in ended if len(row) == 1 or len(set(row)) > 1 or row[0] not in begins]


def _attended(second: Reader, prefixes: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the first block for the prefixes: computed once, not for every token behind them."""
    past = _cache()
    there = torch.ones_like(prefixes)
    read_at(
        second.model,
        second.points,
        input_ids=prefixes,
        attention_mask=there,
        past_key_values=past,
        use_cache=True,
    )
    if not past.layers or past.layers[0].keys is None:
        raise NotApplicable(
            "the model's first block keeps no keys and values, as state-space models have none, so sentences "
            "cannot be grown through its attention: 'embedding_rows' reads its tokens, 'tag' searches."
        )
    return past.layers[0].keys, past.layers[0].values


def _cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()
