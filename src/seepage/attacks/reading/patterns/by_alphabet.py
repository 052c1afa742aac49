"""Whole batches by the alphabet: rows that show one example, then what known examples leave in other rows.

A reading that lies on the grid of 8-bit pixels, or in the embedding table, at every value is one example: a
mixture does not (`peeling.codes`). That needs no backward signal, so it also holds where the server cannot
compute one: after several local steps, with dropout, under another loss. Nothing here sees the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.patterns.doubt import Doubt
from seepage.attacks.reading.patterns.elimination import Read, eliminate
from seepage.attacks.reading.patterns.open_rows import Split, rank, refined, split
from seepage.attacks.reading.peeling.reader import RowReader
from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.peeling.residual import Residual, row_norms
from seepage.attacks.reading.peeling.tolerances import BEYOND, SPARE
from seepage.attacks.reading.unmixing.assemble import Unmixed
from seepage.models.precision import EXACT

_MOST_ROUNDS = 64
"""Each finds an example at least. Cost: time; batches of 100 took five."""


@dataclass(frozen=True)
class ByAlphabet:
    """What was read, and how much of it is vouched for."""

    features: Tensor
    """(k, m) on the alphabet."""
    support: Tensor
    """(k,) rows."""
    claimed: Tensor
    """(k,) bool"""
    alone: int
    """How many had a neuron of their own; they come first."""
    unmixed: int
    """How many were told apart from all others at once."""
    contradicted: int
    doubtful: int
    """Those that may be mixtures of examples that are nearly alike."""
    single: bool
    """Whether the gradient shows as many independent examples as it was made of. If it shows fewer, any one
    may be the mean of two that are nearly alike, which on a grid of whole numbers can be whole as well."""
    replayed: bool
    """Whether training on them ends where the client's training ended."""
    open_rows: int
    """Active rows that hold something else."""
    complete: bool
    rest: Tensor
    """(r, m) what rows share that is on no alphabet, in the value range as far as it is known."""

    def __len__(self) -> int:
        return len(self.features)


def read_by_alphabet(
    residual: Residual,
    reader: RowReader,
    first: Readings,
    active: Tensor,
    on: Gates,
    *,
    num_examples: int | None,
    apart: Callable[[], Unmixed | None] = lambda: None,
    trained: Callable[[Tensor], bool] = lambda features: False,
) -> ByAlphabet | None:
    """Everything that lies on the alphabet; None where nothing was read.

    first: what single rows show; active: (N,) bool; on: which neurons examples switch on; apart: unmixes all
    rows, where those that hold one unknown example are too few; trained: whether training on examples (k, m)
    makes the update.
    """
    doubt = Doubt(reader.code)
    size = row_norms(first.features) / first.features.shape[1] ** 0.5
    bias = residual.bias[first.row].double() * residual.factor
    bound = residual.value_bound(first.row, bias, first.features)
    fine = doubt.remember(first.features, first.spoiled, bound, first.error * size)
    index = first.exact.nonzero().squeeze(1)
    index = index[_distinct(first.features[index], first.features[:0], reader)]
    features, support, fine = first.features[index], first.support[index], fine[index]
    alone, rows, rest = len(index), active.nonzero().squeeze(1), features[:0]
    by_algebra = torch.zeros_like(fine)
    unmixed = 0
    for _ in range(_MOST_ROUNDS):
        if SPARE * len(features) > features.shape[1]:
            return None
        more = eliminate(residual, rows, features, on(features))
        if more is None:
            rest = features[:0]
        else:
            judged = doubt.judge(more.values, more.noise, more.support)
            # All that is left, if that is one example, needs no alphabet: it follows by linear algebra.
            last = more.unknown == 1 and num_examples == len(features) + 1
            new = (judged.exact | (last & judged.possible)).nonzero().squeeze(1)
            new = new[_distinct(judged.features[new], features, reader)]
            rest = judged.features[judged.possible & ~judged.exact]
        if more is None or not len(new):
            if unmixed or len(features) == num_examples or (all_of_them := apart()) is None:
                break
            more = _read(all_of_them)
            judged = doubt.judge(more.values, more.noise, more.support)
            new = judged.exact.nonzero().squeeze(1)
            new = new[_distinct(judged.features[new], features, reader)]
            unmixed = len(new)
            if not unmixed:
                break
        features = torch.cat([features, judged.features[new]])
        support, fine = torch.cat([support, more.support[new]]), torch.cat([fine, judged.fine[new]])
        by_algebra = torch.cat([by_algebra, ~judged.exact[new]])
    if not len(features):
        return None if (none := apart()) is None else _on_none(none.features, active)
    parts = split(residual, rows, features)
    again = refined(residual, parts, features)
    if again is not None:
        judged = doubt.judge(*again, support)
        fine = (judged.exact | by_algebra) & judged.fine
    against = _contradicted(parts, on(features))
    # As many as were declared, and they make the whole update: no other one is in it. Else the rank tells.
    replayed = len(features) == num_examples and trained(features)
    single = replayed or (num_examples is not None and rank(residual, parts, features) == num_examples)
    doubtful = ~fine | doubt.of(features) | doubt.alike(features)
    claimed = ~against & ~doubtful & single
    explained = parts.explained
    return ByAlphabet(
        features,
        support,
        claimed,
        alone,
        unmixed,
        contradicted=int(against.sum()),
        doubtful=int((doubtful & ~against).sum()) if single else 0,
        single=single,
        replayed=replayed,
        open_rows=int((~explained).sum()),
        complete=bool(explained.all()) and bool(claimed.all()),
        rest=rest,
    )


