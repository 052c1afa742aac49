"""Hugging Face's text models, made to take what every other model takes: one tensor in, logits out.

Token ids with `PADDING` become `input_ids` under an `attention_mask`, and the output object gives way to its
logits, both by hooks on the audit's own copy. So protocol, attacks and defenses need not know of them, and
parameters keep their names.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.types import PADDING

_FAMILIES = ("PreTrainedModel", "PeftModel")


def is_hugging_face(model: nn.Module) -> bool:
    """Told by the names of its classes, so that transformers need not be installed.

    >>> is_hugging_face(nn.Linear(2, 2))
    False
    """
    return any(kind.__name__ in _FAMILIES for kind in type(model).__mro__)


def take_token_ids(model: nn.Module) -> None:
    """Let the model be called with token ids (n, length) alone. In place.

    Attention is computed by plain operations: fused kernels have no second derivative, and clients' gradients
    are the same but for rounding.
    """
    if any(type(module).__name__.endswith("ForMaskedLM") for module in model.modules()):
        raise ModelError(
            "the model is trained on words that clients mask at random, which cannot be audited yet: give a "
            "causal language model, or the same body with a head for classes."
        )
    config: Any = model.config
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
    plain_attention = getattr(model, "set_attn_implementation", None)
    if plain_attention is not None:
        plain_attention("eager")
    model.register_forward_pre_hook(partial(_as_keywords, filler), with_kwargs=True)


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
