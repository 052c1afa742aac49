"""Which candidate belongs to which private example: within the exchange that it was read from.

A candidate that fits an example of some other client shows nothing about that client's update, and with
enough clients every guess fits somebody. Exchanges whose examples overlap (an aggregate, and later one of its
clients alone) are solved together, all others by themselves: a thousand clients, a thousand small problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.types import Reconstruction
from seepage.engine.views import Views
from seepage.metrics import ExactRule, pair_errors
from seepage.metrics.assignment import Errors, Index, Mask, best_pairs
from seepage.metrics.pairs import BLOCK
from seepage.protocol import Played


@dataclass(frozen=True)
class Pairing:
    """Which of k candidates was given to which of n private examples, and which of them are the same."""

    candidate: Tensor
    """(n,) the candidate of each example, -1 for none."""
    exact: Tensor
    """(n,) bool: that candidate is this example."""
    exchange: Tensor
    """(n,) where the example is compared: in its candidate's exchange, or in one that it is behind."""
    right: Tensor
    """(k,) bool: some example behind the candidate's exchange is the same."""
    held: Tensor
    """(n,) bool: some candidate of an exchange that the example is behind is the same."""
    claimed_examples: int = 0
    """Examples that right claims cover, each claim and each example counted once."""

    @property
    def recovered(self) -> Tensor:
        """(n,) bool: the example got a candidate."""
        return self.candidate >= 0


def pair(result: Reconstruction, candidates: Tensor, views: Views) -> Pairing:
    """Pair the candidates of `result`, given as (k, ...) in the space and units of the views."""
    played = views.played
    source = torch.arange(len(played.behind)) if result.shared else _source(result, played)
    n = len(played.truth)
    found = Pairing(
        candidate=torch.full((n,), -1),
        exact=torch.zeros(n, dtype=torch.bool),
        exchange=_first_exchange(played, source),
        right=torch.zeros(len(candidates), dtype=torch.bool),
        held=torch.zeros(n, dtype=torch.bool),
    )
    if result.shared:
        _pair_shared(found, candidates, views, result.unlimited)
        return found
    claimed = torch.zeros_like(found.right) if result.claimed is None else result.claimed.cpu().bool()
    covered = 0
    for part in _parts(source, played.behind):
        problem = _Problem.of(part, candidates, views)
        rows, columns = best_pairs(problem.errors, exact=problem.exact, allowed=problem.allowed)
        examples = problem.examples[torch.from_numpy(columns)]
        chosen = problem.candidates[torch.from_numpy(rows)]
        found.candidate[examples] = chosen
        found.exchange[examples] = source[chosen]
        found.exact[examples] = torch.from_numpy(problem.exact[rows, columns])
        found.right[problem.candidates] = torch.from_numpy(problem.exact.any(axis=1))
        found.held[problem.examples] = torch.from_numpy(problem.exact.any(axis=0))
        covered += _most_pairs(problem.exact[claimed[problem.candidates].numpy()])
    return replace(found, claimed_examples=covered)


def _source(result: Reconstruction, played: Played) -> Tensor:
    """(k,) the exchange of each candidate; any of them where all have the same examples behind them."""
    if result.source is not None:
        return result.source.cpu().long()
    if len(result) and any(not torch.equal(rows, played.behind[0]) for rows in played.behind[1:]):
        raise DataError(
            f"the attack does not say from which of {len(played.exchanges)} exchanges its candidates were "
            "read, and not all of them have the same examples behind them: give `source`, the index of each "
            "one's exchange."
        )
    return torch.zeros(len(result), dtype=torch.long)


def _first_exchange(played: Played, source: Tensor) -> Tensor:
    """(n,) the first exchange that an example is behind and that was read; the first that was read at all for
    an example that is behind none of them."""
    read = source.unique().tolist() or [0]
    first = torch.full((len(played.truth),), read[0])
    for exchange in reversed(read):
        first[played.behind[exchange]] = exchange
    return first


