"""One-to-one assignment by three aims in turn: most exact pairs, then most pairs, then the least total error.

The least total error alone gives exact copies away: two middling errors may sum to less than none and a large
one. Weights that put one aim above the next would cost the errors their digits, so each aim is met by itself.
The first two count in whole numbers, whose optimum is found without rounding. By complementary slackness
(Schrijver 2003, Section 18.3) the assignments that reach it are those that use only tight entries and every
column of positive price, and among these the total error is minimised.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

_SPAN = np.finfo(np.float64).eps ** -0.5
"""Errors that are summed differ by at most this factor. Derived: the smallest keeps half its digits."""

_LARGEST = 2**23
"""Entries of a square of all columns. Cost: 64 MB in float64. Beyond it, columns that must be used are made
cheap instead, which costs the errors as many digits as there are in the number of rows."""

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
Errors = NDArray[np.float64]


def best_pairs(
    errors: Errors, *, exact: Mask | None = None, allowed: Mask | None = None
) -> tuple[Index, Index]:
    """The best pairs of k candidates and n true examples by their errors (k, n), each used at most once.

    exact: the pairs that are the same example. allowed: those that may be paired at all (None: every one).
    A diverged candidate, whose errors exceed all of another one's by a factor of 10^7, gets what the others
    leave: in one sum with theirs it would decide alone.

    >>> errors = np.array([[0.0, 1.0], [1.0, 3.0]])
    >>> [part.tolist() for part in best_pairs(errors)]  # 1 + 1 is less than 0 + 3
    [[0, 1], [1, 0]]
    >>> [part.tolist() for part in best_pairs(errors, exact=errors == 0)]
    [[0, 1], [0, 1]]
    """
    exact = np.zeros(errors.shape, np.bool_) if exact is None else exact
    allowed = np.ones(errors.shape, np.bool_) if allowed is None else allowed
    free = np.arange(errors.shape[1])
    found: list[tuple[Index, Index]] = [(free[:0], free[:0])]
    for rows in _levels(errors, exact, allowed):
        part = np.ix_(rows, free)
        first, second = _least_error(errors[part], exact[part] & allowed[part], allowed[part])
        found.append((rows[first], free[second]))
        free = np.delete(free, second)
    return np.concatenate([rows for rows, _ in found]), np.concatenate([columns for _, columns in found])


def _levels(errors: Errors, exact: Mask, allowed: Mask) -> list[Index]:
    """Candidates whose errors may be summed, the best first; those with an exact pair are among them."""
    largest = np.where(allowed, errors, 0.0).max(axis=1, initial=0.0)
    largest[(exact & allowed).any(axis=1)] = 0.0
    order = np.argsort(largest, kind="stable")
    levels: list[Index] = []
    while len(order):
        # A candidate that is as good as exact for all examples sets no scale.
        base = largest[order].min(initial=np.inf, where=largest[order] > 0)
        number = max(1, int(np.searchsorted(largest[order], base * _SPAN, side="right")))
        levels.append(order[:number])
        order = order[number:]
    return levels


def _least_error(errors: Errors, exact: Mask, allowed: Mask) -> tuple[Index, Index]:
    """`best_pairs` of candidates whose errors may be summed."""
    rows, columns = errors.shape
    if rows > columns:
        second, first = _least_error(errors.T, exact.T, allowed.T)
        return first, second
    costs = np.where(allowed, errors, 0.0)
    if exact.any() or not allowed.all():
        costs = _restricted(costs, allowed + (rows + 1.0) * exact)
    first, second = linear_sum_assignment(costs)
    real = first < rows
    first, second = first[real], second[real]
    kept = allowed[first, second]
    return first[kept], second[kept]


def _restricted(costs: Errors, gain: Errors) -> Errors:
    """The costs of the assignments of all rows (r <= c) that gain most: infinite for entries they never use.

    Prices of the columns, the lowest at which every row is content with what it got, tell these entries
    apart; a column that has a price must be used, so rows that stand for "unused" are put below the others.
    """
    rows, taken = linear_sum_assignment(gain, maximize=True)
    own = gain[rows, taken]
    price = np.zeros(gain.shape[1])
    while True:
        wanted = (gain - (own - price[taken])[:, None]).max(axis=0)  # (c,)
        if (wanted <= price).all():
            break
        price = np.maximum(price, wanted)
    tight = gain - price == (own - price[taken])[:, None]
    restricted = np.where(tight, costs, np.inf)
    if not price.any():
        return restricted
    if gain.shape[1] ** 2 > _LARGEST:
        # far below every sum of costs: it is as good as forbidden not to use them
        finite = restricted[np.isfinite(restricted)]
        restricted[:, price > 0] -= (len(gain) + 1.0) * float(np.abs(finite).max(initial=0.0))
        return restricted
    unused = np.where(price > 0, np.inf, 0.0)
    return np.concatenate([restricted, np.tile(unused, (gain.shape[1] - gain.shape[0], 1))])
