"""The layers of one block of a Hugging Face transformer, told by the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.models.blocks import blocks_of, look, matrices
from seepage.models.hooks import hooked


@dataclass(frozen=True)
class Dense:
    """A layer that multiplies by a matrix, whichever way round its weight is stored."""

    name: str
    module: nn.Module

    @property
    def transposed(self) -> bool:
        """The weight is (in, out), as of GPT-2's Conv1D."""
        return not isinstance(self.module, nn.Linear)

    @property
    def rows(self) -> Tensor:
        """(out, in): the weight itself, to be read and written to."""
        weight: Tensor = self.module.weight.data  # type: ignore[assignment]
        return weight.T if self.transposed else weight

    @property
    def bias(self) -> Tensor | None:
        """(out,)"""
        bias = getattr(self.module, "bias", None)
        return None if bias is None else bias.data

    def gradient(self, tensors: Mapping[str, Tensor], names: Mapping[int, str]) -> Tensor:
        """(out, in) of the update."""
        sent = tensors[names[id(self.module.weight)]].detach()
        return sent.T if self.transposed else sent


@dataclass(frozen=True)
class Anatomy:
    """One block: what makes queries, keys and values, and the two layers behind each of its halves."""

    name: str
    module: nn.Module
    mixing: tuple[Dense, ...]
    """Query, key and value, or all three in one."""
    out: Dense
    first: Dense
    second: Dense
    norms: tuple[nn.Module, ...]


def anatomy_of(model: nn.Module, block: int) -> Anatomy:
    """The parts of this block.

    Raises NotApplicable where it is not attention by query, key and value followed by two dense layers.
    """
    prefix, blocks = blocks_of(model)
    whole, module = f"{prefix}.{block}", blocks[block]
    linear = {f"{whole}.{name}": layer for name, layer in matrices(module).items()}
    calls: list[tuple[str, Tensor]] = []

    def seen(name: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        calls.append((name, args[0]))

    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    with hooked(linear, before=seen):
        look(model, tokens)
    reading = [name for name, features in calls if features is calls[0][1]]
    rest = [name for name, _ in calls[len(reading) :]]
    reading.sort(key=lambda name: "qkv".find(name.rsplit(".", 1)[-1][0]))
    if len(reading) not in (1, 3) or len(rest) != 3 or len(calls) != len(linear):
        raise NotApplicable(
            f"block '{whole}' runs {len(reading)} layers side by side and then {len(rest)}, where attention "
            "by query, key and value and a feed-forward part of two layers would be 3 (or 1 for all three) "
            "and 3: this attack crafts GPT-2's, OPT's and BERT's kin."
        )
    norms = tuple(m for m in module.modules() if "Norm" in type(m).__name__ and hasattr(m, "weight"))
    attention = tuple(Dense(name, linear[name]) for name in reading)
    out, up, down = (Dense(name, linear[name]) for name in rest)
    return Anatomy(whole, module, attention, out, up, down, norms)
