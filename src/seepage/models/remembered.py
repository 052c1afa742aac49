"""What was found out about a model, kept for as long as its weights stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

Found = TypeVar("Found")

_kept: WeakKeyDictionary[nn.Module, tuple[Hashable, dict[Hashable, Any]]] = WeakKeyDictionary()


def remembered(model: nn.Module, key: Hashable, find: Callable[[], Found]) -> Found:
    """What `find` gives, or gave before for this key.

    Attacks ask the same of one model for each of thousands of updates, and running the model is what costs. A
    change in place raises a tensor's version, so nothing stale is returned.

    >>> model = nn.Linear(1, 1)
    >>> first = remembered(model, "sum", lambda: model.weight.sum().item())
    >>> _ = nn.init.ones_(model.weight)
    >>> remembered(model, "sum", lambda: model.weight.sum().item())
    1.0
    """
    state = (
        *((id(p), p._version, p.requires_grad) for p in model.parameters()),
        *((id(b), b._version) for b in model.buffers()),
    )
    if model not in _kept or _kept[model][0] != state:
        _kept[model] = (state, {})
    found = _kept[model][1]
    if key not in found:
        found[key] = find()
    kept: Found = found[key]
    return kept
