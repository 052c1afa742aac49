"""Transformers of families that no attack was made on: each is read, or one sentence says why not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.attacks.text.setting import as_set, exchange_of
from tests.models.families import LENGTH, VOCABULARY, built, spec, texts, transformers

from seepage.attacks import ATTACKS
from seepage.core.errors import ModelError, NotApplicable, SeepageError
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining
from seepage.models.loading import build_model
from seepage.protocol import local_update

_PLAIN = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "modernbert": {**_PLAIN, "global_attn_every_n_layers": 1, "reference_compile": False},
    "gemma": _GROUPED,
    "gemma2": _GROUPED,
    "qwen3": _GROUPED,
    "phi": _PLAIN,
    "phi3": _GROUPED,
    "stablelm": _GROUPED,
    "starcoder2": _GROUPED,
    "olmo2": _GROUPED,
    "cohere": _GROUPED,
    "granite": _GROUPED,
    "deberta": _PLAIN,
    "deberta-v2": _PLAIN,
    "albert": {**_PLAIN, "embedding_size": 16},
    "xlm-roberta": _PLAIN,
    "camembert": _PLAIN,
    "mpnet": _PLAIN,
    "nystromformer": _PLAIN,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": _PLAIN,
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 24},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24, "rotary_dim": 4},
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "max_position_embeddings": 24,
    },
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 64},
    "mixtral": {**_GROUPED, "num_local_experts": 4},
    "qwen2_moe": {
        **_GROUPED,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "gemma3_text": _GROUPED,
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 24},
    "ctrl": {"n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 64, "n_positions": 24},
    "mobilebert": {
        **_PLAIN,
        "embedding_size": 16,
        "intra_bottleneck_size": 16,
        "true_hidden_size": 16,
    },
    "funnel": {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "block_sizes": [1, 1]},
    "longformer": {**_PLAIN, "attention_window": 8, "max_position_embeddings": 40},
    "big_bird": {**_PLAIN, "attention_type": "original_full"},
    "squeezebert": {**_PLAIN, "embedding_size": 32},
    "fnet": {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64},
}
READERS = ("embedding_rows", "exact_text", "decepticons")


def _model(family: str) -> tuple[Any, str]:
    """With a head for classes where the family has one, else for the next token."""
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "num_labels": 3}
    try:
        config = transformers.AutoConfig.for_model(family, vocab_size=VOCABULARY, **ends, **FAMILIES[family])
    except ValueError:
        pytest.skip(f"this version of transformers has no {family}")
    torch.manual_seed(0)
    try:
        return transformers.AutoModelForSequenceClassification.from_config(config), "cross_entropy"
    except ValueError:
        return transformers.AutoModelForCausalLM.from_config(config), "next_token"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_reader_reads_or_says_why_in_one_sentence(family: str) -> None:
    made, loss = _model(family)
    described = spec(num_classes=1 if loss == "next_token" else 3)
    ids = texts(2)
    try:
        model = build_model(made, described)
    except SeepageError as reason:
        assert _is_a_sentence(reason)
        return
    local = LocalTraining(loss=loss)
    known = Knowledge(input=described, loss=loss, local=local)
    private = Batch(ids, torch.arange(len(ids)) % described.num_classes)
    said = {}
    for name in READERS:
        attack = ATTACKS[name]()
        try:
            attack.check(model, known)
            crafted = attack.next_model(model, [], known)
            sent = Broadcast(model if crafted is None else crafted.model)
            secret = None if crafted is None else crafted.secret
            update = local_update(sent, private, local)
            found = attack.run([Exchange(broadcast=sent, update=update, clients=(0,), secret=secret)], known)
        except SeepageError as reason:
            said[name] = str(reason)
            assert _is_a_sentence(reason), name
            continue
        claimed = found.values[found.claimed] if found.claimed is not None else found.values[:0]
        truth = {tuple(row) for row in ids.tolist()}
        assert {tuple(row) for row in claimed.tolist()} <= truth, name
        assert found.notes, name
        if name == "embedding_rows":
            assert found.words is not None
            assert set(ids[ids >= 0].tolist()) <= set(found.words.nonzero().squeeze(1).tolist())
    assert "embedding_rows" not in said, said["embedding_rows"]


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_a_mixture_of_experts_is_read_to_the_last_token(family: str) -> None:
    """Its last block ends in no linear layer, so that last tokens are read from the head's own gradient."""
    config = transformers.AutoConfig.for_model(
        family, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2, pad_token_id=0, **FAMILIES[family]
    )
    torch.manual_seed(0)
    model, ids = transformers.AutoModelForCausalLM.from_config(config), texts(2)
    exchange, known = exchange_of(model, ids, language_model=True)
    found = ATTACKS["exact_text"]().run([exchange], known)
    assert found.complete and as_set(found.values[found.claimed]) == as_set(ids)


def test_an_encoder_that_attends_to_all_tokens_alike_is_not_said_to_be_an_empty_batch() -> None:
    model = built("electra", "SequenceClassification")
    exchange, known = exchange_of(model, texts(2, seed=5), language_model=False)
    with pytest.raises(NotApplicable, match="attends to all tokens alike"):
        ATTACKS["exact_text"]().run([exchange], known)


def test_a_model_that_makes_one_text_of_another_is_refused_in_one_sentence() -> None:
    config = transformers.AutoConfig.for_model(
        "t5", vocab_size=VOCABULARY, d_model=32, num_layers=2, num_heads=4, d_ff=64, d_kv=8
    )
    with pytest.raises(ModelError, match="sequence to sequence"):
        build_model(transformers.AutoModelForSeq2SeqLM.from_config(config), spec(length=LENGTH))


def _is_a_sentence(reason: Exception) -> bool:
    text = str(reason)
    return 20 < len(text) < 500 and "Traceback" not in text and text.rstrip().endswith(".")
