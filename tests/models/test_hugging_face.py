"""A client's gradient of a Hugging Face model is the one of that library's own loss."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.families import (
    DECODERS,
    LENGTH,
    PICTURES,
    TEXTS,
    VOCABULARY,
    built,
    picture_model,
    picture_spec,
    spec,
    texts,
)

from seepage.core.errors import ModelError, NotApplicable
from seepage.core.types import PADDING, Batch, Broadcast, Knowledge, LocalTraining
from seepage.models.hugging_face import masking_of
from seepage.models.loading import build_model, check_forward
from seepage.protocol import local_update
from seepage.protocol.masking import hidden

ENCODERS = tuple(family for family in TEXTS if family not in DECODERS)
TASKS = [
    *[(family, "SequenceClassification") for family in TEXTS],
    *[(family, "CausalLM") for family in DECODERS],
    *[(family, task) for family in ENCODERS for task in ("MaskedLM", "TokenClassification")],
]
WORDS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(4, VOCABULARY)))


@pytest.mark.parametrize(("family", "task"), TASKS)
def test_gradients_are_those_of_the_library_s_own_loss(family: str, task: str) -> None:
    described = spec(num_classes=3 if task.endswith("Classification") else 1)
    if task == "TokenClassification":
        described = replace(described, token_labels=True)
    own = built(family, task)
    model = build_model(copy.deepcopy(own), described)
    outputs = (3,) if task == "SequenceClassification" else (LENGTH, 3 if "Token" in task else VOCABULARY)
    assert check_forward(model, described) == (2, *outputs)
    batch = Batch(texts(), torch.tensor([0, 2, 1]))
    if task == "TokenClassification":
        batch = replace(batch, targets=torch.where(batch.inputs == PADDING, PADDING, batch.inputs % 3))
    if task == "MaskedLM":
        batch = hidden(batch, masking_of(model, replace(described, tokens=WORDS)))
    update = local_update(Broadcast(model), batch, LocalTraining())
    labels = batch.labels if batch.targets is None else batch.targets
    labels = batch.inputs if task == "CausalLM" else labels
    there = batch.inputs != PADDING
    output: Any = own.eval()(
        input_ids=batch.inputs.masked_fill(~there, 0), attention_mask=there.long(), labels=labels
    )
    output.loss.backward()
    _same(update.tensors, own)


@pytest.mark.parametrize("family", PICTURES)
def test_models_of_pictures_are_taken_as_they_are(family: str) -> None:
    own = picture_model(family)
    model = build_model(copy.deepcopy(own), picture_spec())
    assert check_forward(model, picture_spec()) == (2, 3)
    batch = Batch(torch.rand(3, *picture_spec().shape), torch.tensor([2, 0, 1]))
    update = local_update(Broadcast(model), batch, LocalTraining())
    output: Any = own.eval()(pixel_values=batch.inputs, labels=batch.labels)
    output.loss.backward()
    _same(update.tensors, own)


def _same(sent: Any, own: torch.nn.Module) -> None:
    for name, parameter in own.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert torch.allclose(sent[name], wanted, atol=2e-6), name


def test_masks_are_drawn_as_the_library_s_collator_draws_them() -> None:
    """15 % of the words; of these 80 % become the mask, 10 % another word; what parts texts is left."""
    masking = masking_of(built("bert", "MaskedLM"), replace(spec(), tokens=WORDS))
    assert masking is not None and (masking.mask, masking.never) == (3, (0, 1, 2, 3))
    torch.manual_seed(0)
    ids = torch.randint(4, VOCABULARY, (400, 50))
    ids[:, 0], ids[::2, 40:] = 1, PADDING
    drawn = hidden(Batch(ids, torch.zeros(400, dtype=torch.long)), masking)
    assert drawn.targets is not None
    was = drawn.targets != PADDING
    words = (ids != PADDING) & (ids != 1)
    assert not bool((was & ~words).any()) and torch.equal(torch.where(was, drawn.targets, drawn.inputs), ids)
    assert abs(float(was[words].float().mean()) - 0.15) < 0.01
    assert abs(float((drawn.inputs == 3)[was].float().mean()) - 0.8) < 0.03
    assert abs(float((drawn.inputs == ids)[was].float().mean()) - 0.1) < 0.02
    assert hidden(drawn, masking) is drawn  # what has targets keeps them


def test_every_local_step_hides_other_words_and_the_same_seed_the_same() -> None:
    model = build_model(built("bert", "MaskedLM"), spec())
    masking = masking_of(model, replace(spec(), tokens=WORDS))
    batch = Batch(texts(), torch.zeros(3, dtype=torch.long))

    def sent(seed: int, **settings: Any) -> torch.Tensor:
        torch.manual_seed(seed)
        training = LocalTraining(masking=masking, **settings)
        tensors = local_update(Broadcast(model), batch, training).tensors
        return torch.cat([tensor.flatten() for tensor in tensors.values()])

    assert torch.equal(sent(1), sent(1)) and not torch.equal(sent(1), sent(2))
    one, two = (sent(1, algorithm="fedavg", epochs=e, lr=1e-3) for e in (1, 2))
    assert not torch.allclose(two, 2 * one, rtol=0.1)  # steps this small would be alike on the same words


def test_what_does_not_fit_is_said_in_one_sentence() -> None:
    with pytest.raises(ModelError, match="the texts have no classes"):
        check_forward(build_model(built("bert", "SequenceClassification"), spec()), spec())
    labels_tokens = build_model(built("bert", "TokenClassification"), spec())
    with pytest.raises(ModelError, match="needs data with a class for each token"):
        check_forward(labels_tokens, spec())
    tagged = replace(spec(num_classes=5), token_labels=True)
    with pytest.raises(ModelError, match="with so many labels"):
        check_forward(labels_tokens, tagged)
    with pytest.raises(ModelError, match=r"\[MASK\] or <mask>"):
        masking_of(built("bert", "MaskedLM"), spec())
    endless = built("gpt2", "CausalLM", pad_token_id=None, eos_token_id=None)
    with pytest.raises(ModelError, match=r"set config\.pad_token_id"):
        build_model(endless, spec())
    twice = built("t5", "Seq2SeqLM")
    with pytest.raises(ModelError, match="sequence to sequence"):
        build_model(twice, spec())


def test_searches_say_that_targets_of_tokens_leave_them_nothing_to_search_with() -> None:
    from seepage.attacks import ATTACKS

    for loss in ("masked_token", "token_class", "next_token"):
        with pytest.raises(NotApplicable, match="one for each token"):
            ATTACKS["tag"]().check(built("bert", "MaskedLM"), Knowledge(input=spec(), loss=loss))
