"""A received model as the weight detectors see it: named rows of weights with their biases, nothing run."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.guardian.detectors.orientation import Orientation, bias_of, orientation

Kind = Literal["dense", "conv", "embedding"]

_RECURRENT = re.compile(r"weight_(ih|hh|hr)(_l\d+(_reverse)?)?$")
"""torch.nn.RNNBase and RNNCellBase: inputs, hidden states and projections, by layer and direction."""
_GPT2_EMBEDDINGS = ("wte", "wpe")
"""transformers' GPT-2: tables of tokens and of places."""
_LEAST_POSITIONS = 4
"""Values of one feature map in the input of a dense layer, from which on it counts as flattened maps.
Derived: 2 x 2 is the smallest map with two sides."""
_SMALL = 1e-15
"""Largest weight of a layer whose squares are still numbers. Derived: float32 ends at 1e-38, and the square
of a weight a ten-thousandth as large must not be lost."""


@dataclass(frozen=True, kw_only=True)
class WeightLayer:
    """One weight of two or more dimensions."""

    name: str
    kind: Kind
    rows: Tensor
    """(outputs, fan-in), at least float32: a filter of a convolution is one row."""
    bias: Tensor | None
    maps: int
    """Feature maps that the columns are made of, one after the other; 1 where nothing says so."""
    inputs: int
    """Second dimension of the weight: maps that a filter reads, or the fan-in of a dense layer."""
    scale: float = 1.0
    """What the rows were multiplied by, so that squares of very small or large weights are numbers."""


def weight_layers(model: nn.Module) -> list[WeightLayer]:
    """Every dense layer, convolution and embedding, in the model's own order; NaN weights are refused.

    >>> [(layer.name, layer.kind) for layer in weight_layers(nn.Sequential(nn.Linear(3, 2)))]
    [('0', 'dense')]
    """
    known = _known.get()
    if known is None:
        return _weight_layers(model)
    if id(model) not in known:
        known[id(model)] = _weight_layers(model)
    return known[id(model)]


