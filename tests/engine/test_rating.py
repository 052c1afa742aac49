"""Blocks of exchanges add up, and texts are read as people read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.test_scoring import GUESS, RAW, SPEC, level, played, silent
from torch import Tensor

from seepage.core.types import Batch, InputSpec, Modality, Reconstruction
from seepage.engine import pairing
from seepage.engine.rating import Rating, known_places, rated, read_text
from seepage.engine.scoring import score
from seepage.engine.views import Views
from seepage.protocol import THREATS, Played, play

WORDS = ("hel", "##lo", "##w", "a", "<pad>")
TEXT = InputSpec(modality=Modality.TEXT, shape=(4,), num_classes=3, vocabulary=5, tokens=WORDS)


def found(values: Tensor, source: int, **rest: Tensor) -> Reconstruction:
    return Reconstruction(values=values, source=torch.full((len(values),), source), **rest)


def test_two_blocks_are_rated_as_one() -> None:
    """Claims of both count; the candidate that is the first of its block is one."""
    views = Views(played(), SPEC, "input", 1e-3)
    rating = Rating(views, ())
    rating.add(found(RAW[:2], 0, claimed=torch.ones(2, dtype=torch.bool)), torch.tensor([0, 1]))
    rating.add(found(RAW[2:], 1, claimed=torch.ones(1, dtype=torch.bool)), torch.tensor([2]))
    together = Reconstruction(
        values=RAW, source=torch.tensor([0, 0, 1]), claimed=torch.ones(3, dtype=torch.bool)
    )
    once, twice = rated(together, views, ()), rating.done()
    assert once.pairing.claimed_examples == twice.pairing.claimed_examples == 3
    assert once.pairing.candidate.tolist() == twice.pairing.candidate.tolist() == [0, 1, 2]
    assert {n: s.tolist() for n, s in once.scores.items()} == {n: s.tolist() for n, s in twice.scores.items()}


def test_a_block_of_a_table_has_the_units_of_the_whole_table() -> None:
    """Without a spread the unit of an error is that of all true rows, not of those in the block."""
    spec = replace(SPEC, spread=None, value_range=(0.0, 4.0))
    views = Views(played(), spec, "input", 1e-3)
    off = RAW + torch.tensor([1.0, 0.0])
    rating = Rating(views, ())
    rating.add(found(off[:2], 0), torch.tensor([0, 1]))
    rating.add(found(off[2:], 1), torch.tensor([2]))
    whole = rated(Reconstruction(values=off, source=torch.tensor([0, 0, 1])), views, ())
    assert rating.done().scores["rmse"].tolist() == pytest.approx(whole.scores["rmse"].tolist())


def test_examples_that_are_compared_in_parts_are_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    views = Views(played(), SPEC, "input", 1e-3)
    result = found(RAW[[1, 0]], 0)
    whole = rated(result, views, ()).pairing
    monkeypatch.setattr(pairing, "BLOCK", 1)
    # What is not written is seen: memory that was freed a moment ago still holds the right numbers.
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float: np.zeros(shape, dtype))
    parts = rated(result, Views(played(), SPEC, "input", 1e-3), ()).pairing
    assert parts.candidate.tolist() == whole.candidate.tolist() == [1, 0, -1]
    assert parts.exact.tolist() == whole.exact.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([0, 1, 2, 3], "hellow a"),
        ([3, 0, 1, 4], "a hello"),
        ([1, 3, -1, 7], "##lo a ? #7"),
        ([0, 3, 0, 1], "hel a hello"),
    ],
)
def test_marks_of_sub_words_are_dropped(ids: list[int], words: str) -> None:
    assert read_text(torch.tensor(ids), TEXT) == words


def test_a_word_is_known_where_all_its_tokens_are() -> None:
    known = torch.tensor([True, True, False, True, False])
    assert known_places(torch.tensor([3, 0, 1, 2]), TEXT, known) == (0,)
    assert known_places(torch.tensor([3, 0, 1, 4]), TEXT, known) == (0, 1)
    assert known_places(torch.tensor([3, 0, 1, 4]), TEXT, None) == ()


def texts_played(ids: Tensor) -> Played:
    batch = Batch(ids, torch.zeros(len(ids), dtype=torch.long))
    threat = THREATS["honest_but_curious"]
    return play(None, level(), lambda _: [batch], step=silent, threat=threat, max_rounds=1)


def test_tokens_that_are_known_to_be_there_are_scored_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of the four tokens that are there, and one that is not: F = 2 * 3 / (4 + 4)."""
    monkeypatch.setattr("seepage.engine.scoring.example_traits", lambda *_, **__: {"loss": torch.zeros(1)})
    ids = torch.tensor([[3, 0, 1, 2]])
    result = found(torch.tensor([[3, 0, 1, 1]]), 0)
    result = replace(result, words=torch.tensor([True, True, False, True, True]))
    scored = score(
        result,
        texts_played(ids),
        TEXT,
        guesses=replace(GUESS, values=torch.zeros(1, 4, dtype=torch.long)),
        public=None,
        honest=level(),
        tolerance=1e-3,
    )
    assert scored.batch_scores["words_known"] == 2 * 3 / 8
    (example,) = scored.examples
    assert (example.truth_text, example.reconstruction_text) == ("a hellow", "a hellolo")
    assert example.known_words == (0,)
