"""Transformers of families that no attack was made on: each is read, or one sentence says why not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.families import LENGTH, VOCABULARY, spec, texts, transformers

from seepage.attacks import ATTACKS
from seepage.core.errors import ModelError, SeepageError
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
    built, loss = _model(family)
    described = spec(num_classes=1 if loss == "next_token" else 3)
    ids = texts(2)
    try:
        model = build_model(built, described)
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


def test_a_model_that_makes_one_text_of_another_is_refused_in_one_sentence() -> None:
    config = transformers.AutoConfig.for_model(
        "t5", vocab_size=VOCABULARY, d_model=32, num_layers=2, num_heads=4, d_ff=64, d_kv=8
    )
    with pytest.raises(ModelError, match="sequence to sequence"):
        build_model(transformers.AutoModelForSeq2SeqLM.from_config(config), spec(length=LENGTH))


def _is_a_sentence(reason: Exception) -> bool:
    text = str(reason)
    return 20 < len(text) < 500 and "Traceback" not in text and text.rstrip().endswith(".")
