"""The span of what a layer read, from its gradient, and how far other features lie from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_LOOK = 64
"""Directions that a whole vocabulary is compared in before what is left is compared in all of them. Cost:
time. What lies in the span has nothing in any of them, so that more or fewer change the time and not the
answer."""
LEAST_GAP = 30.0
"""Derived: neighbouring singular values of pure rounding differ by less than a factor of 2, of features
against it by 10,000 (GPT-2's size, random weights, 8 to 16 sentences): anything between tells them apart."""


REPEATED = 10
"""Rounding of one's own features and of the comparison, in units of their type's precision. No plateau test
yet."""
SOFT_SHARE = 0.9
"""Of the directions that count as read, in sum, where there is no gap. GPT-2-like networks 256 and 768 wide,
2 to 10 steps at rates of 1e-4 to 1e-2, seed 0: between .7 and .95 of them true features lie at most .3 times
as far outside as usual ones, below .5 of them farther than wrong beginnings. No plateau test yet."""
BISECTIONS = 100
"""Of the exponent of a positive double. Derived: with so many it is settled to its last digits."""
SOFT_TOLERANCE = 0.25
"""Of the usual distance, where there is no gap; `growing.grow` keeps the nearest ones. No plateau test
yet."""


@dataclass(frozen=True)
class Span:
    """A space of features, by the directions that are orthogonal to it."""

    outside: Tensor
    """(features, features - rank), orthonormal."""
    noise: float
    """How far rounding turns the span: its first singular value of noise over its last one of features, which
    bounds the sine of the angle (Wedin 1972)."""
    turning: Tensor | None = None
    """(features, rank): each direction of the span times how far rounding turns it by itself, the first
    singular value of noise over its own. None: not known."""
    soft: bool = False
    """No gap was looked for: `outside` has all directions, each with the share of it that was not read."""

    def rounded(self, features: Tensor) -> Tensor:
        """(n,) of (n, features): the share of each one's length that rounding may have put outside.

        Weak directions turn most, and what has little in them is turned little: a bound for each by itself.
        """
        if self.turning is None:
            return torch.full_like(features[..., 0], self.noise)
        length = features.norm(dim=-1)
        return torch.nan_to_num((features @ self.turning.to(features)).norm(dim=-1) / length)

    @property
    def rank(self) -> int:
        """Of the features that were read."""
        return self.outside.shape[0] - self.outside.shape[1]

    @property
    def full(self) -> bool:
        """Everything lies in it."""
        return self.outside.shape[1] == 0

    @classmethod
    def of(cls, gradient: Tensor, *, rounding: float, dtype: torch.dtype = torch.float32) -> Span | None:
        """The row space of (rows, features), its rank at the widest gap of the spectrum; None without a gap.

        rounding: the relative precision that the gradient was sent in.

        >>> rows = torch.rand(9, 2, dtype=torch.float64) @ torch.eye(4, dtype=torch.float64)[:2]
        >>> Span.of(rows, rounding=1e-7).residual(torch.eye(4)).tolist()
        [0.0, 0.0, 1.0, 1.0]
        """
        _, values, directions = torch.linalg.svd(gradient, full_matrices=True)
        size = directions.shape[0]
        values = torch.cat([values, values.new_zeros(size - len(values))])
        floor = rounding * float(values[0])
        present = int((values > floor).sum())
        if present == 0 or not bool(values.isfinite().all()):
            return None
        # a value of exactly zero is not infinitely far away: rounding is
        ratios = values[:present] / torch.cat([values[1:], values.new_zeros(1)])[:present].clamp_min(
            1e-3 * floor
        )
        rank = int(ratios.argmax()) + 1
        if float(ratios[rank - 1]) < LEAST_GAP:
            return cls(directions.new_zeros(size, 0).to(dtype), 0.0) if present == size else None
        turning = directions[:rank].T / (values[:rank] * float(ratios[rank - 1]) / values[rank - 1])
        return cls(directions[rank:].T.contiguous().to(dtype), 1 / float(ratios[rank - 1]), turning.to(dtype))

    @classmethod
    def softened(cls, gradient: Tensor, dtype: torch.dtype = torch.float32) -> Span | None:
        """Of the sum of several steps' gradients G: features move between the steps, so no gap is left.

        What the first step read is a combination c of the rows all the same, and one with small factors.
        So the distance is that of ridge regression, min_c |a - G^T c|^2 + s^2 |c|^2, which has the share
        s / sqrt(s^2 + v^2) of each direction of G, v its singular value; s is where `SOFT_SHARE` are read.

        >>> rows = torch.diag(torch.tensor([1.0, 0.5, 1e-3, 1e-3], dtype=torch.float64))
        >>> bool((Span.softened(rows).residual(torch.eye(4)).diff() >= -1e-6).all())
        True
        """
        _, values, directions = torch.linalg.svd(gradient, full_matrices=True)
        values = torch.cat([values, values.new_zeros(len(directions) - len(values))])
        if not bool(values.isfinite().all()) or float(values[0]) == 0:
            return None
        low, high = values.new_tensor(torch.finfo(torch.float64).tiny), values[0]
        for _ in range(BISECTIONS):
            middle = (low * high).sqrt()
            read = (values.square() / (values.square() + middle.square())).sum()
            low, high = (middle, high) if read > SOFT_SHARE * len(values) else (low, middle)
        shares = high / (values.square() + high.square()).sqrt()
        return cls((directions.T * shares).flip(1).contiguous().to(dtype), 0.0, soft=True)

    def residual(self, features: Tensor, *, first: int | None = None) -> Tensor:
        """(n,) of (n, features): the share of each one's length that lies outside.

        first: only in so many directions, as if the others had as much in them.
        """
        some = self.outside if first is None else self.outside[:, :first]
        scale = (self.outside.shape[1] / max(1, some.shape[1])) ** 0.5
        length = features.norm(dim=-1)
        outside: Tensor = scale * (features @ some.to(features)).norm(dim=-1) / length
        return torch.nan_to_num(outside, 1.0)  # nothing at all lies in every span, which says nothing


@dataclass(frozen=True)
class Threshold:
    """A span with the distance below which features count as lying in it."""

    span: Span
    tolerance: float

    @classmethod
    def against(cls, span: Span, others: Tensor) -> Threshold | None:
        """What rounding can account for, as `Span.noise` bounds it; true features lie 30 to 100 times nearer.

        None where `others`, nearly all of which lie outside, are too near to be told apart.
        """
        usual = float(span.residual(others).median())
        if span.soft:
            return cls(span, SOFT_TOLERANCE * usual)
        tolerance = max(span.noise, REPEATED * torch.finfo(others.dtype).eps)
        return cls(span, tolerance) if usual > LEAST_GAP * tolerance else None

    def passed(self, features: Tensor) -> Tensor:
        """(n,) bool of (n, features)."""
        kept = torch.ones(len(features), dtype=torch.bool, device=features.device)
        if len(features) > FIRST_LOOK:
            # true features have nothing in any direction, so the part that is looked at is small as well
            share = self.span.residual(features, first=FIRST_LOOK) * self._share
            kept = share <= self.tolerance
        where = kept.nonzero().squeeze(1)
        some = features[where]
        if self.span.soft:
            kept[where] = self.span.residual(some) <= self.tolerance
            return kept
        own = self.span.rounded(some) + REPEATED * torch.finfo(features.dtype).eps
        kept[where] = self.span.residual(some) <= own.clamp_max(self.tolerance)
        return kept

    @property
    def _share(self) -> float:
        return float(min(1.0, (FIRST_LOOK / max(1, self.span.outside.shape[1])) ** 0.5))
