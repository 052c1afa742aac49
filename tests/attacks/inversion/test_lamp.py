"""Words are swapped, moved and replaced by what the update says, and never by more than that."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from seepage.attacks.inversion.bigrams import bigram_surprise
from seepage.attacks.inversion.distances import cosine_by_layer
from seepage.attacks.inversion.lamp import lamp
from seepage.attacks.inversion.priors import usual_length
from seepage.attacks.inversion.rearranging import moved, rearranged
from seepage.attacks.inversion.tag import tag
from seepage.core.errors import NotApplicable
from seepage.core.progress import Clock
from seepage.core.types import Batch, InputSpec, Knowledge, LocalTraining, Modality
from seepage.models.loading import build_model

from .setting import exchange_for, image_spec, knowledge, problem_for

ENDLESS = Clock(seconds=None)


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def order_blind() -> tuple[nn.Module, InputSpec]:
    """Classes by the mean of the words: every order of them sends the same update."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(30, 8), nn.Linear(8, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.words(tokens).mean(1).tanh())
            return logits

    torch.manual_seed(1)
    spec = InputSpec(modality=Modality.TEXT, shape=(5,), num_classes=3, vocabulary=30, value_range=None)
    return Bag().double(), spec


def test_words_that_tag_has_in_the_wrong_order_after_as_many_steps_are_put_right() -> None:
    """Of one start; with four times the steps `tag` has this text as well."""
    from tests.models.families import built, spec

    described = spec(num_classes=3)
    model = build_model(built("bert", "SequenceClassification"), described)
    batch = Batch(torch.tensor([[11, 42, 7, 30, 42, 19, 55]]), torch.tensor([1]))
    exchange, known = exchange_for(model, batch, LocalTraining()), knowledge(described, LocalTraining())
    searched = tag(steps=200).run([exchange], known)
    found = lamp(steps=50, moves=150, restarts=1).run([exchange], known)
    assert searched.values.tolist() != batch.inputs.tolist()
    assert found.values.tolist() == batch.inputs.tolist()
    assert any("among the 6 whose embedding the update moves" in note for note in found.notes)


def test_where_every_order_sends_the_same_update_public_texts_tell_it() -> None:
    model, spec = order_blind()
    batch = Batch(torch.tensor([[4, 9, 2, 17, 23]]), torch.tensor([2]))
    exchange, known = exchange_for(model, batch, LocalTraining()), knowledge(spec, LocalTraining())
    alone = lamp(steps=40).run([exchange], known)
    assert sorted(alone.values[0].tolist()) == sorted(batch.inputs[0].tolist())
    for public in ([0, 4, 9, 2, 17, 23], [23, 17, 2, 9, 4, 1]):
        texts = Batch(torch.tensor([public]), torch.tensor([0]))
        told = lamp(steps=40).run([exchange], replace(known, auxiliary=texts))
        assert told.values[0].tolist() == [word for word in public if word > 1]


def test_moves_never_raise_the_score_and_end_where_the_clock_does() -> None:
    values = torch.rand(10, 6, generator=chance(3))
    seen: list[float] = []

    def score(tokens: torch.Tensor) -> float:
        seen.append(float(values[tokens, torch.arange(6)].sum()))
        return seen[-1]

    start = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
    lowest = score(start)
    for tries in (0, 1, 10, 100, 10000):
        text, value = rearranged(start, score, range(10), tries=tries, generator=chance(), clock=ENDLESS)
        assert value == score(text) == min(seen) <= lowest  # the same draws: a longer walk goes on
        lowest = value
    assert lowest == pytest.approx(2 * float(values.min(dim=0).values.sum()), rel=1e-5)
    seen.clear()
    over = Clock(seconds=1e-9)
    text, value = rearranged(start, score, range(10), tries=1000, generator=chance(), clock=over)
    assert torch.equal(text, start) and len(seen) == 1


def test_moves_reach_every_order_and_bring_only_tokens_in_question() -> None:
    start, draw = torch.tensor([[1, 2, 3]]), chance()
    reached = {tuple(moved(start, [1, 2, 3], draw)[0].tolist()) for _ in range(300)}
    assert reached >= set(itertools.permutations([1, 2, 3]))
    two = torch.tensor([[1, 2, 3], [4, 5, 6]])
    others = [moved(two, [8, 9], draw) for _ in range(300)]
    assert all(
        one.shape == (2, 3) and set(one.flatten().tolist()) <= {1, 2, 3, 4, 5, 6, 8, 9} for one in others
    )
    assert any(1 in one[1] and 1 not in one[0] for one in others)  # words change texts


