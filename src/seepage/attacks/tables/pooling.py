"""Several restarts of one search made into one table: they vote, without any look at the truth.

TabLeak (Vero et al. 2023, Section 4.2): the rows of each restart are matched with those of the best one, a
category is the one that most restarts have, a number the median. Where restarts disagree, the entropy of
their votes is high, which says how far a row can be believed (Section 4.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

NEAR = 0.319
"""Numbers that are nearer than this, in spreads of their column, count as the same. Paper: Vero et al. 2023,
Section 5, who count them as right."""


EQUAL = 0.01
"""Two numbers that count as one found twice, in spreads of their column: searches that find a number end 1e-3
apart, others as far as the column is wide. No plateau test yet."""


@dataclass(frozen=True)
class Pooled:
    """One table out of several restarts."""

    rows: Tensor
    """(n, D)"""
    confidence: Tensor
    """(n,) one minus the mean entropy of the votes, as a share of the largest there can be."""


def pool_restarts(
    restarts: Tensor, labels: Tensor, groups: tuple[tuple[int, ...], ...], *, best: int, unit: float
) -> Pooled:
    """(R, n, D) rows, whose likeliest category of each group counts, and (R, n) labels, to one table.

    best: the restart whose order of rows and labels is kept. unit: a number's spread.

    >>> rows = torch.tensor([[[1.0, 0.0, 5.0], [0.0, 1.0, 1.0]], [[0.0, 1.0, 1.2], [1.0, 0.0, 5.2]]])
    >>> found = pool_restarts(rows, torch.zeros(2, 2), ((0, 1),), best=0, unit=1.0)
    >>> found.rows[:, 2].tolist(), found.confidence.tolist()
    ([5.0, 1.0], [1.0, 1.0])
    """
    restarts = restarts.clone()
    for group in groups:
        chosen = restarts[..., list(group)].argmax(-1)
        restarts[..., list(group)] = torch.nn.functional.one_hot(chosen, len(group)).to(restarts)
    grouped = {column for group in groups for column in group}
    numbers = [column for column in range(restarts.shape[-1]) if column not in grouped]
    aligned = torch.stack(
        [
            _aligned(restarts[best], labels[best], r, y, groups, numbers, unit)
            for r, y in zip(restarts, labels, strict=True)
        ]
    )
    rows, unsure = restarts[best].clone(), []
    for group in groups:
        votes = aligned[..., list(group)].mean(0)  # (n, K) shares
        rows[:, list(group)] = torch.nn.functional.one_hot(votes.argmax(1), len(group)).to(rows)
        unsure.append(torch.special.entr(votes).sum(1))
    for column in numbers:
        values = aligned[..., column]  # (R, n)
        middle = values.median(0).values
        rows[:, column] = middle
        same = ((values - middle).abs() <= NEAR * unit).double().mean(0)
        # those apart from the median are each alone
        unsure.append(torch.special.entr(same) + (1 - same) * math.log(len(aligned)))
    entropy = torch.stack([u.double() for u in unsure]).mean(0) / max(math.log(len(aligned)), 1e-9)
    return Pooled(rows, (1 - entropy).clamp(0, 1))


def _aligned(
    base: Tensor,
    base_labels: Tensor,
    rows: Tensor,
    labels: Tensor,
    groups: tuple[tuple[int, ...], ...],
    numbers: list[int],
    unit: float,
) -> Tensor:
    """`rows` in the order of `base` that has most values in common, each with a row of its label."""
    cost = (base_labels[:, None] != labels[None]).double() * (len(groups) + len(numbers))
    for group in groups:
        cost += 1 - base[:, list(group)].double() @ rows[:, list(group)].double().T
    for column in numbers:
        cost += ((base[:, None, column] - rows[None, :, column]).abs() / unit).double().clamp_max(1.0)
    _, order = linear_sum_assignment(cost.cpu().numpy())
    return rows[torch.from_numpy(order).to(rows.device)]


def guess_where_unsure(
    rows: Tensor,
    restarts: Tensor,
    labels: Tensor,
    groups: tuple[tuple[int, ...], ...],
    *,
    best: int,
    unit: float,
    shares: Tensor,
    typical: Tensor | None = None,
) -> tuple[Tensor, int]:
    """(n, D) raw rows of the restart `best`, the commonest category or number where the others' votes say
    less, and how many values that are.

    restarts, labels: of all restarts, as `pool_restarts` has them; the other ones' votes for a value are how
    likely it is to be right. shares: (D,) how common each category, or the number `typical` of each other
    column, is, which is how often a guess is right.

    >>> rows = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]])
    >>> found = guess_where_unsure(
    ...     rows[0], rows, torch.zeros(3, 1), ((0, 1),), best=0, unit=1.0, shares=torch.tensor([0.2, 0.8])
    ... )
    >>> found[0].tolist(), found[1]
    ([[0.0, 1.0]], 1)
    """
    numbers = sorted(set(range(rows.shape[-1])) - {column for group in groups for column in group})
    others = torch.stack(
        [
            _aligned(restarts[best], labels[best], restarts[r], labels[r], groups, numbers, unit)
            for r in range(len(restarts))
            if r != best
        ]
    )
    rows, guessed = rows.clone(), 0
    for group in groups:
        columns = list(group)
        own = rows[:, columns].argmax(1)
        agree = (others[..., columns].argmax(-1) == own).double().mean(0)  # (n,)
        likely = shares[columns].double()
        unsure = (agree < likely.max()) & (own != likely.argmax())
        common = torch.nn.functional.one_hot(likely.argmax(), len(columns)).to(rows)
        rows[:, columns] = torch.where(unsure[:, None], common, rows[:, columns])
        guessed += int(unsure.sum())
    for column in numbers if typical is not None else ():
        assert typical is not None
        apart = (others[..., column] - restarts[best][:, column]).abs()
        unsure = (apart <= EQUAL * unit).double().mean(0) < shares[column]
        rows[unsure, column] = typical[column].to(rows)
        guessed += int(unsure.sum())
    return rows, guessed
