"""What a layer's gradient still holds once the contributions of all found examples are taken away.

The subtraction always starts from the gradient that was received, never from an earlier residual, and is done
in blocks of rows that are read and forgotten: no second copy of the gradient is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import BLOCK, BLOCK_BYTES
from seepage.attacks.reading.rows import RowScan, scan_rows
from seepage.models.gradients import LayerGradient
from seepage.models.precision import Precision
from seepage.models.signals import ROUNDING


def row_norms(rows: Tensor) -> Tensor:
    """(r,) in double precision, for the squares of small float32 numbers are 0.

    >>> row_norms(torch.tensor([[3e-30, 4e-30]])).item() > 4.99e-30
    True
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


@dataclass
class Found:
    """The examples found so far."""

    features: Tensor
    """(k, m) what the layer reads."""
    labels: Tensor
    signals: Tensor
    """(k, N) backward signals."""
    error: Tensor
    """(k,) relative error of `features`; 0 for those that lie on an alphabet."""
    doubt: Tensor
    """(k,) relative error of `signals`. Rounding goes with p: a small p - y is known the worse."""
    exact: Tensor
    """(k,) bool: on an alphabet."""
    mismatch: Tensor
    """(k,) relative difference of the predicted and the observed bias gradient, where it was read."""
    row: Tensor
    """(k,) where it was read."""
    support: Tensor
    """(k,) rows that agreed when it was read."""
    round: Tensor
    """(k,) 0: plain extraction."""
    evidence: Tensor
    """(k,) that it is the product of one example alone, as `products.joint_evidence` has it; 0: none."""
    times: Tensor
    """(k,) as how many examples of its label the reading counts; each of them is listed."""
    shared: Tensor
    """(k,) bool: told apart from others that fire at the same rows, so that its row says nothing about it."""

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def none(like: Tensor) -> Found:
        """Nothing found in a gradient (N, m)."""
        rows, columns = like.shape
        real, whole = like.new_zeros(0), torch.zeros(0, dtype=torch.long, device=like.device)
        return Found(
            features=like.new_zeros(0, columns),
            labels=whole,
            signals=like.new_zeros(0, rows),
            error=real,
            doubt=real,
            exact=whole.bool(),
            mismatch=real,
            row=whole,
            support=whole,
            round=whole,
            evidence=real.double(),
            times=whole,
            shared=whole.bool(),
        )

    def typical(self) -> Tensor:
        """(k,) root mean square of each example's signal where it fires, in double precision."""
        fires = (self.signals != 0).sum(1).clamp_min(1)
        return row_norms(self.signals) / fires.sqrt()

    def plus(self, more: Found) -> Found:
        return Found(**{k: torch.cat([v, getattr(more, k)]) for k, v in vars(self).items()})

    def select(self, index: Tensor) -> Found:
        return Found(**{k: v[index] for k, v in vars(self).items()})


@dataclass(frozen=True)
class Rows:
    """Some rows of the residual, summed over examples (not divided by the batch size)."""

    index: Tensor
    """(r,) numbers of the rows."""
    bias: Tensor
    """(r,)"""
    norm: Tensor
    """(r,) of the residual of the weight row."""
    noise: Tensor
    """(r,) expected rounding error of `bias`."""
    weight_noise: Tensor
    """(r,) expected norm of the rounding error of the weight row."""
    scan: RowScan


