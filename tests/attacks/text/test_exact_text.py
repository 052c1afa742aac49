"""Whole batches of texts come back exactly from decoders of six families, and the proof knows when not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.attacks.text.setting import CLASSES, answer, as_set, exchange_of
from tests.models.families import DECODERS, built, spec, texts

from seepage import testing
from seepage.attacks.text.exact_text import ExactText, exact_text
from seepage.attacks.text.span import Span, Threshold
from seepage.core.errors import NotApplicable
from seepage.core.types import PADDING


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("language_model", [True, False])
def test_every_text_of_a_batch_is_read_and_proven(family: str, language_model: bool) -> None:
    ids = texts(3)  # of different lengths
    found = answer(exact_text(), family, ids, language_model=language_model)
    assert as_set(found.values) == as_set(ids)
    assert found.complete and found.claimed is not None and bool(found.claimed.all())
    if not language_model:
        assert found.label_counts is not None and found.label_counts.tolist() == [1, 1, 1]


def test_a_shared_beginning_and_a_token_over_and_over_are_read() -> None:
    ids = torch.tensor([[5, 5, 5, 7, 8, 9, 4], [5, 6, 7, 8, 9, 4, 11], [5, 6, 20, 21, 9, 9, 9]])
    for family in ("gpt2", "llama"):
        model = built(family, "SequenceClassification", initializer_range=0.2)
        exchange, known = exchange_of(model, ids, language_model=False)
        found = exact_text().run([exchange], known)
        assert as_set(found.values) == as_set(ids), family
        assert found.complete


def test_a_small_vocabulary_that_the_first_span_holds_all_of_is_read_by_the_second_block() -> None:
    """36 words at 16 places: sums of 40 directions, of which 58 tokens leave none out."""
    described = spec(num_classes=CLASSES, length=16, vocabulary=36)
    model = built("gpt2", "SequenceClassification", n_embd=128, n_layer=4, vocab_size=36)
    ids = texts(4, length=16, vocabulary=36)
    exchange, known = exchange_of(model, ids, language_model=False)
    found = exact_text().run([exchange], replace(known, input=described))
    assert as_set(found.values) == as_set(ids) and found.complete
    assert any("Every token lies in the first block's span" in note for note in found.notes)


def test_one_step_of_fedavg_is_read_as_well() -> None:
    ids = texts(2)
    found = answer(exact_text(), "gpt2", ids, algorithm="fedavg", lr=1.0)
    assert as_set(found.values) == as_set(ids) and found.complete


@pytest.mark.parametrize(("family", "wide"), [("gpt2", {"n_embd": 96}), ("llama", {"hidden_size": 96})])
@pytest.mark.parametrize("language_model", [True, False])
@pytest.mark.parametrize("training", [{"lr": 0.01, "epochs": 5}, {"lr": 1e-3, "batch_size": 1, "epochs": 2}])
def test_several_local_steps_are_read_and_proven_by_training_again(
    family: str, wide: dict[str, int], language_model: bool, training: dict[str, Any]
) -> None:
    ids = texts(2)
    model = built(family, "CausalLM" if language_model else "SequenceClassification", **wide)
    exchange, known = exchange_of(model, ids, language_model=language_model, algorithm="fedavg", **training)
    found = exact_text().run([exchange], known)
    assert as_set(found.values) == as_set(ids)
    assert found.complete and found.claimed is not None and bool(found.claimed.all())
    assert any("Several local steps" in note for note in found.notes)


def test_what_several_steps_hide_is_not_claimed() -> None:
    """At such a rate features move as far between the steps as they lie apart."""
    found = answer(exact_text(), "gpt2", texts(3), algorithm="fedavg", lr=3.0, epochs=8)
    assert found.claimed is None or not found.claimed.any()


def test_nothing_is_claimed_where_the_update_holds_more_than_was_found() -> None:
    """Another text's gradient in the later layers, which the first blocks do not show."""
    model = built("gpt2", "SequenceClassification")
    exchange, known = exchange_of(model, texts(2), language_model=False)
    other, _ = exchange_of(model, texts(2, seed=5), language_model=False)
    mixed = {
        name: tensor + (other.update.tensors[name] if ".h.1.mlp" in name else 0)
        for name, tensor in exchange.update.tensors.items()
    }
    found = exact_text().run([replace(exchange, update=replace(exchange.update, tensors=mixed))], known)
    assert as_set(found.values) == as_set(texts(2))
    assert found.complete is False and found.claimed is not None and not found.claimed.any()
    assert any("unexplained" in note for note in found.notes)


