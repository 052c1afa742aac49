"""Whether a row of a gradient is one product: floating point itself is an alphabet that mixtures do not have.

Where one example alone activates a neuron, every other term of G_w[i] = sum_j d_ji x_j and of
G_b[i] = sum_j d_ji is exactly 0. What is received is then fl(d_i x_m) and d_i: the product of two
floating-point numbers, rounded once. Conversely, with d_i = s 2^e, 1 <= s < 2, the products d_i x of
neighbouring x lie s last digits apart as long as they stay below the next power of two: of all numbers there,
only one in s is such a product. A row that holds two examples hits one at each value with a probability of
1 / s. The most alike two hit one more often: where x is the same and d_1 + d_2 needs no rounding, only the
first product's rounding, a quarter of the sum's last digit at most, moves fl(d_1 x + d_2 x) from fl(d_i x):
in one value of eight.

No batch size, label, range or alphabet of the data is needed for that. It holds for a gradient as it was
computed: a cast, a factor (clipping) or a difference of weights leaves no product, and nothing is proven.
Copies of one example that have the same label are such a product too, of that example and twice its d. So are
two examples that have exactly the same d, as where the loss is saturated: the caller rules those out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import BLOCK_BYTES, PROOF
from seepage.core.types import Exchange, UpdateKind
from seepage.models.gradients import LayerGradient
from seepage.models.precision import Precision

_ROW = math.log(1 / 20)
"""The most that one row says. Values of a grid (k / 255, say) have digits in common and are moved together:
of 69 rows with two faces one grey step apart, whose values are means of three such, two passed in 140 and 33
values. Rows have other d, and are moved by themselves. No plateau test yet."""
ACCIDENT = math.log(1e-3)
"""Chance below which products speak for the declared number of examples. Derived: that of `scale`, for a
factor that nobody expected."""
_VALUES = 1024
"""Values of a row that are looked at. Cost: some hundred prove it, and another example in the row changes
d_i, which shows in all of them."""


def as_computed(exchange: Exchange, gradient: LayerGradient) -> torch.dtype | None:
    """The type a gradient was computed in; None where its numbers were changed since, or are too coarse."""
    update = exchange.update
    if update.kind is not UpdateKind.GRADIENT or update.derived or len(exchange.clients) > 1:
        return None
    for dtype in (torch.float32, torch.float64):
        if gradient.precision == Precision.of_type(dtype):
            return dtype
    return None


def product_evidence(weight: Tensor, bias: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """(r,) logarithm of the chance that `rows` (r,) would be products if they were mixtures; inf: none.

    weight (N, m) and bias (N,) of a gradient; dtype: as `as_computed` has it.

    >>> _ = torch.manual_seed(0)
    >>> x, d = torch.rand(2, 300), torch.tensor([[0.3], [0.37]])
    >>> mixed, b = d[0] * x[0] + d[1] * (x[0] + 1e-4), d.sum(0)
    >>> weight, bias = torch.stack([d[0] * x[0], mixed]), torch.cat([d[0], b])
    >>> evidence = product_evidence(weight, bias, torch.arange(2), torch.float32)
    >>> [round(each, 1) for each in evidence.tolist()]
    [-3.0, inf]
    """
    some = torch.linspace(0, weight.shape[1] - 1, min(_VALUES, weight.shape[1])).round().long()
    at, each = some.to(weight.device), max(1, BLOCK_BYTES // max(1, len(some) * weight.element_size()))
    parts = [
        _evidence(weight[part.unsqueeze(1), at].to(dtype), bias[part].to(dtype).unsqueeze(1))
        for part in rows.split(each)
    ]
    return torch.cat(parts)


def _evidence(g: Tensor, d: Tensor) -> Tensor:
    """As `product_evidence`, of rows (r, v) and d (r, 1) in the type they were computed in."""
    x = g / d  # the nearest number; that of a product is it or its neighbour
    up, down = (torch.nextafter(x, torch.full_like(x, end)) for end in (torch.inf, -torch.inf))
    product = (x * d == g) | (up * d == g) | (down * d == g)
    digits, exponent = torch.frexp(g)
    significand, of_d = torch.frexp(d)
    of_x = torch.frexp(x)
    full = g.abs() > torch.finfo(g.dtype).tiny  # below, products lose digits
    # |x| = 2^k has a product in every mixture of examples that agree there.
    below = (exponent < of_d + of_x.exponent) & (of_x.mantissa.abs() != 0.5) & full
    # Values that a power of two parts are rounded alike: equal digits are no new evidence.
    seen = torch.where(below, digits.abs(), torch.zeros_like(digits)).sort(dim=1).values
    different = (seen.diff(dim=1, prepend=torch.zeros_like(seen[:, :1])) != 0).sum(1)
    # Moved by e < 1/4, it misses the next product, s last digits on, if e < s - 1: the mean of min(e, s - 1).
    over = (2 * significand.abs().double() - 1).clamp(max=0.25).squeeze(1)
    chance = (different * torch.log1p(-(over - 2 * over.square()))).clamp_min(_ROW)
    refuted = (~product & full).any(1)
    return torch.where(refuted, torch.inf, chance)


def proves(evidence: Tensor) -> bool:
    """Whether readings of evidence (k,), whose signals agree on what one example counts, show that by
    themselves. Means of examples that are nearly alike agree too, on twice as much.

    A reading passes by accident where so many of its rows were tried that one was bound to: its evidence is
    above 0, and it counts as refuted. 0: no evidence.

    >>> proves(torch.tensor([-9.0, -9.0, torch.inf])), proves(torch.tensor([-9.0, torch.inf]))
    (True, False)
    """
    return _accident(evidence) <= PROOF


def speaks_for(evidence: Tensor, *, surely: bool = False) -> bool:
    """Whether products of evidence (k,) do not speak against a number that was declared: none is refuted, or
    those that pass do so by no accident. surely: the latter in any case.

    >>> speaks_for(torch.tensor([-2.0, -1.0])), speaks_for(torch.tensor([-2.0, torch.inf]))
    (True, False)
    >>> speaks_for(torch.tensor([-2.0, -1.0]), surely=True)
    False
    """
    passed = int((evidence <= 0).sum())
    all_pass = passed == len(evidence) and not surely
    return passed > 0 and (all_pass or _accident(evidence) <= ACCIDENT)


def _accident(evidence: Tensor) -> float:
    """Logarithm of the chance that so many pass by accident: which of them did is one choice of many."""
    products = evidence <= 0
    return float(evidence[products].sum()) + math.log(math.comb(len(evidence), int(products.sum())))


def best_proven(strength: Tensor, evidence: Tensor | None) -> Tensor:
    """The order of rows (r,) by what they prove, then by their strength.

    Rows that show nearly the same may hold x, y or both: the one that is read is the one that is proven.

    >>> best_proven(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([-9.0, torch.inf, torch.inf])).tolist()
    [2, 1, 0]
    """
    if evidence is None:
        return strength
    by_strength = strength.argsort(stable=True)
    order = by_strength[evidence[by_strength].argsort(descending=True, stable=True)]
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def joint_evidence(groups: Tensor, evidence: Tensor) -> Tensor:
    """(k,) evidence of groups 0 to k - 1 of rows (r,) that show the same; inf where none is a product.

    Rows count together where all are products; else the best one of so many that were tried, which is the one
    that is read (`best_proven`).

    >>> evidence = torch.tensor([-8.0, -9.0, -20.0, torch.inf, torch.inf, torch.inf])
    >>> [round(e, 1) for e in joint_evidence(torch.tensor([0, 0, 1, 1, 2, 2]), evidence).tolist()]
    [-17.0, -19.3, inf]
    """
    groups = groups.to(evidence.device)
    count = torch.bincount(groups)
    total = torch.zeros(len(count), dtype=torch.float64, device=evidence.device)
    total.index_add_(0, groups, evidence.double())
    best = torch.full_like(total, torch.inf).scatter_reduce_(0, groups, evidence.double(), "amin")
    return torch.minimum(total, best + count.log().clamp_min(0))
