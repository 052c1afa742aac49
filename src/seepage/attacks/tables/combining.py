"""Which combinations of categories lie in the span of the rows: grown category by category.

A row of the batch lies in the row space P (m, r). At the places S of some categories it lies in the column
space of P_S, so that what is orthogonal to it, Q_S, rules combinations out as soon as S has more places than
the batch has rows. The matrix is the same for all combinations: one product tests them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.tables.front import Front
from seepage.attacks.tables.row_space import RowSpace
from seepage.core.errors import NotApplicable

MOST_COMBINATIONS = 300_000
"""Of categories followed at a time. Cost: 100 bytes and a microsecond each; where more are open, the batch
has nearly as many rows as the categories have columns, and nothing is ruled out."""
SAFE = 10.0
"""Of what rounding accounts for, to be sure that no true row is lost. Derived: the noise bounds an angle,
which the bound overstates by 3 to 30 already, so that 10 and 100 find the same."""
_BLOCK = 1 << 22
"""Distances at a time. Cost: memory."""


@dataclass(frozen=True)
class Combinations:
    """Category choices of rows, and the numbers that go with them."""

    choices: Tensor
    """(k, groups)"""
    numbers: Tensor
    """(k, J) in model units: the smallest that lie in the span."""
    free: Tensor
    """(J, s): directions in which all numbers may be moved together without leaving the span; s = 0 where
    categories tell every row apart."""
    doubt: float
    """What rounding may have added to a number, in model units."""


def combine(space: RowSpace, front: Front) -> Combinations:
    """All combinations in the span; NotApplicable where there are too many, or none."""
    tolerance = _tolerance(space)
    order = _order(space, front, tolerance)
    chosen = torch.zeros(1, 0, dtype=torch.long, device=space.rows.device)
    for depth in range(1, len(order) + 1):
        grown = _grown(space, front, order[:depth], chosen, tolerance)
        if grown is None:
            raise NotApplicable(
                f"the rows span {space.rank} directions, too many for the categories to tell them apart: "
                "'exact_extraction' and 'inverting_gradients' may."
            )
        chosen = grown
    if not len(chosen):
        raise NotApplicable(
            f"no combination of categories lies in the row space of '{front.layer.name}', so it is not the "
            "table that the layer reads (as behind a batch norm in train mode), or the update is noisy: "
            "'inverting_gradients' searches instead."
        )
    back = torch.tensor(order, device=chosen.device).argsort()
    return with_numbers(space, front, chosen[:, back])


def in_span(space: RowSpace, front: Front, choices: Tensor) -> Tensor:
    """(k,) bool: whether categories (k, groups) are those of some row in the span, as far as they tell."""
    tolerance = _tolerance(space)
    places = _places(space, front, list(range(len(front.categories))))
    words = [category.words[choices[:, g]] for g, category in enumerate(front.categories)]
    if space.biased:
        words.append(space.rows.new_ones(len(choices), 1))
    read = torch.cat(words, dim=1)
    far = (read @ _outside(space.rows[places], tolerance)).norm(dim=1)
    near: Tensor = far <= tolerance * read.norm(dim=1)
    return near


def _order(space: RowSpace, front: Front, tolerance: float) -> list[int]:
    """The categories that say most for the choices they leave open first."""
    start = torch.zeros(1, 0, dtype=torch.long, device=space.rows.device)
    worth = []
    for group, category in enumerate(front.categories):
        alone = _grown(space, front, [group], start, tolerance)
        left = len(category.words) if alone is None else max(1, len(alone))
        equations = int((torch.linalg.svdvals(space.rows[category.places]) > tolerance).sum())
        worth.append((equations / (1e-3 + torch.tensor(float(left)).log().item()), group))
    return [group for _, group in sorted(worth, reverse=True)]


def _places(space: RowSpace, front: Front, groups: list[int]) -> Tensor:
    """Places of these categories, and that of the bias."""
    parts = [front.categories[group].places for group in groups]
    if space.biased:
        parts.append(torch.tensor([len(space.rows) - 1], device=space.rows.device))
    return torch.cat(parts)


def _grown(
    space: RowSpace, front: Front, groups: list[int], chosen: Tensor, tolerance: float
) -> Tensor | None:
    """Combinations of `groups` that lie in the span, from those of all but the last one."""
    outside = _outside(space.rows[_places(space, front, groups)], tolerance)
    at, held = 0, outside.new_zeros(len(chosen), outside.shape[1])
    length = outside.new_full((len(chosen),), 1.0 if space.biased else 0.0)
    for depth, group in enumerate(groups):
        words, width = front.categories[group].words, len(front.categories[group].places)
        part, square = words @ outside[at : at + width], words.square().sum(1)
        at += width
        if depth < len(groups) - 1:
            held, length = held + part[chosen[:, depth]], length + square[chosen[:, depth]]
    if space.biased:
        held = held + outside[-1]
    kept = [torch.zeros(0, len(groups), dtype=torch.long, device=chosen.device)]
    total = 0
    each = max(1, _BLOCK // max(1, part.numel()))
    for start in range(0, len(chosen), each):
        some = slice(start, start + each)
        far = (held[some, None] + part[None]).square().sum(2)  # (nodes, K)
        near = far <= tolerance**2 * (length[some, None] + square)
        node, word = near.nonzero().unbind(1)
        total += len(node)
        if total > MOST_COMBINATIONS:
            return None
        kept.append(torch.cat([chosen[some][node], word.unsqueeze(1)], dim=1))
    return torch.cat(kept)


def _outside(part: Tensor, tolerance: float) -> Tensor:
    """(places, q) orthonormal: directions at these places (places, r) in which no row of the span lies."""
    left, values, _ = torch.linalg.svd(part, full_matrices=True)
    rank = int((values > tolerance).sum())
    outside: Tensor = left[:, rank:]
    return outside


def _tolerance(space: RowSpace) -> float:
    return min(0.1, max(SAFE * space.noise, 1e-7))


def with_numbers(space: RowSpace, front: Front, choices: Tensor) -> Combinations:
    """The numbers that lie in the span with these categories (k, groups)."""
    tolerance = _tolerance(space)
    places = _places(space, front, list(range(len(front.categories))))
    values = [category.words[choices[:, g]] for g, category in enumerate(front.categories)]
    if space.biased:
        values.append(space.rows.new_ones(len(choices), 1))
    left, sizes, right = torch.linalg.svd(space.rows[places], full_matrices=True)
    rank = int((sizes > tolerance).sum())
    known = torch.cat(values, dim=1) @ left[:, :rank] / sizes[:rank]  # (k, rank)
    spot = space.rows[front.number_places]  # (P, r)
    inverse = torch.linalg.pinv(front.slopes)  # (J, P)
    numbers = (known @ right[:rank] @ spot.T - front.base[front.number_places]) @ inverse.T
    free = inverse @ spot @ right[rank:].T
    least = float(sizes[rank - 1]) if rank else 1.0
    lengths = torch.cat(values, dim=1).norm(dim=1)
    doubt = space.noise * float(lengths.max()) / least if len(lengths) else 0.0
    return Combinations(choices, numbers, free, doubt)
