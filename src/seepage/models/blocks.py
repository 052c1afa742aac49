"""Looking into a transformer of Hugging Face's: its blocks, and what the first linear layers of one read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.user_code import USER_CODE_ERRORS, reason
from seepage.models.hooks import hooked
from seepage.models.hugging_face import is_hugging_face
from seepage.protocol import training_mode

PROBE_TOKENS = 2
"""Derived: the fewest that attention can mix."""


@dataclass(frozen=True)
class Point:
    """Linear layers of one block that read the same features, and the names of their weights.

    The gradient of such a weight is a sum over tokens of an outer product with these features, so that its
    row space lies in their span (Petrov et al. 2024, DAGER).
    """

    module: str
    weights: tuple[str, ...]
    transposed: bool
    """The weight is (in, out), as of GPT-2's Conv1D."""
    call: int = 1
    """Which of the module's calls reads the text: DoRA first asks its adapters for their weights."""

    def gradient(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(rows, features) in float64: the gradients of all these weights, one below the other."""
        each = [tensors[name].detach() for name in self.weights]
        return torch.cat([one.T if self.transposed else one for one in each]).double()


def blocks_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Name and blocks of a transformer: the first list of at least two modules of one kind.

    Raises NotApplicable where there is none, or where the model is none of Hugging Face's.
    """
    if is_hugging_face(model):
        for name, module in model.named_modules():
            if isinstance(module, nn.ModuleList) and len(module) > 1 and len({type(m) for m in module}) == 1:
                return name, module
    raise NotApplicable(
        "the model is no transformer of Hugging Face's with two blocks of their own (ALBERT runs one several "
        "times), whose parts this attack knows how to find: use an attack that optimises, such as 'tag'."
    )


def matrices(block: nn.Module) -> dict[str, nn.Module]:
    """Modules that multiply by a matrix, by name: nn.Linear, and GPT-2's Conv1D, which is none."""
    return {
        name: module
        for name, module in block.named_modules()
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2 and not isinstance(module, nn.Embedding)
    }


def reading_points(model: nn.Module, block: int, tensors: Mapping[str, Tensor]) -> list[Point]:
    """What is read first in this block by layers whose gradient was sent and is not zero.

    Of a whole block these are query, key and value together. Of LoRA each adapter by itself: its first
    matrix, or its second while that is zero, which reads what the first one makes of the features.
    """
    prefix, blocks = blocks_of(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    calls: list[tuple[str, Tensor]] = []

    def seen(name: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        calls.append((name, args[0]))

    linear = {f"{prefix}.{block}.{name}": module for name, module in matrices(blocks[block]).items()}
    tokens = torch.zeros(1, PROBE_TOKENS, dtype=torch.long, device=next(model.parameters()).device)
    with hooked(linear, before=seen):
        look(model, tokens)
    if not calls:
        raise NotApplicable(
            "no layer of the block multiplies tokens by a matrix, as where it is made of convolutions: "
            "'embedding_rows' reads its tokens, 'tag' searches."
        )
    first = calls[0][1]
    early: list[tuple[str, Tensor]] = []
    for name, features in calls:
        # what reads the block's normalised features, and adapters on the way, before tokens are mixed
        if features is not first and ".lora_" not in name:
            break
        early.append((name, features))
    grouped: dict[int, list[str]] = {}
    times = Counter(name for name, _ in early)
    for name, features in dict(early).items():  # of each the last call
        weight = names.get(id(linear[name].weight), "")
        if weight in tensors and bool(tensors[weight].any()):
            grouped.setdefault(id(features), []).append(name)
    return [
        Point(
            modules[0],
            tuple(names[id(linear[name].weight)] for name in modules),
            transposed=not isinstance(linear[modules[0]], nn.Linear),
            call=times[modules[0]],
        )
        for modules in grouped.values()
    ]


class _ReachedError(Exception):
    """Nothing behind the layer is needed."""


@contextmanager
def _until(model: nn.Module, points: list[Point]) -> Iterator[list[Tensor]]:
    """Runs of the model end when every point was reached; what each one read, in their order."""
    read: dict[str, Tensor] = {}
    found: list[Tensor] = []
    wanted, calls = {point.module: point.call for point in points}, Counter[str]()

    def seen(name: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        calls[name] += 1
        if calls[name] == wanted[name]:
            read[name] = args[0]
        if len(read) == len(points):
            found.extend(read[point.module] for point in points)
            raise _ReachedError

    modules = {point.module: model.get_submodule(point.module) for point in points}
    with torch.no_grad(), training_mode(model, False), hooked(modules, before=seen), suppress(_ReachedError):
        yield found


def read_at(model: nn.Module, points: list[Point], **inputs: Any) -> list[Tensor]:
    """(n, length, features) that reach each point when the model is called with these keywords."""
    there = torch.ones_like(inputs["input_ids"])
    with _until(model, points) as found:
        model(**{"attention_mask": there, **inputs})
    return found


@dataclass(frozen=True)
class Attention:
    """The layers of one block that make queries and keys, and into how many heads they are cut."""

    query: str
    key: str
    value: str
    heads: int


_QUERY_KEY_VALUE = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"), ("q_proj", "k_proj", "v_proj"))


def attention_of(model: nn.Module, block: int) -> Attention:
    """Query and key of this block, by the names that BERT's kin give them.

    Raises NotApplicable where they are not nn.Linear of their own.
    """
    prefix, blocks = blocks_of(model)
    linear = {
        name.rsplit(".", 1)[-1]: f"{prefix}.{block}.{name}"
        for name, module in matrices(blocks[block]).items()
        if type(module) is nn.Linear and module.bias is not None
    }
    config: Any = model.config
    heads = getattr(config, "num_attention_heads", getattr(config, "n_heads", None))
    for names in _QUERY_KEY_VALUE:
        if heads is not None and all(name in linear for name in names):
            query, key, value = (linear[name] for name in names)
            return Attention(query, key, value, int(heads))
    raise NotApplicable(
        "the encoder's attention has no query, key and value layers of their own with a bias, as BERT, "
        "RoBERTa, DistilBERT and ELECTRA have: 'embedding_rows' reads its tokens, 'tag' searches."
    )


def is_causal(model: nn.Module) -> bool:
    """Whether what comes out at a token depends on no later one."""
    _, blocks = blocks_of(model)
    device = next(model.parameters()).device
    outputs: list[Any] = []

    def ended(_name: str, _module: nn.Module, _args: object, output: Any) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    with hooked({"": blocks[0]}, after=ended):
        for last in (1, 2):
            look(model, torch.tensor([[0, last]], device=device))
    if len(outputs) != 2 or not all(isinstance(one, Tensor) and one.ndim == 3 for one in outputs):
        raise NotApplicable(
            "the model's blocks do not hand on one row of features for each token, so that tokens cannot be "
            "followed through them: 'embedding_rows' reads its tokens, 'tag' searches."
        )
    return torch.equal(outputs[0][0, 0], outputs[1][0, 0])


def look(model: nn.Module, tokens: Tensor) -> None:
    """Run the model for what hooks see."""
    try:
        with torch.no_grad(), training_mode(model, False):
            model(tokens)
    except USER_CODE_ERRORS as error:
        raise NotApplicable(
            f"the model cannot be run on a text of {tokens.shape[1]} tokens, by which this attack looks into "
            f"it ({reason(error)}): 'embedding_rows' reads its tokens, 'tag' searches."
        ) from error
