"""A client's gradient of a Hugging Face model is the one of that library's own loss."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.models.families import DECODERS, LENGTH, SMALL, VOCABULARY, built, spec, texts

from seepage.core.errors import ModelError
from seepage.core.types import PADDING, Batch, Broadcast, LocalTraining
from seepage.models.loading import build_model, check_forward
from seepage.protocol import local_update


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("task", ["CausalLM", "SequenceClassification"])
def test_gradients_are_those_of_the_library_s_own_loss(family: str, task: str) -> None:
    if task == "CausalLM" and family not in DECODERS:
        pytest.skip("an encoder")
    described = spec(num_classes=1 if task == "CausalLM" else 3)
    own = built(family, task)
    model = build_model(copy.deepcopy(own), described)
    shape = check_forward(model, described)
    assert shape == ((2, LENGTH, VOCABULARY) if task == "CausalLM" else (2, 3))
    ids, classes = texts(), torch.tensor([0, 2, 1])
    update = local_update(Broadcast(model), Batch(ids, classes), LocalTraining())
    labels = ids if task == "CausalLM" else classes
    there = ids != PADDING
    output: Any = own.eval()(input_ids=ids.masked_fill(~there, 0), attention_mask=there.long(), labels=labels)
    output.loss.backward()
    for name, parameter in own.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert torch.allclose(update.tensors[name], wanted, atol=1e-6), name


def test_what_does_not_fit_is_said_in_one_sentence() -> None:
    with pytest.raises(ModelError, match="the texts have no classes"):
        check_forward(build_model(built("bert", "SequenceClassification"), spec()), spec())
    labels_tokens = build_model(built("bert", "TokenClassification"), spec())
    with pytest.raises(ModelError, match="at least 60 logits each"):
        check_forward(labels_tokens, spec())
    with pytest.raises(ModelError, match="mask at random"):
        build_model(built("bert", "MaskedLM"), spec())
    endless = built("gpt2", "CausalLM", pad_token_id=None, eos_token_id=None)
    with pytest.raises(ModelError, match=r"set config\.pad_token_id"):
        build_model(endless, spec())
