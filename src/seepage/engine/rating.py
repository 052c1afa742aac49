"""Candidates matched with the private examples and scored, block by block as they come.

What stays of a block is a few numbers for each example and, of some, the values: see `kept`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.prior_only import flat_guess
from seepage.core.types import INPUT_SPACE, PADDING, InputSpec, Modality, Reconstruction
from seepage.engine.columns import right_values
from seepage.engine.kept import Kept
from seepage.engine.pairing import Pairing, pair
from seepage.engine.views import Views, raw_candidates
from seepage.metrics import Metric, score_examples, score_requested
from seepage.metrics.pairs import BLOCK
from seepage.metrics.text import PADDING_WORDS, find_padding


@dataclass(frozen=True)
class Rated:
    """What became of n examples."""

    pairing: Pairing
    scores: dict[str, Tensor]
    """(n,) of each metric."""
    rows: Tensor
    """(m,) examples whose candidates were kept, ascending."""
    values: Tensor
    """(m, ...) these candidates; a flat guess where there was none."""
    hits: tuple[int, ...] = ()
    """Of a table: how many values of each column are right."""
    texts: tuple[str | None, ...] = ()
    """Of texts: what was read; None where there was no candidate."""


def rated(result: Reconstruction, views: Views, metrics: Sequence[Metric]) -> Rated:
    """Match the candidates of `result` and score them."""
    rating = Rating(views, metrics)
    rating.add(result, torch.arange(len(views.played.truth)))
    return rating.done()


class Rating:
    """Takes what an attack finds in some exchanges after another. No example is behind two blocks."""

    def __init__(self, views: Views, metrics: Sequence[Metric]) -> None:
        self.views, self._metrics = views, metrics
        n = len(views.played.truth)
        self._candidate, self._exchange = torch.full((n,), -1), torch.zeros(n, dtype=torch.long)
        self._exact, self._held = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
        self._right: list[Tensor] = []
        self._claimed = 0
        self._scores: dict[str, Tensor] = {}
        modality, inputs = views.spec.modality, views.space == INPUT_SPACE
        self._kept = Kept(n, modality)
        self._table = inputs and modality is Modality.TABULAR
        self._hits = torch.zeros((), dtype=torch.long)
        self._texts: list[str | None] = [None] * n if inputs and modality is Modality.TEXT else []

    def add(self, result: Reconstruction, rows: Tensor) -> None:
        """The next block, which is about these rows of the truth."""
        views, before = self.views, sum(map(len, self._right))
        candidates = raw_candidates(result, views.spec, views.played.truth.inputs.dtype)
        pairing = pair(result, candidates, views)
        self._right.append(pairing.right)
        self._claimed += pairing.claimed_examples
        chosen = pairing.candidate[rows]
        self._candidate[rows] = torch.where(chosen < 0, chosen, chosen + before)
        self._exchange[rows], self._exact[rows] = pairing.exchange[rows], pairing.exact[rows]
        self._held[rows] = pairing.held[rows]
        for some in rows.split(max(1, BLOCK // max(1, candidates[:1].numel()))):
            self._score(candidates, pairing, some)

    def _score(self, candidates: Tensor, pairing: Pairing, rows: Tensor) -> None:
        views, chosen = self.views, pairing.candidate[rows]
        truth = views.shown(pairing.exchange[rows], rows)
        values = _matched(candidates, chosen, _flat_guess(truth, views.space, views.spec))
        # exact by the pairing: an example without a candidate never is, whatever the flat guess scores
        scores = scores_of(values, truth, views, self._metrics, exact=pairing.exact[rows])
        for name, score in scores.items():
            every = self._scores.setdefault(name, score.new_empty(len(self._exact)))
            every[rows] = score
        self._kept.add(rows, values, recovered=chosen >= 0, scores=scores)
        if self._table:
            found = chosen >= 0
            self._hits = self._hits + right_values(values[found], truth[found], views.spec, views.of(0).rule)
        if self._texts:
            for row, ids, candidate in zip(rows.tolist(), values, chosen.tolist(), strict=True):
                self._texts[row] = read_text(ids, views.spec) if candidate >= 0 else None

    def done(self) -> Rated:
        pairing = Pairing(
            candidate=self._candidate,
            exact=self._exact,
            exchange=self._exchange,
            right=torch.cat(self._right),
            held=self._held,
            claimed_examples=self._claimed,
        )
        hits = tuple(self._hits.tolist()) if self._table else ()
        return Rated(pairing, self._scores, *self._kept.done(), hits, tuple(self._texts))


def scores_of(
    values: Tensor, truth: Tensor, views: Views, metrics: Sequence[Metric], *, exact: Tensor
) -> dict[str, Tensor]:
    """(n,) of each metric, the requested ones last."""
    usual = score_examples(
        values, truth, views.spec, space=views.space, exact=exact, reference=_reference(truth, views)
    )
    return usual | score_requested(metrics, values, truth, views.spec, space=views.space)


def _reference(truth: Tensor, views: Views) -> Tensor | None:
    """All true examples, where `truth` is a part of them and the unit of errors is taken from the data."""
    unit = views.spec.spread if views.spec.modality is Modality.TABULAR else views.spec.value_range
    if unit is not None or views.space != INPUT_SPACE or len(truth) == len(views.played.truth):
        return None
    return views.of(0).values


def _matched(candidates: Tensor, chosen: Tensor, flat: Tensor) -> Tensor:
    """(n, ...) the candidate of each example, or the flat guess where the `chosen` (n,) one is -1."""
    if bool((chosen >= 0).all()):
        return candidates[chosen]
    values = flat.to(candidates.dtype).clone()
    values[chosen >= 0] = candidates[chosen[chosen >= 0]]
    return values


def _flat_guess(truth: Tensor, space: str, spec: InputSpec) -> Tensor:
    """Where nothing was recovered: mid-range for inputs (the public mean of a standardised table's columns),
    zero for tokens and features."""
    if space != INPUT_SPACE or spec.modality is Modality.TEXT:
        return torch.zeros_like(truth)
    return flat_guess(spec).expand_as(truth)


def read_text(ids: Tensor, spec: InputSpec) -> str:
    """Token ids as words, padding left out; the ids themselves where there is no word list.

    >>> from seepage.core.types import InputSpec, Modality
    >>> words = ("<pad>", "a", "b")
    >>> spec = InputSpec(modality=Modality.TEXT, shape=(3,), num_classes=2, vocabulary=3, tokens=words)
    >>> read_text(torch.tensor([1, -1, 2]), spec)  # a negative id: no token was recognised there
    'a ? b'
    """
    return " ".join(word for word, _ in _words(ids, spec))


def _words(ids: Tensor, spec: InputSpec) -> list[tuple[str, list[int]]]:
    """Each word with its tokens: the marks of sub-word tokenizers are dropped, as people read them."""
    known, left_out = range(len(spec.tokens)), (PADDING, find_padding(spec.tokens or PADDING_WORDS))
    found: list[tuple[str, list[int]]] = []
    for i in ids.tolist():
        if i in left_out:
            continue
        word = "?" if i < 0 else spec.tokens[i] if i in known else f"#{i}"
        if word.startswith("##") and found:
            found[-1] = (found[-1][0] + word[2:], [*found[-1][1], i])
        else:
            found.append((word, [i]))
    return found


def known_places(ids: Tensor, spec: InputSpec, known: Tensor | None) -> tuple[int, ...]:
    """Which words of a text are made of tokens that are known, (vocabulary,) bool, to be in the batch."""
    if known is None:
        return ()
    there = known.tolist()
    return tuple(
        place for place, (_, own) in enumerate(_words(ids, spec)) if all(i >= 0 and there[i] for i in own)
    )
