"""Convolutions with 3x3 kernels by Winograd's algorithm, forward, backward and for weight gradients.

Lavin & Gray 2016, F(4x4, 3x3): a tile of 4x4 outputs takes 36 multiplications for each pair of channels in
place of 144. With the tiles of input, kernel and output signal transformed by B, G and A, the three products
that a convolution and its gradients need are matrix products for each of 36 frequencies,

    output M = V W^,   input gradient D W^T,   weight gradient V^T D      (V = B a, W^ = G w, D = A^T delta)

and an objective that needs all three, two of them twice, transforms each tensor once. torch's convolutions on
a CPU are direct ones: on 256 channels of 32x32 these take a quarter of their time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from seepage.attacks.inversion.layer_terms import ConvolutionTerms, padding_of

ENOUGH_POSITIONS = 400
"""Outputs below which tiles of 2 x 2 do. Cost: fewer frequencies, so less of the transformed kernel to
read."""
TWO_BY_TWO = (0.0, 1.0, -1.0)
"""Points of evaluation. Paper: Lavin and Gray 2016, F(2 x 2, 3 x 3)."""
FOUR_BY_FOUR = (0.0, 2 / 3, -2 / 3, 3 / 2, -3 / 2)
"""Points of evaluation. Derived: reciprocal pairs near 1 keep the powers small; the usual 0, 1, -1, 2, -2
(Lavin and Gray 2016) round twice as much."""
ENOUGH_PRODUCTS = 64 * 64
"""Pairs of channels below which the transforms take longer than the products save. Cost: measured."""


def transforms(points: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """B, G and A of one dimension for tiles of len(points) - 1 outputs (Toom-Cook, Lavin & Gray, Sec. 4).

    Outputs and kernel are polynomials, evaluated at the points and at infinity, and patches are what the
    adjoint of the interpolation takes: y = A^T [(G w) * (B d)].

    >>> b, g, a = transforms((0.0, 1.0, -1.0))
    >>> patch, kernel = torch.arange(4.0).double(), torch.tensor([1.0, 10.0, 100.0]).double()
    >>> (a.T @ ((g @ kernel) * (b @ patch))).tolist()
    [210.0, 321.0]
    """

    def powers(count: int) -> Tensor:
        finite = [[point**power for power in range(count)] for point in points]
        return torch.tensor([*finite, [0.0] * (count - 1) + [1.0]], dtype=torch.float64)

    return torch.linalg.inv(powers(len(points) + 1)).T, powers(3), powers(len(points) - 1)


def suits_winograd(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """3x3 without stride, dilation or groups, on a CPU (GPU libraries choose for themselves), wide enough."""
    return (
        type(module) is nn.Conv2d  # a subclass may compute something else
        and module.kernel_size == (3, 3)
        and module.stride == module.dilation == (1, 1)
        and module.groups == 1
        and module.padding_mode == "zeros"
        and module.in_channels * module.out_channels >= ENOUGH_PRODUCTS
        and module.weight.device.type == "cpu"
        and module.weight.dtype in (torch.float32, torch.float64)
    )


class WinogradTerms(ConvolutionTerms):
    """Tensors are (restarts, height, width, channels) here, so that tiles are copied in runs of channels."""

    def __init__(self, module: nn.Conv2d, weight: str | None, bias: str | None) -> None:
        super().__init__(module, weight, bias)
        self._channels = (module.out_channels, module.in_channels)
        self._size: tuple[int, int] | None = None
        self.forward = lambda inputs: _Winograd.apply(inputs, self)  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        super().forget()
        self._input = torch.empty(0)
        self._signal: Tensor | None = None

    def arranged(self, weight: Tensor) -> Tensor:
        """(K, C, 3, 3) to (9, K, C)."""
        return weight.permute(2, 3, 0, 1).reshape(9, *self._channels).contiguous()

    def _fit(self, height: int, width: int) -> None:
        """Tiles for inputs of this size, and the kernel transformed for them."""
        if self._size == (height, width):
            return
        self._size, self._padding = (height, width), padding_of(self.module)
        self._out = (height + 2 * self._padding[0] - 2, width + 2 * self._padding[1] - 2)
        points = FOUR_BY_FOUR if math.prod(self._out) >= ENOUGH_POSITIONS else TWO_BY_TWO
        self._tile, self._patch, self._frequencies = len(points) - 1, len(points) + 1, (len(points) + 1) ** 2
        self._tiles = (-(-self._out[0] // self._tile), -(-self._out[1] // self._tile))
        weight = self.module.weight.detach()
        # rows and columns at once, on flattened patches
        self._b, self._g, a = (torch.kron(m, m).to(weight) for m in transforms(points))
        self._a = a.T.contiguous()
        spread = self._g @ self.arranged(weight).reshape(9, -1)
        self._kernel = spread.view(self._frequencies, *self._channels)

    def output_of(self, inputs: Tensor) -> Tensor:
        """(R, C, H, W) to (R, K, H', W'), and the transformed input kept for the weight gradient."""
        restarts, _, height, width = inputs.shape
        self._fit(height, width)
        tile, (top, left), (down, right) = self._tile, self._padding, self._tiles
        ends = (tile * right + 2 - width - left, tile * down + 2 - height - top)
        padded = nn.functional.pad(inputs.permute(0, 2, 3, 1), (0, 0, left, ends[0], top, ends[1]))
        patches = padded.unfold(1, self._patch, tile).unfold(2, self._patch, tile).permute(4, 5, 0, 1, 2, 3)
        self._input = self._by_frequency(self._b @ patches.reshape(self._frequencies, -1), self._channels[1])
        products = torch.bmm(self._input, self._kernel.transpose(1, 2))
        tiles = self._a @ products.view(self._frequencies, -1)
        whole = tiles.view(tile, tile, restarts, down, right, -1).permute(2, 3, 0, 4, 1, 5)
        output = whole.reshape(restarts, tile * down, tile * right, -1)[:, : self._out[0], : self._out[1]]
        if self.module.bias is not None:
            output += self.module.bias
        return output.permute(0, 3, 1, 2)

    def _by_frequency(self, flat: Tensor, channels: int) -> Tensor:
        return flat.view(self._frequencies, -1, channels)

    def _transformed(self, delta: Tensor) -> Tensor:
        """(R, K, H', W') to (frequencies, R * tiles, K)."""
        tile, (down, right), (height, width) = self._tile, self._tiles, self._out
        ends = (0, 0, 0, tile * right - width, 0, tile * down - height)
        padded = (
            nn.functional.pad(delta.permute(0, 2, 3, 1), ends) if any(ends) else delta.permute(0, 2, 3, 1)
        )
        tiles = padded.reshape(len(delta), down, tile, right, tile, -1).permute(2, 4, 0, 1, 3, 5)
        return self._by_frequency(self._a.T @ tiles.reshape(tile * tile, -1), self._channels[0])

    def input_gradient(self, delta: Tensor) -> Tensor:
        """Of the first backward pass, which brings the signal; of the second, with what was injected."""
        signal = self._transformed(delta)
        if not self.injected:
            self._signal = signal
            return self._gathered(torch.bmm(signal, self._kernel))
        injected = self.injected[0] if len(self.injected) == 1 else torch.cat(self.injected, dim=1)
        return self._gathered(injected.baddbmm_(signal, self._kernel))

    def _gathered(self, products: Tensor) -> Tensor:
        """The adjoint of cutting into patches and transforming them: overlaps of two pixels add up."""
        assert self._size is not None
        tile, (down, right), (height, width), (top, left) = self._tile, self._tiles, self._size, self._padding
        flat = self._b.T @ products.view(self._frequencies, -1)
        patches = flat.view(self._patch, self._patch, -1, down, right, self._channels[1])
        patches = patches.permute(2, 3, 0, 4, 1, 5)  # (R, down, patch, right, patch, C)
        whole = patches.new_zeros(len(patches), down + 1, tile, right + 1, tile, self._channels[1])
        whole[:, :-1, :, :-1] = patches[:, :, :tile, :, :tile]
        whole[:, 1:, :2, :-1] += patches[:, :, tile:, :, :tile]
        whole[:, :-1, :, 1:, :2] += patches[:, :, :tile, :, tile:]
        whole[:, 1:, :2, 1:, :2] += patches[:, :, tile:, :, tile:]
        whole = whole.view(len(patches), tile * (down + 1), tile * (right + 1), self._channels[1])
        return whole[:, top : top + height, left : left + width].permute(0, 3, 1, 2)

    def _one(self, tiles: Tensor, restart: int) -> Tensor:
        count = math.prod(self._tiles)
        return tiles[:, restart * count : (restart + 1) * count]

    def receive(self, delta: Tensor) -> None:
        super().receive(delta)
        if self._signal is None:  # the first layer: nothing was passed on from it
            self._signal = self._transformed(delta)

    def weight_gradient(self, restart: int) -> Tensor:
        assert self._signal is not None
        inputs, signal = self._one(self._input, restart), self._one(self._signal, restart)
        spread = torch.bmm(signal.transpose(1, 2), inputs)
        return (self._g.T @ spread.view(self._frequencies, -1)).view(9, *self._channels)

    def inject(self, restart: int, u: Tensor) -> None:
        assert self._signal is not None
        spread = (self._g @ u.reshape(9, -1)).view(self._frequencies, *self._channels)
        self.injected.append(torch.bmm(self._one(self._signal, restart), spread))

    def roots(self) -> list[tuple[Tensor, Tensor]]:
        """None: what was injected is added on the way, see `input_gradient`."""
        return []


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, inputs: Tensor, terms: WinogradTerms) -> Tensor:
        ctx.terms = terms  # type: ignore[attr-defined]
        return terms.output_of(inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, delta: Tensor) -> tuple[Tensor, None]:
        terms: WinogradTerms = ctx.terms  # type: ignore[attr-defined]
        return terms.input_gradient(delta), None