def test_what_cannot_be_read_says_why() -> None:
    many = texts(12)  # more tokens than the width of 32
    with pytest.raises(NotApplicable, match="no gap in its spectrum, as of more tokens than the 32 features"):
        answer(exact_text(), "gpt2", many)
    frozen = built("gpt2", "SequenceClassification")
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_("score" in name)
    exchange, known = exchange_of(frozen, texts(1), language_model=False)
    with pytest.raises(NotApplicable, match="frozen or all zero"):
        exact_text().run([exchange], known)


def test_lora_is_read_while_tokens_are_fewer_than_its_rank() -> None:
    peft = pytest.importorskip("peft", reason="the extra transformers is not installed")
    ids = texts(1)
    for rank, readable in ((16, True), (4, False)):
        config = peft.LoraConfig(r=rank, target_modules=["c_attn"], task_type="SEQ_CLS", fan_in_fan_out=True)
        model = peft.get_peft_model(built("gpt2", "SequenceClassification"), config)
        exchange, known = exchange_of(model, ids, language_model=False)
        assert all("lora_" in name or "score" in name for name in exchange.update.tensors)
        if readable:
            found = exact_text().run([exchange], known)
            assert as_set(found.values) == as_set(ids) and found.complete
        else:
            with pytest.raises(NotApplicable, match="of LoRA: the rank"):
                exact_text().run([exchange], known)


@pytest.mark.parametrize(
    ("family", "targets", "swapped"), [("gpt2", ["c_attn"], True), ("llama", ["q_proj", "v_proj"], False)]
)
def test_adapters_on_a_half_precision_base_are_read_in_the_clients_own_reckoning(
    family: str, targets: list[str], swapped: bool
) -> None:
    """In float32 the features differ from the clients' by more than the gradient's rounding."""
    peft = pytest.importorskip("peft", reason="the extra transformers is not installed")
    ids = texts(1)
    config = peft.LoraConfig(r=16, target_modules=targets, task_type="SEQ_CLS", fan_in_fan_out=swapped)
    model = peft.get_peft_model(built(family, "SequenceClassification").bfloat16(), config)
    exchange, known = exchange_of(model, ids, language_model=False)
    assert exact_text().held_as(exchange.broadcast.model) is exchange.broadcast.model
    found = exact_text().run([exchange], known)
    assert as_set(found.values) == as_set(ids) and found.complete


def test_beyond_loras_rank_words_stand_out_and_nothing_is_claimed() -> None:
    peft = pytest.importorskip("peft", reason="the extra transformers is not installed")
    ids = texts(3)
    config = peft.LoraConfig(
        r=8, target_modules=["c_attn"], task_type="SEQ_CLS", fan_in_fan_out=True, init_lora_weights=False
    )
    base = built("gpt2", "SequenceClassification", n_embd=256, vocab_size=2000)
    model = peft.get_peft_model(base, config)
    exchange, known = exchange_of(model, ids, language_model=False)
    known = replace(known, input=replace(known.input, vocabulary=2000))
    found = exact_text().run([exchange], known)
    assert len(found.values) == 0 and not found.complete and found.words is not None
    there = torch.zeros(2000, dtype=torch.bool)
    there[ids[ids != PADDING]] = True
    right = int((found.words & there).sum())
    assert right >= 0.8 * int(found.words.sum()) and right >= 0.4 * int(there.sum())
    assert any("without a proof" in note for note in found.notes)


def test_the_rank_is_found_at_the_gap_and_thresholds_lie_within_it() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(5, 20, generator=generator, dtype=torch.float64)
    noise = 1e-7 * torch.randn(40, 20, generator=generator, dtype=torch.float64)
    gradient = torch.randn(40, 5, generator=generator, dtype=torch.float64) @ features + noise
    span = Span.of(gradient, rounding=1e-9)
    assert span is not None and span.outside.shape == (20, 15)
    others = torch.randn(200, 20, generator=generator)
    inside = Threshold.against(span, others)
    assert inside is not None and span.noise <= inside.tolerance < 1e-3
    assert bool(inside.passed(features.float()).all()) and not bool(inside.passed(others).any())
    assert Span.of(torch.zeros(4, 4, dtype=torch.float64), rounding=1e-7) is None
    crowded = Span.of(torch.randn(40, 20, generator=generator, dtype=torch.float64), rounding=1e-7)
    assert crowded is not None and crowded.full


def test_the_attack_passes_the_checks_of_this_package() -> None:
    ids = torch.cat([texts(12, seed=seed) for seed in range(5)])
    ids[ids == PADDING] = 3
    data = (ids, torch.arange(len(ids)) % 3)
    model = built("gpt2", "SequenceClassification")
    summary = testing.check_attack(ExactText, model=model, data=data, batch_size=2)
    assert summary.scores["exact"].value == 1.0 and summary.claims_right == summary.claims > 0
