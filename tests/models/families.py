"""Tiny random models of Hugging Face's families, as a user's own function would build them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from seepage.core.types import PADDING, InputSpec, Modality

transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")

VOCABULARY, LENGTH = 60, 7
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
_PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_LLAMA = {**_PLAIN, "num_key_value_heads": 2, "max_position_embeddings": 16}
_BERT = {**_PLAIN, "max_position_embeddings": 24}
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,
    "opt": {**_PLAIN, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 16},
    "gpt_neox": {**_PLAIN, "max_position_embeddings": 16},
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "mistral": _LLAMA,
    "bert": _BERT,
    "roberta": _BERT,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 16},
    "electra": {**_BERT, "embedding_size": 16},
    "t5": {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "d_kv": 8},
}
PICTURES: dict[str, dict[str, Any]] = {
    "vit": {**_PLAIN, "image_size": 16, "patch_size": 4},
    "swin": {
        "image_size": 16,
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 2,
    },
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
}
TEXTS = tuple(family for family in SMALL if family != "t5")
DECODERS = ("gpt2", "opt", "gpt_neox", "llama", "qwen2", "mistral")


def spec(*, num_classes: int = 1, length: int = LENGTH, vocabulary: int = VOCABULARY) -> InputSpec:
    """Texts, without classes for a language model."""
    return InputSpec(
        modality=Modality.TEXT,
        shape=(length,),
        num_classes=num_classes,
        value_range=None,
        vocabulary=vocabulary,
    )


def built(family: str, task: str, *, seed: int = 0, **changes: Any) -> nn.Module:
    """task: "CausalLM" or "SequenceClassification" (of three classes)."""
    torch.manual_seed(seed)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    settings = {"vocab_size": VOCABULARY, "num_labels": 3, **ends, **SMALL[family], **changes}
    config = transformers.AutoConfig.for_model(family, **settings)
    model: nn.Module = getattr(transformers, f"AutoModelFor{task}").from_config(config)
    return model


def picture_spec() -> InputSpec:
    """Small pictures of three classes."""
    return InputSpec(modality=Modality.IMAGE, shape=(3, 16, 16), num_classes=3)


def picture_model(family: str, *, seed: int = 0) -> nn.Module:
    """For three classes."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(family, num_labels=3, **PICTURES[family])
    model: nn.Module = transformers.AutoModelForImageClassification.from_config(config)
    return model


def texts(
    count: int = 3, *, length: int = LENGTH, vocabulary: int = VOCABULARY, seed: int = 1
) -> torch.Tensor:
    """(count, length) token ids of texts that end at different places."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (count, length), generator=generator)
    for row in range(1, count):
        ids[row, length - row % (length - 2) :] = PADDING
    return ids