class Residual:
    """factor * gradient - sum_j d_j ⊗ [x_j, 1] over found examples j, for any rows that are asked for."""

    def __init__(
        self,
        gradient: LayerGradient,
        *,
        groups: int = 1,
        seed: int = 0,
        signal_rounding: float = ROUNDING,
        computed: torch.dtype | None = None,
    ) -> None:
        self.precision = gradient.precision
        self.signal_rounding = signal_rounding
        self.weight, self.bias = gradient.weight, gradient.bias
        self.factor = 1.0 if gradient.scale is None else gradient.scale
        self.groups = groups
        self.seed = seed
        self.computed = computed
        """As `products.as_computed` has it."""
        self.rounding: tuple[Tensor, Tensor] | None = None
        self.norm = torch.cat([row_norms(b) for b in self.weight.split(self._block())])  # (N,), unscaled

    def set_rounding(self, weight: Tensor, bias: Tensor) -> None:
        """(N,) norm of each weight row's and bias' own rounding, where the update is a difference."""
        self.rounding = (weight, bias)

    @property
    def fine(self) -> bool:
        """Whether it is a gradient in full precision: no difference of weights, no cast."""
        return self.rounding is None and self.precision.relative <= Precision.of_type(torch.float32).relative

    def _block(self) -> int:
        return max(1, BLOCK_BYTES // max(1, self.weight.shape[1] * self.weight.element_size()))

    def weights(self, index: Tensor, found: Found) -> Tensor:
        """(r, m)"""
        block = self.weight[index].mul_(self.factor)
        if len(found):
            block.addmm_(found.signals[:, index].T, found.features, alpha=-1)
        return block

    def columns(self, index: Tensor, found: Found) -> Iterator[Tensor]:
        """The same rows (r, m), some columns at a time."""
        size = max(1, BLOCK_BYTES // max(1, len(index) * self.weight.element_size()))
        d = found.signals[:, index].T
        for some, x in zip(self.weight.split(size, 1), found.features.split(size, 1), strict=True):
            yield some[index].mul_(self.factor).addmm_(d, x, alpha=-1)

    def biases(self, index: Tensor, found: Found) -> Tensor:
        """(r,) in double precision."""
        return self.bias[index].double() * self.factor - found.signals[:, index].double().sum(0)

    def noise(self, index: Tensor, found: Found) -> tuple[Tensor, Tensor]:
        """(r,) of the bias and (r,) of the weight row: what rounding alone may leave.

        The error of d_ij goes with the example's typical signal, not with d_ij itself, which may be small
        by cancellation; an example known with an error brings that along too. All in double precision: a
        saturated loss leaves signals of 1e-25 beside others of 1, and float32 has no squares of those.
        """
        # Computing costs about eps of the type; a coarser format on the way, half its last digit at most.
        cast = self.precision.relative / 3**0.5
        eps, least = math.hypot(torch.finfo(self.bias.dtype).eps, cast), self.precision.absolute * self.factor
        bias = (eps * self.bias[index].double() * self.factor).square() + least**2
        weight = (eps * self.norm[index] * self.factor).square() + self.weight.shape[1] * least**2
        if self.rounding is not None:
            weight = weight + (self.rounding[0][index].double() * self.factor).square()
            bias = bias + (self.rounding[1][index].double() * self.factor).square()
        if len(found):
            rounding, size = self.signal_rounding * found.typical(), row_norms(found.features)  # (k,)
            for at, rows in zip(torch.arange(len(index)).split(BLOCK), index.split(BLOCK), strict=True):
                d = found.signals[:, rows].double().abs_()  # (k, rows)
                of_signal = rounding.unsqueeze(1) * (d != 0)
                bias[at] += of_signal.square().sum(0)
                of_signal += d.mul_(found.error.unsqueeze(1))
                weight[at] += of_signal.mul_(size.unsqueeze(1)).square_().sum(0)
        return bias.sqrt(), weight.sqrt()

    def value_bound(self, index: Tensor, bias: Tensor, read: Tensor) -> Tensor:
        """(r,) what the update's own rounding may add to any value of the quotients (r, m) `read`.

        |w / b - w' / b'| <= (|w - w'| + |w / b| |b - b'|) / |b'|. A weight delta is off by half a last digit
        of the weight, which is at most twice the row's root mean square.
        """
        weights = self.precision.of(self.weight[index].abs().amax(1))
        biases = self.precision.of(self.bias[index])
        if self.rounding is not None:
            weights += 2 * 3**0.5 * self.rounding[0][index] / self.weight.shape[1] ** 0.5
            biases += 3**0.5 * self.rounding[1][index]
        return abs(self.factor) * (weights + read.abs().amax(1) * biases) / bias.abs()

    def scan(self, index: Tensor, found: Found) -> Rows:
        """Read the rows `index`, a block at a time."""
        bias = self.biases(index, found)
        noise, weight_noise = self.noise(index, found)
        norms: list[Tensor] = []
        scans: list[RowScan] = []
        for rows, b in zip(index.split(self._block()), bias.split(self._block()), strict=True):
            weights = self.weights(rows, found)
            norms.append(row_norms(weights))
            scans.append(scan_rows(weights, b.to(weights), groups=self.groups, seed=self.seed))
        return Rows(
            index=index,
            bias=bias,
            norm=torch.cat(norms),
            noise=noise,
            weight_noise=weight_noise,
            scan=RowScan(**{k: torch.cat([getattr(s, k) for s in scans]) for k in vars(scans[0])}),
        )


def delta_rounding(
    weight: Tensor, bias: Tensor, *, precision: Precision | None = None
) -> tuple[Tensor, Tensor]:
    """(N,) of each row and (N,) of each bias: the root mean square rounding error of new minus old weights.

    A new weight is rounded to a multiple of its last digit, ulp(w); the difference to the old one is exact.
    Such an error is uniform within half an ulp either way. The server knows w, so it knows this noise.
    precision: of the weights, where it is not that of their type.

    >>> rows, single = delta_rounding(torch.tensor([[1.0, -3.0]]), torch.tensor([0.5, 0.0]))
    >>> [round(v * 12**0.5 * 2**24, 3) for v in (*rows.tolist(), *single.tolist())]     # in ulp(0.5)
    [4.472, 1.0, 0.0]
    """
    eps = torch.finfo(weight.dtype).eps if precision is None else 2 * precision.relative
    rows = torch.cat([_last_digit(part, eps).norm(dim=1) for part in weight.split(BLOCK)])
    return rows / 12**0.5, _last_digit(bias, eps) / 12**0.5


def _last_digit(values: Tensor, eps: float) -> Tensor:
    """ulp: |v| = m * 2^e with 1/2 <= m < 1 has digits of 2^(e - 1) * eps; 0 has none."""
    digit = torch.ldexp(torch.full_like(values, eps / 2), torch.frexp(values).exponent)
    return torch.where(values == 0, torch.zeros_like(values), digit)
