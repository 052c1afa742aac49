"""Whole batches of encoders come back exactly, and where they do not nothing is claimed."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.text.setting import answer, as_set, exchange_of
from tests.models.families import built, texts

from seepage import testing
from seepage.attacks.text.exact_text import ExactText, exact_text
from seepage.core.errors import NotApplicable
from seepage.core.types import PADDING

ENCODERS = ("bert", "roberta", "distilbert", "electra")


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_text_of_a_batch_is_read_and_proven(family: str, seed: int) -> None:
    # of different lengths, so that padding is masked; ELECTRA here has 16 features of 2 x 7 tokens
    ids = texts(2 if family == "electra" else 3, seed=seed)
    model = built(family, "SequenceClassification", initializer_range=0.2, seed=seed)
    exchange, known = exchange_of(model, ids, language_model=False)
    found = exact_text().run([exchange], known)
    assert as_set(found.values) == as_set(ids)
    assert found.complete and found.claimed is not None and bool(found.claimed.all())
    assert found.label_counts is not None and found.label_counts.tolist()[: len(ids)] == [1] * len(ids)


def test_words_in_several_sentences_and_places_are_put_where_they_belong() -> None:
    """5 begins and 6 ends all of them, 9 stands at two places, and 7 and 9 make a rectangle."""
    ids = torch.tensor([[5, 7, 20, 9, 21, 30, 6], [5, 9, 22, 7, 23, 31, 6], [5, 24, 25, 26, 27, 32, 6]])
    model = built("bert", "SequenceClassification", initializer_range=0.2)
    exchange, known = exchange_of(model, ids, language_model=False)
    found = exact_text().run([exchange], known)
    assert as_set(found.values) == as_set(ids) and found.complete


def test_frozen_embeddings_leave_the_span_to_decide() -> None:
    ids = texts(2)
    model = built("bert", "SequenceClassification", initializer_range=0.2)
    for parameter in model.get_submodule("bert.embeddings").parameters():
        parameter.requires_grad_(False)
    exchange, known = exchange_of(model, ids, language_model=False)
    assert not any("embeddings" in name for name in exchange.update.tensors)
    found = exact_text().run([exchange], known)
    assert as_set(found.values) == as_set(ids) and found.complete


def test_more_tokens_than_features_say_why() -> None:
    with pytest.raises(NotApplicable, match="no gap in its spectrum"):
        answer(exact_text(), "bert", texts(12))


def test_the_attack_passes_the_checks_of_this_package() -> None:
    ids = torch.cat([texts(12, seed=seed) for seed in range(5)])
    ids[ids == PADDING] = 3
    data = (ids, torch.arange(len(ids)) % 3)
    model = built("bert", "SequenceClassification", initializer_range=0.2)
    summary = testing.check_attack(ExactText, model=model, data=data, batch_size=2)
    assert summary.claims_right == summary.claims > 0