def test_bigrams_are_those_counted_by_hand() -> None:
    texts = [[0, 1, 2, 1], [0, 1, 1, -1], [3, 0, 1, 2]]
    surprise = bigram_surprise(torch.tensor(texts), 5)
    words = [word for text in texts for word in text if word >= 0]
    pairs = [p for text in texts for p in itertools.pairwise(text) if min(p) >= 0]

    def by_hand(a: int, b: int) -> float:
        alone = (words.count(b) + 1) / (len(words) + 5)
        return -math.log((pairs.count((a, b)) + alone) / (sum(p[0] == a for p in pairs) + 1))

    for text in itertools.product(range(5), repeat=3):
        expected = (by_hand(*text[:2]) + by_hand(*text[1:])) / 2
        assert surprise(torch.tensor([text])) == pytest.approx(expected, rel=1e-5)
    assert surprise(torch.tensor([[2]])) == 0.0
    for a in range(5):
        assert sum(math.exp(-surprise(torch.tensor([[a, b]]))) for b in range(5)) == pytest.approx(
            1, rel=1e-5
        )


def test_the_cosine_by_layer_leaves_layers_of_rounding_out() -> None:
    made = [torch.randn(3, 4, generator=chance(i)) for i in range(4)]
    cosines = [
        nn.functional.cosine_similarity(made[i].flatten(), made[i + 2].flatten(), dim=0) for i in range(2)
    ]
    expected = 1 - (3 * cosines[0] + cosines[1]) / 4
    torch.testing.assert_close(cosine_by_layer(made[:2], made[2:], [3.0, 1.0]), expected)
    with_silent = cosine_by_layer([*made[:2], made[0]], [*made[2:], 1e-9 * made[1]], [3.0, 1.0, 5.0])
    torch.testing.assert_close(with_silent, expected)


def test_the_usual_length_is_that_of_the_table() -> None:
    model, spec = order_blind()
    batch = Batch(torch.tensor([[4, 9, 2, 17, 23]]), torch.tensor([2]))
    prior = usual_length(0.5)(problem_for(model, spec, batch, LocalTraining()))
    assert prior is not None and usual_length(0.0)(problem_for(model, spec, batch, LocalTraining())) is None
    mean = model.words.weight.detach().norm(dim=1).mean()
    inputs = torch.zeros(2, 1, 5, 8, dtype=torch.float64)
    inputs[0, ..., 3], inputs[1, ..., 0] = mean, -3 * mean
    torch.testing.assert_close(prior(inputs), torch.tensor([0.0, 2.0], dtype=torch.float64))


def test_what_is_no_text_or_has_a_target_for_each_token_is_refused() -> None:
    model, spec = order_blind()
    with pytest.raises(
        NotApplicable, match="searches for texts: 'inverting_gradients' searches for pictures"
    ):
        lamp().check(model, Knowledge(input=image_spec()))
    with pytest.raises(NotApplicable, match="one for each token"):
        lamp().check(model, Knowledge(input=spec, loss="next_token"))
    for settings in ({"rounds": 0}, {"moves": -1}):
        with pytest.raises(ValueError, match="rounds must be at least 1 and moves 0 or more"):
            lamp(**settings)
    with pytest.raises(ValueError, match="language must be 0 or more"):
        lamp(language=-1.0)


def test_the_budget_holds_for_moves_as_well() -> None:
    model, spec = order_blind()
    batch = Batch(torch.tensor([[4, 9, 2, 17, 23]]), torch.tensor([2]))
    public = Batch(torch.tensor([[4, 9, 2]]), torch.tensor([0]))  # with which moves have no end of their own
    known = replace(knowledge(spec, LocalTraining()), auxiliary=public)
    clock = Clock(seconds=None)
    lamp(steps=5, moves=10**7, budget=1.0).run([exchange_for(model, batch, LocalTraining())], known)
    assert clock.elapsed < 3
