"""Masked words and classes of tokens are read behind the texts, and with them the whole update is proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.attacks.text.setting import as_set
from tests.models.families import VOCABULARY, built, spec, texts
from torch import Tensor

from seepage.attacks.text.embedding_rows import embedding_rows
from seepage.attacks.text.exact_text import exact_text
from seepage.attacks.text.targets import token_targets
from seepage.core.types import PADDING, Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining
from seepage.models.hugging_face import masking_of
from seepage.models.loading import build_model
from seepage.protocol import local_update
from seepage.protocol.masking import hidden

WORDS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(4, VOCABULARY)))
DESCRIBED = {
    "MaskedLM": replace(spec(), tokens=WORDS),
    "TokenClassification": replace(spec(num_classes=3), token_labels=True),
}
LOSS = {"MaskedLM": "masked_token", "TokenClassification": "token_class"}


def played(
    family: str, task: str, ids: Tensor, *, frozen: str = "-", **changes: Any
) -> tuple[Exchange, Knowledge, Batch]:
    described: InputSpec = DESCRIBED[task]
    model = build_model(built(family, task, initializer_range=0.2, **changes), described)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    batch = Batch(ids, torch.zeros(len(ids), dtype=torch.long))
    if task == "MaskedLM":
        torch.manual_seed(0)
        masking = masking_of(model, described)
        assert masking is not None
        batch = hidden(batch, replace(masking, share=0.4))  # so that a word is hidden in each
    else:
        targets = torch.where(ids == PADDING, PADDING, ids % 3)
        targets[:, 0] = PADDING
        batch = replace(batch, targets=targets)
    update = local_update(Broadcast(model), batch, LocalTraining())
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    return exchange, Knowledge(input=described, loss=LOSS[task], local=LocalTraining()), batch


@pytest.mark.parametrize("task", LOSS)
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_texts_are_read_with_what_was_hidden_in_them_and_proven(family: str, task: str) -> None:
    ids = texts(2, seed=3)
    exchange, known, batch = played(family, task, ids)
    read = token_targets(exchange.broadcast.model, batch.inputs, exchange.update.tensors)
    assert read is not None and batch.targets is not None and torch.equal(read, batch.targets)
    found = exact_text().run([exchange], known)
    assert as_set(found.values) == as_set(ids)
    assert found.complete and found.claimed is not None and bool(found.claimed.all())


def test_without_the_head_s_gradient_texts_are_shown_as_fed_and_not_claimed() -> None:
    exchange, known, batch = played("bert", "MaskedLM", texts(2, seed=3), frozen="cls")
    found = exact_text().run([exchange], known)
    assert as_set(found.values) == as_set(batch.inputs)
    assert found.complete is False and found.claimed is not None and not bool(found.claimed.any())
    assert any("with words hidden" in note for note in found.notes)


def test_the_mask_is_no_word_that_is_known() -> None:
    ids = texts(3, seed=3)
    exchange, known, batch = played("bert", "MaskedLM", ids, tie_word_embeddings=False)
    assert bool((batch.inputs == WORDS.index("[MASK]")).any())
    found = embedding_rows().run([exchange], known)
    assert found.words is not None and not bool(found.words[WORDS.index("[MASK]")])
    fed = set(batch.inputs.flatten().tolist()) - {PADDING, WORDS.index("[MASK]")}
    assert fed <= set(found.words.nonzero().flatten().tolist())