def _parts(source: Tensor, behind: tuple[Tensor, ...]) -> Iterator[dict[int, Tensor]]:
    """Exchanges with their candidates, those together that have examples in common."""
    if len(source) == 0:
        return
    order = source.argsort(stable=True)
    read, counts = source[order].unique_consecutive(return_counts=True)
    candidates = dict(zip(read.tolist(), order.split(counts.tolist()), strict=True))
    rows = torch.cat([behind[i] for i in candidates])
    of = torch.arange(len(read)).repeat_interleave(torch.tensor([len(behind[i]) for i in candidates]))
    # exchanges, then examples: an edge where an example is behind an exchange
    size = len(read) + int(rows.max()) + 1
    edges = coo_array((np.ones(len(rows)), (of.numpy(), rows.numpy() + len(read))), shape=(size, size))
    _, component = connected_components(edges)
    parts: dict[int, dict[int, Tensor]] = {}
    for label, exchange in zip(component[: len(read)].tolist(), candidates, strict=True):
        parts.setdefault(label, {})[exchange] = candidates[exchange]
    yield from parts.values()


@dataclass(frozen=True)
class _Problem:
    """One assignment: (k, n) of the candidates and examples that it is about."""

    candidates: Tensor
    examples: Tensor
    errors: Errors
    exact: Mask
    allowed: Mask | None = None

    @staticmethod
    def of(part: Mapping[int, Tensor], candidates: Tensor, views: Views) -> _Problem:
        behind = views.played.behind
        rows = torch.cat(list(part.values()))
        if len(part) == 1:
            (exchange,) = part
            return _Problem(
                rows, behind[exchange], *_compared(candidates[rows], exchange, views, behind[exchange])
            )
        examples = torch.cat([behind[i] for i in part]).unique()
        shape = (len(rows), len(examples))
        allowed = np.zeros(shape, np.bool_)
        problem = _Problem(rows, examples, np.zeros(shape), np.zeros(shape, np.bool_), allowed)
        start = 0
        for exchange, mine in part.items():
            columns = torch.searchsorted(examples, behind[exchange]).numpy()
            block = np.ix_(np.arange(start, start + len(mine)), columns)
            problem.errors[block], problem.exact[block] = _compared(
                candidates[mine], exchange, views, behind[exchange]
            )
            allowed[block] = True
            start += len(mine)
        return problem


def _compared(candidates: Tensor, exchange: int, views: Views, rows: Tensor) -> tuple[Errors, Mask]:
    """(k, n) errors, in units of the rule of exactness, and exactness, for n rows that an exchange shows."""
    view, shape = views.of(exchange), (len(candidates), len(rows))
    errors, exact = np.empty(shape), np.empty(shape, np.bool_)
    start = 0
    for some in rows.split(_rows(candidates)):
        mine = slice(start, start + len(some))
        errors[:, mine], exact[:, mine] = _compared_with(candidates, view.at(some), view.rule)
        start += len(some)
    return errors, exact


