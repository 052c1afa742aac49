"""Hugging Face's models, made to take what every other model takes: one tensor in, logits out.

Token ids with `PADDING` become `input_ids` under an `attention_mask`, and the output object gives way to its
logits, both by hooks on the audit's own copy. So protocol, attacks and defenses need not know of them, and
parameters keep their names.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.types import PADDING, InputSpec, Masking

_FAMILIES = ("PreTrainedModel", "PeftModel")
MASKS = ("[MASK]", "<mask>")
_NO_WORD = re.compile(r"\[(CLS|SEP|PAD|UNK|MASK|BOS|EOS)\]|</?s>|<(pad|unk|mask|bos|eos)>")
"""Tokens that begin, end, part or fill up texts, as tokenizers of BERT's and RoBERTa's kin call them."""


def is_hugging_face(model: nn.Module) -> bool:
    """Told by the names of its classes, so that transformers need not be installed.

    >>> is_hugging_face(nn.Linear(2, 2))
    False
    """
    return any(kind.__name__ in _FAMILIES for kind in type(model).__mro__)


def take_plain(model: nn.Module, *, texts: bool) -> None:
    """Let the model be called with pictures, or with token ids (n, length), alone. In place.

    Attention is computed by plain operations: fused kernels have no second derivative, and clients' gradients
    are the same but for rounding.
    """
    plain_attention = getattr(model, "set_attn_implementation", None)
    if plain_attention is not None and getattr(model.config, "_attn_implementation", None) != "eager":
        plain_attention("eager")
    if texts:
        _take_token_ids(model)


def _take_token_ids(model: nn.Module) -> None:
    config: Any = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            "the model has an encoder and a decoder (sequence to sequence), and clients have one text each: "
            "give a model with one of the two, such as a classifier of BERT's kin or a causal language model."
        )
    filler = config.pad_token_id
    if filler is None:
        ends = config.eos_token_id
        filler = ends[0] if isinstance(ends, list | tuple) else ends
        if filler is None:
            raise ModelError(
                "the model's config names neither a pad_token_id nor an eos_token_id, so texts of different "
                "lengths cannot be put into one batch: set config.pad_token_id."
            )
        config.pad_token_id = filler  # a classifier looks for the last token before it
    config.use_cache = False
    model.register_forward_pre_hook(partial(_as_keywords, filler), with_kwargs=True)
    if is_adapted(model):
        model.register_forward_hook(_behind_the_prompt, with_kwargs=True)


def _as_keywords(
    filler: int, _module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if len(args) != 1 or not isinstance(args[0], Tensor):
        return None
    there = args[0] != PADDING
    return (), {
        "input_ids": args[0].masked_fill(~there, filler),
        "attention_mask": there.long(),
        **keywords,
    }


def is_adapted(model: nn.Module) -> bool:
    """A model of peft's: adapters or a prompt are trained, and the rest is frozen.

    >>> is_adapted(nn.Linear(2, 2))
    False
    """
    return any(kind.__name__ == "PeftModel" for kind in type(model).__mro__)


def _behind_the_prompt(
    model: nn.Module, _args: tuple[Any, ...], keywords: dict[str, Any], output: Any
) -> Any:
    """Without the logits at a trained prompt, but for its last place, which predicts a text's first token."""
    logits = getattr(output, "logits", None)
    ids = keywords.get("input_ids")
    if logits is None or ids is None or logits.ndim != 3 or logits.shape[1] <= ids.shape[1]:
        return None
    config: Any = model.peft_config  # by adapter
    predicts = not any(getattr(one, "task_type", None) == "TOKEN_CLS" for one in config.values())
    output.logits = logits[:, logits.shape[1] - ids.shape[1] - predicts :]
    return output


def masking_of(model: nn.Module, spec: InputSpec) -> Masking | None:
    """How clients hide words, where the model is trained on those; None where it is not.

    >>> masking_of(nn.Linear(2, 2), InputSpec(modality="text", shape=(3,), num_classes=1)) is None
    True
    """
    if not any(type(module).__name__.endswith("ForMaskedLM") for module in model.modules()):
        return None
    mask = next((spec.tokens.index(word) for word in MASKS if word in spec.tokens), None)
    if mask is None or spec.vocabulary is None:
        raise ModelError(
            "the model is trained on words that clients hide, and the data's vocabulary names no token that "
            f"takes their place ({' or '.join(MASKS)}): give the data the model's tokenizer."
        )
    never = tuple(number for number, word in enumerate(spec.tokens) if _NO_WORD.fullmatch(word))
    return Masking(mask=mask, vocabulary=spec.vocabulary, never=never)