_known: ContextVar[dict[int, list[WeightLayer]] | None] = ContextVar("known", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """Inside, a model's layers are read once for all detectors; nobody may change its weights meanwhile."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def _weight_layers(model: nn.Module) -> list[WeightLayer]:
    embeddings = _embeddings(model)
    state = tensors_of(model)
    turned = stored_as(model).turned
    found: list[WeightLayer] = []
    channels = 0
    for name, tensor in state.items():
        if tensor.dim() < 2 or not is_weight(name) or not tensor.numel():
            continue
        stem = _stem(name)
        kind = _kind(tensor, stem, embeddings)
        rows = (tensor.mT if name in turned else tensor).detach().flatten(1)
        rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
        rows, scale = _in_range(rows)
        maps = 1
        if kind == "dense":
            size = rows.shape[1]
            flattened = channels and size % channels == 0 and size // channels >= _LEAST_POSITIONS
            maps, channels = (channels if flattened else 1), 0
        elif kind == "conv":
            channels = len(rows)
        bias = bias_of(name, state)
        own = bias.detach().to(rows) if bias is not None and len(bias) == len(rows) else None
        layer = WeightLayer(
            name=stem or name,
            kind=kind,
            rows=rows,
            bias=own,
            maps=maps,
            inputs=tensor.shape[0 if name in turned else 1],
            scale=scale,
        )
        found.append(layer)
    return found


def stored_as(model: nn.Module) -> Orientation:
    """Which dense layers are stored inputs first, and which nothing tells of."""
    embeddings, state = _embeddings(model), tensors_of(model)
    dense = [n for n, t in state.items() if is_weight(n) and t.dim() == 2 and t.numel()]
    dense = [n for n in dense if _kind(state[n], _stem(n), embeddings) == "dense"]
    linear = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    return orientation(state, dense, [n for n in dense if n in linear or is_recurrent(n)])


def _embeddings(model: nn.Module) -> set[str]:
    return {n for n, m in model.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}


def _stem(name: str) -> str:
    return name.removesuffix("weight").removesuffix(".")


def _in_range(rows: Tensor) -> tuple[Tensor, float]:
    """Rows times a power of two where their squares would be lost: weight decay without a gradient takes
    layers that nothing uses down to 1e-39, and a server may scale a layer and undo it in the next."""
    low, high = torch.aminmax(rows)
    largest = max(-float(low), float(high))
    if largest == 0 or _SMALL < largest < 1 / _SMALL:
        return rows, 1.0
    places = -math.frexp(largest)[1]
    return torch.ldexp(rows.double(), rows.new_tensor(places).double()), 2.0**places


def is_weight(name: str) -> bool:
    """Whether a tensor is named as torch names a layer's weight, those of recurrent layers included.

    >>> is_weight("fc.weight"), is_weight("rnn.weight_ih_l0_reverse"), is_weight("fc.kernel")
    (True, True, False)
    """
    return name.endswith("weight") or is_recurrent(name)


def is_recurrent(name: str) -> bool:
    """Whether a weight is a recurrent layer's."""
    return _RECURRENT.search(name) is not None


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The floating-point tensors of a model by name, or ModelError where there is none or one is broken."""
    state = {n: t for n, t in model.state_dict().items() if isinstance(t, Tensor) and t.is_floating_point()}
    if not state:
        raise ModelError("the model holds no floating-point weights, so there is nothing to check.")
    # One pass over each tensor: a sum is NaN or infinite where an entry is (or, rarely, by overflow).
    for name, stored in state.items():
        tensor = stored if stored.dtype.itemsize > 1 else stored.float()  # 8-bit floats cannot be summed
        if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                f"the weights '{name}' hold NaN or infinite values: such a model cannot be trained on; ask "
                "the server for another one."
            )
    return state


def of_kind(layers: Sequence[WeightLayer], *kinds: Kind, fan_in: int, rows: int = 2) -> list[WeightLayer]:
    """Those that are large enough for a statistic."""
    return [x for x in layers if x.kind in kinds and x.rows.shape[1] >= fan_in and len(x.rows) >= rows]


def heads(layers: Sequence[WeightLayer]) -> list[WeightLayer]:
    """Dense layers whose outputs no other layer can take in: one of them makes the logits of a classifier.

    The order of the file says nothing: safetensors sorts by name. Where every layer's outputs fit another
    one, all of them may be the last.
    """
    return ends(layers) or _of_two_outputs(layers)


def ends(layers: Sequence[WeightLayer]) -> list[WeightLayer]:
    """Those alone that no layer can follow, be there any or none."""
    dense = _of_two_outputs(layers)
    return [one for one in dense if not any(_feeds(one, other) for other in layers if other is not one)]


def _of_two_outputs(layers: Sequence[WeightLayer]) -> list[WeightLayer]:
    return [layer for layer in layers if layer.kind == "dense" and len(layer.rows) >= 2]


def _feeds(one: WeightLayer, other: WeightLayer) -> bool:
    return other.kind != "embedding" and other.inputs == len(one.rows)


def mixing_convolutions(layers: Sequence[WeightLayer], *, fan_in: int) -> list[WeightLayer]:
    """Convolutions that mix what they read. Depthwise ones keep maps apart, and training makes single-entry
    filters there; one filter bank of a single map is the first layer behind grey pictures."""
    convs = of_kind(layers, "conv", fan_in=fan_in)
    single = [layer for layer in convs if layer.inputs == 1]
    return [layer for layer in convs if layer.inputs > 1 or len(single) == 1]


def live_columns(rows: Tensor) -> Tensor:
    """Without the columns that are zero in every row: pixels that never vary, maps that carry nothing."""
    return rows[:, (rows != 0).any(dim=0)]


def sampled(rows: Tensor, most: int) -> Tensor:
    """At most so many rows, drawn anew each time: a server cannot know which ones will be looked at."""
    if len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=fresh_generator())[:most].to(rows.device)]


_seed: ContextVar[int | None] = ContextVar("seed", default=None)


@contextmanager
def same_draws(seed: int) -> Iterator[None]:
    """Inside, the rows, inputs and labels that are looked at are those of one seed: for measurements."""
    token = _seed.set(seed)
    try:
        yield
    finally:
        _seed.reset(token)


def fresh_generator() -> torch.Generator:
    """Randomness of the system, which no server can foresee."""
    known = _seed.get()
    return torch.Generator().manual_seed(secrets.randbits(63) if known is None else known)


def as_module(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Named tensors as a module whose state dict they are, so that weights can be checked without a class.

    >>> list(as_module({"a.weight": torch.zeros(2, 2), "a.bias": torch.zeros(2)}).state_dict())
    ['a.weight', 'a.bias']
    """
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        place = root
        try:
            for part in path:
                if part not in place._modules:
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            place.register_buffer(leaf, tensor.detach())
        except (KeyError, AttributeError) as error:
            raise ModelError(f"'{name}' is no usable name of a tensor: export the weights again.") from error
    return root


def _kind(tensor: Tensor, stem: str, embeddings: set[str]) -> Kind:
    if tensor.dim() > 2:
        return "conv"
    named = "embed" in stem.lower() or stem.rpartition(".")[2] in _GPT2_EMBEDDINGS
    return "embedding" if stem in embeddings or named else "dense"