def _rows(candidates: Tensor) -> int:
    """Examples that are compared at a time, for bounded memory."""
    return max(1, BLOCK // max(1, candidates[:1].numel(), len(candidates)))


def _compared_with(candidates: Tensor, truth: Tensor, rule: ExactRule) -> tuple[Errors, Mask]:
    exact = rule.every(candidates, truth)
    if truth.is_floating_point():
        candidates, truth = candidates.double() / rule.unit, truth.double() / rule.unit
    return pair_errors(candidates, truth).numpy(), exact.numpy()


def _pair_shared(found: Pairing, candidates: Tensor, views: Views, unlimited: int) -> None:
    """Guesses that every exchange gets a copy of: an example takes the best of those it is behind."""
    least = torch.full((len(found.candidate),), torch.inf, dtype=torch.float64)
    for exchange, behind, errors, exact in _each_compared(candidates, views):
        rows, columns = _free_or_assigned(errors, exact, unlimited)
        same = exact[rows, columns]
        # an exact guess before any other
        error = torch.from_numpy(np.where(same, -np.inf, errors[rows, columns]))
        examples = behind[torch.from_numpy(columns)]
        better = error < least[examples]
        least[examples[better]] = error[better]
        found.candidate[examples[better]] = torch.from_numpy(rows)[better]
        found.exact[examples[better]] = torch.from_numpy(same)[better]
        found.exchange[examples[better]] = exchange
        found.right.logical_or_(torch.from_numpy(exact.any(axis=1)))
        found.held[behind] |= torch.from_numpy(exact.any(axis=0))


def _each_compared(candidates: Tensor, views: Views) -> Iterator[tuple[int, Tensor, Errors, Mask]]:
    """Each exchange with the rows behind it, compared with the candidates, many small ones at a time."""
    # exchanges that show the same examples alike are one
    distinct = {(id(views.of(i)), rows.numpy().tobytes()): i for i, rows in enumerate(views.played.behind)}
    by_view: dict[int, list[int]] = {}
    for (view, _), exchange in distinct.items():
        by_view.setdefault(view, []).append(exchange)
    for exchanges in by_view.values():
        some: list[int] = []
        size = 0
        for exchange in exchanges:
            some.append(exchange)
            size += len(views.played.behind[exchange])
            if size >= _rows(candidates) or exchange == exchanges[-1]:
                yield from _split(some, candidates, views)
                some, size = [], 0


def _split(
    exchanges: Sequence[int], candidates: Tensor, views: Views
) -> Iterator[tuple[int, Tensor, Errors, Mask]]:
    """The exchanges compared in one go."""
    behind = [views.played.behind[i] for i in exchanges]
    errors, exact = _compared(candidates, exchanges[0], views, torch.cat(behind))
    start = 0
    for exchange, rows in zip(exchanges, behind, strict=True):
        mine = slice(start, start + len(rows))
        yield exchange, rows, errors[:, mine], exact[:, mine]
        start += len(rows)


def _free_or_assigned(errors: Errors, exact: Mask, unlimited: int) -> tuple[Index, Index]:
    """The best pairs where the first `unlimited` candidates may be given to any number of examples.

    An example has the best of those for nothing, and takes another one where that makes it exact, or better
    without making it worse in that. A candidate that is left over takes a column of its own, which costs what
    the free one costs: so the sum is least over all ways to give away the others.
    """
    if not unlimited:
        return best_pairs(errors, exact=exact)
    free, n = errors[:unlimited], errors.shape[1]
    chosen = np.where(exact[:unlimited], -1.0, free).argmin(axis=0)  # (n,)
    known, own = exact[chosen, np.arange(n)], free[chosen, np.arange(n)]
    others, same = errors[unlimited:], exact[unlimited:]
    number = len(others)
    gains = (same & ~known) | ((others < own) & (same | ~known))
    wanted = _worth_taking(others, own, gains, same & ~known)
    others, own, gains, wins = others[:, wanted], own[wanted], gains[:, wanted], (same & ~known)[:, wanted]
    top = float(own.max(initial=0.0))
    costs = np.full((number, len(wanted) + number), top)
    costs[:, : len(wanted)] = np.minimum(others, 2 * top + 1) - own + top
    allowed = np.concatenate([gains, np.eye(number, dtype=np.bool_)], axis=1)
    wins = np.concatenate([wins, np.zeros((number, number), np.bool_)], axis=1)
    rows, columns = best_pairs(costs, exact=wins, allowed=allowed)
    real = columns < len(wanted)
    chosen[wanted[columns[real]]] = rows[real] + unlimited
    return chosen.astype(np.int64), np.arange(n)


def _worth_taking(others: Errors, own: Errors, gains: Mask, wins: Mask) -> Index:
    """The columns that some best assignment keeps to: of every row as many as there are rows, the exact ones
    first, then those where it gains most. One of these is always free for it."""
    number = len(others)
    columns = []
    for row, better in enumerate(gains):
        mine = np.flatnonzero(better)
        if len(mine) > number:
            mine = mine[np.lexsort((others[row, mine] - own[mine], ~wins[row, mine]))[:number]]
        columns.append(mine)
    return np.unique(np.concatenate([*columns, np.zeros(0, np.int64)]))


def _most_pairs(same: Mask) -> int:
    """The largest number of candidates and examples that can be told apart as pairs."""
    return int((maximum_bipartite_matching(csr_array(same)) >= 0).sum())
