"""The tokens of a batch, and the whole of a lone text, from rows of embeddings alone."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.reading.peeling.builders import sent
from tests.attacks.text.setting import answer, as_set, exchange_of
from tests.models.families import DECODERS, TEXTS, built, texts
from torch import nn

from seepage import testing
from seepage.attacks.text.embedding_rows import EmbeddingRows, embedding_rows
from seepage.core.errors import NotApplicable
from seepage.core.types import PADDING, Batch, InputSpec, Modality, Reconstruction


def _words(found: Reconstruction) -> set[int]:
    assert found.words is not None
    return set(found.words.nonzero().squeeze(1).tolist())


@pytest.mark.parametrize("family", TEXTS)
def test_the_tokens_of_a_batch_are_known_exactly(family: str) -> None:
    ids = texts(3)
    wanted = set(ids[ids != PADDING].tolist())
    assert _words(answer(embedding_rows(), family, ids)) == wanted
    if family in DECODERS:  # tied heads move every row, and heads of their own show what is last in a text
        assert _words(answer(embedding_rows(), family, ids, language_model=True)) == wanted


@pytest.mark.parametrize("family", ["gpt2", "bert", "roberta", "distilbert", "electra"])
def test_a_lone_text_is_read_from_the_rows_of_its_places(family: str) -> None:
    for ids in (texts(1), torch.tensor([[7, 9, 7, 7, 9, 20, PADDING]])):  # words twice, and padding
        found = answer(embedding_rows(), family, ids)
        assert as_set(found.values) == as_set(ids)
        assert found.claimed is not None and bool(found.claimed.all())


def test_two_texts_are_not_taken_for_one() -> None:
    found = answer(embedding_rows(), "gpt2", texts(2))
    assert len(found.values) == 0


def test_a_frozen_embedding_and_one_that_moves_everywhere_say_why() -> None:
    frozen = built("gpt2", "SequenceClassification")
    frozen.get_input_embeddings().requires_grad_(False)
    exchange, known = exchange_of(frozen, texts(1), language_model=False)
    with pytest.raises(NotApplicable, match="is frozen"):
        embedding_rows().run([exchange], known)
    with pytest.raises(NotApplicable, match="noise or weight decay"):
        answer(embedding_rows(), "gpt2", texts(1), algorithm="fedavg", weight_decay=0.1)


def test_the_attack_passes_the_checks_of_this_package() -> None:
    ids = torch.cat([texts(12, seed=seed) for seed in range(5)])
    data = (ids.masked_fill(ids == PADDING, 3), torch.arange(len(ids)) % 3)
    model = built("bert", "SequenceClassification")
    summary = testing.check_attack(EmbeddingRows, model=model, data=data)
    assert summary.scores["exact"].value == 1.0 and summary.scores["words_known"].value == 1.0


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_a_bag_of_embeddings_shows_the_same_rows(mode: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(50, 8, mode=mode), nn.Linear(8, 3))
    ids = torch.randint(50, (2, 9))
    spec = InputSpec(modality=Modality.TEXT, shape=(9,), num_classes=3, vocabulary=50)
    exchange, known = sent(model, Batch(ids, torch.tensor([0, 2])), spec)
    assert _words(embedding_rows().run([exchange], known)) == set(ids.flatten().tolist())