def _on_none(features: Tensor, active: Tensor) -> ByAlphabet:
    """Examples (k, m) that were told apart and lie on no alphabet; active: (N,) bool."""
    none = torch.zeros(0, dtype=torch.long, device=features.device)
    return ByAlphabet(
        features[:0],
        none,
        none.bool(),
        alone=0,
        unmixed=len(features),
        contradicted=0,
        doubtful=0,
        single=False,
        replayed=False,
        open_rows=int(active.sum()),
        complete=False,
        rest=features,
    )


def _read(apart: Unmixed) -> Read:
    """All that were told apart, each in as many rows as it fires."""
    size = row_norms(apart.features) / apart.features.shape[1] ** 0.5
    return Read(apart.features, apart.error * size, (apart.signals != 0).sum(1), unknown=0)


class Gates:
    """Which neurons of a layer an example may have switched on in any local step.

    Those are on under the weights before the first step or after the last, which the server both knows.
    """

    def __init__(self, weight: Tensor, bias: Tensor, moved: tuple[Tensor, Tensor] | None = None) -> None:
        self.weight, self.bias, self.moved = weight, bias, moved

    def __call__(self, features: Tensor) -> Tensor:
        """(k, N) bool for examples (k, m)."""
        before: Tensor = features @ self.weight.T + self.bias
        on: Tensor = before > 0
        if self.moved is not None:
            on |= before + features @ self.moved[0].T + self.moved[1] > 0
        return on


def _contradicted(parts: Split, on: Tensor) -> Tensor:
    """(k,) bool: of the explained rows, it has a share in those that it should leave alone as well.

    Some of them may have been switched on by a local step in between (a fifth, where steps of 0.1 swung).
    """
    rows = parts.explained.nonzero().squeeze(1)
    off = ~on[:, parts.rows[rows]].T  # (r, k)
    share = parts.known[rows].abs() > BEYOND * parts.noise[rows].unsqueeze(1) * parts.spread
    rate = [(share & which).sum(0) / which.sum(0).clamp_min(1) for which in (off, ~off)]
    contradicted: Tensor = 2 * rate[0] > rate[1]
    return contradicted


def _distinct(features: Tensor, known: Tensor, reader: RowReader) -> Tensor:
    """(d,) positions of features (k, m) that are neither among those known nor earlier in the list."""
    new = features @ reader.projection
    all_of_them = torch.cat([known @ reader.projection, new])
    size = all_of_them.norm(dim=1).clamp_min(torch.finfo(new.dtype).tiny)
    apart = torch.cdist(new, all_of_them, compute_mode="donot_use_mm_for_euclid_dist")
    same = apart <= EXACT * size.unsqueeze(0)
    earlier = torch.ones_like(same).tril(len(known) - 1)
    kept: Tensor = (~(same & earlier).any(1)).nonzero().squeeze(1)
    return kept
