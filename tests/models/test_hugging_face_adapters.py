"""Of peft's models what is trained is sent, its gradient is the library's own, and attacks see no more."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.attacks.text.setting import as_set, exchange_of
from tests.models.families import LENGTH, built, spec, texts

from seepage.attacks.text.embedding_rows import embedding_rows
from seepage.attacks.text.exact_text import exact_text
from seepage.core.errors import NotApplicable
from seepage.core.types import PADDING, Batch, Broadcast, LocalTraining
from seepage.models.loading import build_model, check_forward
from seepage.protocol import local_update

peft = pytest.importorskip("peft", reason="the extra transformers is not installed")

TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "bert": ["query", "value"]}
_THREE = {"gpt2": {"n_layer": 3}, "llama": {"num_hidden_layers": 3}}
TASKS = {"CausalLM": "CAUSAL_LM", "SequenceClassification": "SEQ_CLS"}
CASES = [
    *[("gpt2", task, way) for task in TASKS for way in ("lora", "ia3", "prompt", "prefix", "p_tuning")],
    ("llama", "CausalLM", "lora"),
    ("llama", "CausalLM", "prompt"),
    ("bert", "SequenceClassification", "lora"),
]


def adapted(family: str, task: str, way: str, **changes: Any) -> torch.nn.Module:
    named: dict[str, Any] = {"task_type": TASKS[task]}
    targets = TARGETS[family]
    config = {
        "lora": lambda: peft.LoraConfig(r=16, target_modules=targets, **named),
        "ia3": lambda: peft.IA3Config(target_modules=targets, feedforward_modules=[], **named),
        "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=4, **named),
        "prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=4, **named),
        "p_tuning": lambda: peft.PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=8, **named),
    }[way]()
    model: torch.nn.Module = peft.get_peft_model(built(family, task, **changes), config)
    return model


@pytest.mark.parametrize(("family", "task", "way"), CASES)
def test_what_is_trained_is_sent_and_is_the_library_s_own_gradient(family: str, task: str, way: str) -> None:
    own = adapted(family, task, way)
    described = spec(num_classes=1 if task == "CausalLM" else 3)
    model = build_model(copy.deepcopy(own), described)
    places = LENGTH + (way in ("prompt", "p_tuning"))  # a prompt's last place predicts the first token
    assert check_forward(model, described) == ((2, places, 60) if task == "CausalLM" else (2, 3))
    batch = Batch(texts(2), torch.tensor([0, 1]))
    sent = local_update(Broadcast(model), batch, LocalTraining()).tensors
    trained = {name: p for name, p in own.named_parameters() if p.requires_grad}
    assert set(sent) == set(trained)
    there = batch.inputs != PADDING
    own.config.pad_token_id = 0  # type: ignore[union-attr]
    labels = batch.inputs if task == "CausalLM" else batch.labels
    fed = {"input_ids": batch.inputs.masked_fill(~there, 0), "attention_mask": there.long()}
    own.eval()(**fed, labels=labels).loss.backward()
    for name, parameter in trained.items():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert torch.allclose(sent[name], wanted, atol=1e-6), name


@pytest.mark.parametrize("way", ["ia3", "prompt", "prefix"])
def test_what_shows_no_tokens_says_so(way: str) -> None:
    exchange, known = exchange_of(adapted("gpt2", "CausalLM", way), texts(2), language_model=True)
    with pytest.raises(NotApplicable, match="frozen or all zero"):
        exact_text().run([exchange], known)
    with pytest.raises(NotApplicable, match="is frozen, so clients send no gradient"):
        embedding_rows().run([exchange], known)


def test_an_adapter_of_queries_does_not_hide_first_tokens_from_one_of_values() -> None:
    """Both read by themselves, and the query of a first token has no gradient."""
    model = adapted("llama", "SequenceClassification", "lora", num_hidden_layers=3)
    ids = texts(2)
    exchange, known = exchange_of(model, ids, language_model=False)
    found = exact_text().run([exchange], known)
    assert as_set(found.values) == as_set(ids)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_dora_asks_its_adapters_for_their_weights_before_they_read_the_text(family: str) -> None:
    config = peft.LoraConfig(r=16, target_modules=TARGETS[family], use_dora=True, task_type="SEQ_CLS")
    model = peft.get_peft_model(built(family, "SequenceClassification", **_THREE[family]), config)
    ids = texts(2)
    exchange, known = exchange_of(model, ids, language_model=False)
    assert as_set(exact_text().run([exchange], known).values) == as_set(ids)


@pytest.mark.parametrize(("family", "embedding"), [("gpt2", "wte"), ("bert", "word_embeddings")])
def test_an_adapter_of_the_embedding_shows_the_words(family: str, embedding: str) -> None:
    config = peft.LoraConfig(r=8, target_modules=[embedding], task_type="SEQ_CLS")
    model = peft.get_peft_model(built(family, "SequenceClassification"), config)
    ids = texts(2)
    exchange, known = exchange_of(model, ids, language_model=False)
    words = embedding_rows().run([exchange], known).words
    assert words is not None and set(words.nonzero().squeeze(1).tolist()) == set(ids[ids >= 0].tolist())


@pytest.mark.parametrize("way", ["AdaLoraConfig", "LoHaConfig", "LoKrConfig", "VeraConfig"])
def test_adapters_that_are_not_lora_s_are_not_said_to_be_frozen_only(way: str) -> None:
    more = {"total_step": 100} if way == "AdaLoraConfig" else {}
    config = getattr(peft, way)(target_modules=["q_proj"], r=8, task_type="SEQ_CLS", **more)
    model = peft.get_peft_model(built("llama", "SequenceClassification"), config)
    exchange, known = exchange_of(model, texts(2), language_model=False)
    with pytest.raises(NotApplicable, match="of adapters, not LoRA's"):
        exact_text().run([exchange], known)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_language_model_s_last_tokens_are_read_from_adapters_of_attention_alone(family: str) -> None:
    ids = texts(2, seed=3)
    exchange, known = exchange_of(adapted(family, "CausalLM", "lora"), ids, language_model=True)
    found = exact_text().run([exchange], known)
    assert found.complete and as_set(found.values[found.claimed]) == as_set(ids)


def test_adapters_of_an_encoder_are_refused_by_name() -> None:
    model = adapted("bert", "SequenceClassification", "lora")
    exchange, known = exchange_of(model, texts(2), language_model=False)
    with pytest.raises(NotApplicable, match="clients that train adapters do not send"):
        exact_text().run([exchange], known)
