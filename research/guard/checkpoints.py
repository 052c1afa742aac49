"""Training checkpoints whose weights lie beside Python objects: those are left out, and none is executed.

The guard itself refuses such files. Here they are honest models that would otherwise be missing.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

_SAFE = {("collections", "OrderedDict"): OrderedDict}
_REBUILD = ("_rebuild_tensor_v2", "_rebuild_parameter", "_rebuild_tensor")


class _Anything(dict[Any, Any]):
    """Stands for an object of any class: takes every argument, state and item, and does nothing."""

    def __new__(cls, *_args: object, **_kwargs: object) -> _Anything:
        return super().__new__(cls)

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        if isinstance(state, Mapping):
            self.update(state)

    def append(self, _item: object) -> None: ...

    def extend(self, _items: object) -> None: ...


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in _REBUILD:
            return getattr(torch._utils, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return _SAFE.get((module, name), _Anything)


def checkpoint_tensors(path: Path) -> dict[str, Tensor]:
    """All floating-point tensors by their path in the checkpoint; modules that were pickled whole too."""
    reader = SimpleNamespace(Unpickler=_Unpickler, load=None, __name__="inert")
    loaded = torch.load(path, map_location="cpu", weights_only=False, pickle_module=reader)
    state: dict[str, Tensor] = {}
    met: set[int] = set()

    def visit(node: object, place: str) -> None:
        if id(node) in met and not isinstance(node, Tensor):
            return  # objects may hold each other
        met.add(id(node))
        if isinstance(node, Tensor) and node.is_floating_point() and "optim" not in place:
            state[place.lstrip(".")] = node.detach()
        elif isinstance(node, Mapping):
            for name, inner in node.items():
                inside = "" if name in {"_modules", "_parameters", "_buffers", "state_dict"} else f".{name}"
                visit(inner, place + inside)
        elif isinstance(node, list | tuple):
            for number, inner in enumerate(node):
                visit(inner, f"{place}.{number}")

    visit(loaded, "")
    return state
