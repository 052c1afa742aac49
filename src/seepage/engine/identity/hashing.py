"""One digest for anything that is made of plain values and tensors."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from seepage.core.lazy import shares_memory

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def digest(*values: Any) -> str:
    """SHA-256 in hex; another type, order, shape or bit gives another one.

    Of an object that is neither plain, nor a tensor, an array, a dataclass or a container, only the type
    counts: its `repr` may name an address.

    >>> digest({"a": 1, "b": [0.5]}) == digest({"b": [0.5], "a": 1}) != digest({"b": [0.5], "a": True})
    True
    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)) != digest(torch.zeros(2, 1))
    True
    """
    found = hashlib.sha256()
    for value in values:
        _feed(found, value)
    return found.hexdigest()


def is_plain(value: Any) -> bool:
    """Numbers, texts and containers of such.

    >>> is_plain({"a": (1, "b")}), is_plain([object()])
    (True, False)
    """
    if isinstance(value, Mapping):
        return all(is_plain(k) and is_plain(v) for k, v in value.items())
    if isinstance(value, list | tuple | AbstractSet):
        return all(is_plain(v) for v in value)
    return isinstance(value, PLAIN)


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


def _feed(found: _Hash, value: Any) -> None:
    if isinstance(value, Tensor | np.ndarray):
        _feed_tensor(found, torch.as_tensor(value))
    elif isinstance(value, Enum):
        _tagged(found, value, str(value.value))
    elif isinstance(value, PLAIN):
        _tagged(found, value, repr(value))
    elif isinstance(value, Mapping):
        # sorted: neither the order of a table nor that of a set may matter
        _feed_all(found, value, sorted((digest(k), digest(v)) for k, v in value.items()))
    elif isinstance(value, AbstractSet):
        _feed_all(found, value, sorted(digest(v) for v in value))
    elif isinstance(value, list | tuple):
        _feed_all(found, value, value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed_all(found, value, [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)])
    else:
        _tagged(found, value, "")


def _feed_all(found: _Hash, value: Any, parts: Any) -> None:
    _tagged(found, value, str(len(parts)))
    for part in parts:
        _feed(found, part)


def _tagged(found: _Hash, value: Any, text: str) -> None:
    """The lengths keep two neighbours from being taken for one."""
    kind = type(value).__name__
    found.update(f"{len(kind)} {kind} {len(text)} {text}".encode("utf-8", "surrogatepass"))


def _feed_tensor(found: _Hash, tensor: Tensor) -> None:
    _tagged(found, tensor, str((tuple(tensor.shape), tensor.dtype, tensor.layout, tensor.is_meta)))
    if tensor.is_meta:
        return
    # to numpy, looking is writing: what shares its memory would get memory of its own
    values = tensor.detach().clone() if shares_memory(tensor) else tensor.detach()
    values = values.dequantize() if values.is_quantized else values
    values = values.to_dense() if values.layout is not torch.strided else values
    plain = values.cpu().resolve_conj().resolve_neg().contiguous()
    found.update(plain.view(-1).view(torch.uint8).numpy())
