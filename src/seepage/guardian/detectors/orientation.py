"""Which dense layers are stored inputs first, as GPT-2's Conv1D stores them: (inputs, outputs).

There is one bias for each output, so the bias tells where a layer is not square. A square one is read as the
layers of its own name are, or as all others are. What nothing tells stays unread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from torch import Tensor


class Orientation(NamedTuple):
    """Names of weights."""

    turned: frozenset[str]
    """Stored inputs first."""
    unsure: frozenset[str]
    """Either way, in a file where others are stored inputs first."""


def bias_of(name: str, state: Mapping[str, Tensor]) -> Tensor | None:
    """The bias that belongs to a weight, where there is one of one dimension."""
    bias = state.get("bias".join(name.rsplit("weight", 1)))
    return bias if bias is not None and bias.dim() == 1 else None


def orientation(
    state: Mapping[str, Tensor], dense: Collection[str], straight: Collection[str]
) -> Orientation:
    """How the dense layers of a model are stored. `straight`: those that are known to be outputs first.

    >>> import torch
    >>> state = {"a.weight": torch.ones(4, 12), "a.bias": torch.ones(12)}
    >>> state |= {"b.weight": torch.ones(4, 4), "b.bias": torch.ones(4), "c.weight": torch.ones(9, 4)}
    >>> found = orientation(state, list(state), ())
    >>> sorted(found.turned), sorted(found.unsure)
    (['a.weight', 'b.weight'], [])
    """
    weights = {name: state[name].shape for name in dense if state[name].dim() == 2}
    told: dict[str, bool] = {}
    for name, (first, second) in weights.items():
        bias = bias_of(name, state)
        if name in straight or (bias is not None and len(bias) == first != second):
            told[name] = False
        elif bias is not None and len(bias) == second != first:
            told[name] = True
    if not any(told.values()):
        return Orientation(frozenset(), frozenset())
    made = {weights[name][int(turned)] for name, turned in told.items()}
    by_bias = {told[name] for name in told if bias_of(name, state) is not None}
    unsure = set()
    for name, (first, second) in weights.items():
        if name in told:
            continue
        namesakes = {told[other] for other in told if _own_name(other) == _own_name(name)}
        agreed = namesakes if first == second and len(namesakes) == 1 else by_bias
        if first == second and len(agreed) == 1:
            told[name] = agreed == {True}
        elif second in made and first not in made:  # what it reads is what others make
            told[name] = False
        else:
            unsure.add(name)
    return Orientation(frozenset(name for name, turned in told.items() if turned), frozenset(unsure))


def _own_name(name: str) -> str:
    """Of the module, without the path to it."""
    return name.removesuffix(".weight").rpartition(".")[2]
