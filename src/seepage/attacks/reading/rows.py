"""Reading a linear layer's gradient row by row: one pass over the gradient, vectorised over neurons.

A row i holds G_w[i] = sum_j d_ij x_j and G_b[i] = sum_j d_ij (Boenisch et al. 2021, eq. 6). If a single
example j activates the neuron, G_w[i] / G_b[i] = x_j (eq. 5). The pass never writes a scaled copy of the
gradient: it takes each row's extremes and a short random sketch, which is enough to drop mixtures that
leave the value range and to find rows that agree. Only what is kept is divided and written out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor

SKETCH = 8
"""Random projections of a row. Tested: test_constants_of_reading_lie_on_a_plateau."""
_BLOCK_BYTES = 1 << 22
"""A block of rows that stays in cache between its readings. Cost: time."""
_SAME = 1e-4
"""Share of the typical sketch below which sketches of two rows show the same example. Tested:
test_constants_of_reading_lie_on_a_plateau."""


@dataclass(frozen=True)
class RowScan:
    """What one pass over a gradient (N, m) learned about each row."""

    active: Tensor
    """(N,) bool: at least one example activated the neuron."""
    readable: Tensor
    """(N,) bool: the bias gradient is large enough to divide by."""
    low: Tensor
    high: Tensor
    """(N, groups): extremes of G_w / G_b over each group of columns."""
    sketch: Tensor
    """(N, 8): random projections of G_w / G_b."""


def scan_rows(weight_grad: Tensor, bias_grad: Tensor, *, groups: int = 1, seed: int = 0) -> RowScan:
    """Read every row once. `groups` splits the columns evenly, e.g. by colour channel.

    >>> x, d = torch.rand(6), torch.tensor([2.0, 0.0])          # neuron 0 saw x alone, neuron 1 nothing
    >>> scan = scan_rows(d[:, None] * x, d)
    >>> scan.active.tolist(), bool((scan.high[0] - x.max()).abs() < 1e-6)
    ([True, False], True)
    """
    m = weight_grad.shape[1]
    generator = torch.Generator().manual_seed(seed)
    projection = torch.randn(m, SKETCH, generator=generator).to(weight_grad) / SKETCH**0.5
    rows_a_block = max(1, _BLOCK_BYTES // max(1, m * weight_grad.element_size()))
    lows, highs, sketches = [], [], []
    for block in weight_grad.detach().split(rows_a_block):
        grouped = block.reshape(len(block), groups, -1)
        # Two passes over a block in cache: aminmax(dim=) is not vectorised and takes three times as long.
        lows.append(grouped.amin(dim=2))  # (rows, groups)
        highs.append(grouped.amax(dim=2))
        sketches.append(block @ projection)  # (rows, 8)
    low, high = torch.cat(lows), torch.cat(highs)
    # Below this, products d * x with x = 1/255 are subnormal and lose digits.
    smallest = torch.finfo(weight_grad.dtype).tiny * 1e4
    readable = bias_grad.abs() > smallest
    active = (bias_grad != 0) | (low != 0).any(dim=1) | (high != 0).any(dim=1)
    scale = torch.where(readable, bias_grad, torch.ones_like(bias_grad)).unsqueeze(1)
    a, b = low / scale, high / scale
    return RowScan(
        active=active,
        readable=readable,
        low=torch.minimum(a, b),
        high=torch.maximum(a, b),
        sketch=torch.cat(sketches) / scale,
    )


def agreeing_rows(sketch: Tensor) -> Tensor:
    """(r, 8) sketches to (r,) group numbers: rows in one group show the same example.

    >>> agreeing_rows(torch.tensor([[1.0, 2.0], [5.0, 5.0], [1.0, 2.0]])).tolist()
    [0, 1, 0]
    """
    if len(sketch) == 0:
        return torch.zeros(0, dtype=torch.long)
    points = sketch.double().cpu().numpy()
    radius = _SAME * float(np.median(np.linalg.norm(points, axis=1)))
    pairs = cKDTree(points).query_pairs(radius, output_type="ndarray")
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(points),) * 2)
    _, groups = connected_components(graph, directed=False)
    return torch.from_numpy(groups.astype(np.int64))


def representatives(groups: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """For each group its strongest row (largest |G_b|: least rounding) and the number of rows in it.

    >>> representatives(torch.tensor([0, 1, 0]), torch.tensor([1.0, 2.0, 3.0]))
    (tensor([2, 1]), tensor([2, 1]))
    """
    support = torch.bincount(groups)
    by_strength = strength.cpu().argsort(stable=True)
    best = torch.empty(len(support), dtype=torch.long)
    best[groups[by_strength]] = by_strength  # later (stronger) rows overwrite earlier ones
    return best, support


def rows_once(support: Tensor, active: int) -> Tensor:
    """Rows behind each candidate (k,), together no more than the `active` ones: a row counts once.

    Copies share their rows, and what is read late shares those of what was taken away before it. Where that
    counts rows twice each candidate has one, the first ones if there are more candidates than rows.

    >>> rows_once(torch.tensor([2, 1]), 3).tolist(), rows_once(torch.tensor([3, 1, 1]), 2).tolist()
    ([2, 1], [1, 1, 0])
    """
    if int(support.sum()) <= active:
        return support
    one = support.clamp(max=1)
    return torch.where(one.cumsum(0) <= active, one, torch.zeros_like(one))
