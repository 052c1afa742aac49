"""Half-precision tensors that are reckoned with in float32 and take no memory for it.

A server reckons in float32 with a half-precision base that nobody trains. A copy of the whole base would take
twice what the base itself does. Here each operation widens what it needs, and forgets it when it is done.
"""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from seepage.core.lazy import lazy_clone

_aten = torch.ops.aten
_VIEWS = frozenset(
    {
        _aten.detach.default,
        _aten.alias.default,
        _aten.t.default,
        _aten.transpose.int,
        _aten.permute.default,
        _aten.view.default,
        _aten._unsafe_view.default,
        _aten.expand.default,
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.select.int,
        _aten.slice.Tensor,
    }
)
"""What shows the same values in another shape: autograd keeps these for the way back, so they stay narrow."""


_LARGE = 2**20
"""Bytes from which a temporary copy gets memory of its own. Cost: asking for it takes microseconds."""


class _Held:
    """The values, shared by a tensor and the views of it; in float32 once somebody has written to them."""

    def __init__(self, values: Tensor) -> None:
        self.values = values


class Widened(Tensor):
    """Shows itself in float32, and holds a lazy copy of what it was made of.

    >>> narrow = torch.ones(2, 3, dtype=torch.bfloat16)
    >>> shown = Widened.of(narrow)
    >>> shown.dtype, (shown @ torch.ones(3)).tolist(), shown[0].sum().item()
    (torch.float32, [3.0, 3.0], 3.0)
    >>> _ = shown[0].add_(1e-4)
    >>> round(shown.sum().item(), 4), narrow.sum().item()
    (6.0003, 6.0)
    """

    _held: _Held
    _steps: tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...]
    """From the values that are held to the view that this is."""

    @classmethod
    def of(cls, narrow: Tensor) -> Widened:
        return cls._shown(_Held(lazy_clone(narrow)), (), torch.float32)

    @classmethod
    def _shown(cls, held: _Held, steps: Any, dtype: torch.dtype) -> Widened:
        values = _stepped(held.values, steps)
        made: Widened = Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=dtype, device=values.device
        )
        made._held, made._steps = held, steps
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A plain one in float32: whoever copies a model may turn it into another type, or write to it."""
        copied = _opened(self)
        copied = copied.clone() if copied is self._held.values else copied
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(_opened(self.detach()))

    def tolist(self) -> Any:
        return _opened(self.detach()).tolist()

    def numpy(self, *, force: bool = False) -> Any:
        return _opened(self.detach()).numpy(force=force)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _VIEWS:
            return cls._shown(args[0]._held, (*args[0]._steps, (func, args[1:], kwargs)), args[0].dtype)
        if func is _aten.embedding.default:  # a few rows of a large table
            weight, *others = args
            rows = func(_stepped(weight._held.values, weight._steps), *others, **kwargs)
            return rows.to(weight.dtype)
        if func._schema.is_mutable:
            for described, value in zip(func._schema.arguments, args, strict=False):
                if isinstance(value, Widened) and described.alias_info is not None:
                    value._held.values = value._held.values.to(value.dtype)
        result = func(*tree_map_only(Widened, _opened, args), **tree_map_only(Widened, _opened, kwargs))
        written = func._schema.is_mutable and isinstance(args[0], Widened)
        return args[0] if written else result


def _stepped(values: Tensor, steps: Any) -> Tensor:
    for func, args, kwargs in steps:
        values = func(values, *args, **kwargs)
    return values


def _opened(shown: Any) -> Tensor:
    """In the type it shows (a module that is turned into float64 says so), for one operation."""
    return _in_type(_stepped(shown._held.values, shown._steps), shown.dtype)


def _in_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory that goes back to the system at once: the heap keeps what is freed between smaller pieces that
    live on, and grew by half of the base."""
    size = values.numel() * dtype.itemsize
    if values.dtype == dtype or values.device.type != "cpu" or size < _LARGE:
        return values.to(dtype)
    if values.ndim == 2 and not values.is_contiguous() and values.t().is_contiguous():
        return _in_type(values.t(), dtype).t()
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(values.shape).copy_(values)
