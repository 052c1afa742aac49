"""Attacks that a program gives as objects, on their way to a process that never held the data."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from seepage.core.errors import SpecError

_LEAST_VALUES = 8
"""Of an example: with fewer, numbers of an attack's own could equal it by chance."""
_LEVELS = 997.3
"""Between the lowest and the highest value of an example. Pixels are multiples of 1/255, and no such number
lies on the border between two of these levels."""


def shipped(attacks: Mapping[str, Any], examples: Tensor | None = None) -> bytes:
    """The objects as they travel; what a script or a notebook defines goes by value.

    examples: of the audited data (n, ...). An object that holds one of them, in an array or a tensor, itself
    or in what its functions refer to, is refused; in other units too, but not where it was changed otherwise.
    """
    known = set() if examples is None or examples[0].numel() < _LEAST_VALUES else _fingerprints(examples)
    for name, attack in attacks.items():
        pickler = _Pickler()
        try:
            pickler.dump(attack)
        except Exception as error:  # what an object refuses to be pickled with is its own affair
            raise SpecError(
                f"attack '{name}' runs in a process of its own and cannot be sent there "
                f"({type(error).__name__}: {error}): give one without open files, locks or generators."
            ) from None
        if known and any(_fingerprints(rows) & known for rows in pickler.rows_like(examples)):
            raise SpecError(
                f"attack '{name}' holds examples of the audited data: build it without them, for the threat "
                "model says what an attack may know."
            )
    return bytes(cloudpickle.dumps(dict(attacks)))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Goes through everything that would be sent, and keeps the tensors and arrays that it meets."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self._arrays: list[Tensor] = []

    def persistent_id(self, thing: Any) -> None:
        if isinstance(thing, io.IOBase):  # cloudpickle would read it
            raise TypeError("it holds an open file")
        if isinstance(thing, Tensor) and thing.layout is torch.strided:
            whole = torch.empty(0, dtype=thing.dtype, device=thing.device).set_(thing.untyped_storage())
            self._arrays += [thing.detach(), whole]  # a view takes along all that it looks into
        elif isinstance(thing, np.ndarray) and thing.dtype.kind in "fiub":
            self._arrays.append(torch.as_tensor(np.ascontiguousarray(thing)))

    def rows_like(self, examples: Tensor | None) -> list[Tensor]:
        """What it met, cut into pieces of the size of an example."""
        size = 1 if examples is None else examples[0].numel()
        return [array.reshape(-1, size) for array in self._arrays if array.numel() % size == 0]


def _fingerprints(examples: Tensor) -> set[int]:
    """One number for each, which no shift and no positive factor changes; none for a constant one."""
    found: set[int] = set()
    for part in examples.flatten(1).split(4096):
        rows = part.cpu().double()
        low = rows.amin(1, keepdim=True)
        span = (rows.amax(1, keepdim=True) - low).clamp_min(torch.finfo(torch.float64).tiny)
        codes = ((rows - low) / span * _LEVELS).round().to(torch.int16)
        telling = (codes > 0).sum(1) > 1
        found |= {hash(row.tobytes()) for row in codes[telling].numpy()}
    return found
