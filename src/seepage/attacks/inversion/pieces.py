"""Which piece every kink of a network is on, remembered from one pass and kept in the next.

Between the kinks of ReLU and max-pooling a difference of gradients is a derivative, while across one it would
be the kink's height over the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_RELU = frozenset({functional.relu, torch.relu, Tensor.relu})
_LEAKY = frozenset({functional.leaky_relu})
_MAX_POOL = frozenset({functional.max_pool2d, torch.max_pool2d})
_OTHER_KINKS = frozenset({
    functional.relu6, functional.hardtanh, functional.hardswish, functional.hardsigmoid, functional.prelu,
    functional.rrelu, functional.threshold, functional.max_pool1d, functional.max_pool3d,
    functional.adaptive_max_pool1d, functional.adaptive_max_pool2d, functional.softshrink,
    functional.hardshrink, torch.max, torch.amax, torch.maximum, torch.minimum, torch.abs, torch.clamp,
    Tensor.max, Tensor.amax, Tensor.abs, Tensor.clamp,
})  # fmt: skip
"""Left to double backprop: a difference across these kinks would be wrong, and they are not followed."""


class Pieces(TorchFunctionMode):
    """Remembers which piece each ReLU and max-pooling is on, and then stays on it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []
        self.next: int | None = None

    def again(self) -> Pieces:
        """To enter for a pass that stays on the pieces of the last one."""
        self.next = 0
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RELU:
            return self._relu(args[0])
        if func in _LEAKY:
            return self._leaky(*args, **{name: v for name, v in kwargs.items() if name != "inplace"})
        if func in _OTHER_KINKS:
            raise NotImplementedError(f"the pieces of {func} are not followed")
        if func in _MAX_POOL and not kwargs.get("return_indices", False):
            return self._max_pool(args[0], args[1:], kwargs)
        return func(*args, **kwargs)

    def _relu(self, x: Tensor) -> Tensor:
        if self.next is None:
            out = torch.relu(x)
            self.kept.append(out.detach())
            return out
        piece: Tensor = torch.ops.aten.threshold_backward(x, self._piece(), 0)  # x where it was positive
        return piece

    def _leaky(self, x: Tensor, negative_slope: float = 0.01, *_: object) -> Tensor:
        out: Tensor
        if self.next is None:
            self.kept.append(x.detach())
            out = torch.ops.aten.leaky_relu(x, negative_slope)
        else:
            out = torch.ops.aten.leaky_relu_backward(x, self._piece(), negative_slope, False)
        return out

    def _max_pool(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if self.next is None:
            out, where = functional.max_pool2d_with_indices(x, *args, **kwargs)
            self.kept.append(where)
            return out
        where = self._piece()
        if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):  # pixels in rows: no copies
            rows, chosen = (t.permute(0, 2, 3, 1).flatten(1, 2) for t in (x, where))
            n, channels, *sides = where.shape
            return rows.gather(1, chosen).view(n, *sides, channels).permute(0, 3, 1, 2)
        return x.flatten(-2).gather(-1, where.flatten(-2)).reshape(where.shape)

    def _piece(self) -> Tensor:
        assert self.next is not None
        self.next += 1
        return self.kept[self.next - 1]
