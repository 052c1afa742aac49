"""Sums over changing groups of clients, taken apart (Lam et al. 2021, Gradient Disaggregation).

With the same model and the same data each client i has one update g_i, and round r shows s_r = sum_i P_ri g_i
with P_ri = 1 where i took part. Who took part is usually known, for the server chose them: g is then the
solution of a linear system. Where it is not, but how often each client took part in some windows of rounds is
(device analytics), P is found first: its columns are the vectors of zeros and ones in the column space of s
with these counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.linalg import qr
from torch import Tensor

from seepage.core.errors import NotApplicable

_RANK = 1e-6
"""Singular values below this share of the largest are rounding. Derived: single precision (6e-8), with room
for the sum of some clients."""
_INSIDE = 1e-3
"""Error up to which an entry is a zero or a one. Derived: far above rounding, far below a coincidence of all
rounds beyond the number of clients."""
_MOST = 20
"""Clients. Cost: a million patterns."""


def separated(sums: Tensor, participation: Tensor) -> tuple[Tensor, float]:
    """(clients, d) updates from (rounds, d) sums, and how badly they explain the sums (0: exactly).

    NotApplicable where the rounds do not tell all clients apart.

    >>> took_part = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    >>> each = torch.tensor([[1.0], [2.0], [4.0]])
    >>> separated(took_part @ each, took_part)[0].flatten().round(decimals=6).tolist()
    [1.0, 2.0, 4.0]
    """
    weights = participation.double()
    rank, clients = int(torch.linalg.matrix_rank(weights)), weights.shape[1]
    if rank < clients:
        raise NotApplicable(
            f"{len(weights)} sums tell only {rank} of {clients} clients apart: play more rounds with other "
            "groups of clients."
        )
    found = torch.linalg.lstsq(weights, sums.double(), driver="gelsd").solution
    misfit = (weights @ found - sums.double()).norm() / sums.double().norm().clamp_min(1e-300)
    return found, float(misfit)


def participation_by_counts(sums: Tensor, windows: Sequence[Sequence[int]], counts: Tensor) -> Tensor:
    """(rounds, clients) who took part, from (rounds, d) sums and how often each client did in each window.

    windows: the rounds of each. counts: (clients, windows).

    >>> took_part = (torch.rand(12, 4, generator=torch.Generator().manual_seed(0)) < 0.5).double()
    >>> sums = took_part @ torch.randn(4, 50, generator=torch.Generator().manual_seed(1)).double()
    >>> windows = [range(0, 4), range(4, 8), range(8, 12)]
    >>> counts = torch.stack([took_part[list(w)].sum(dim=0) for w in windows], dim=1)
    >>> torch.equal(participation_by_counts(sums, windows, counts), took_part)
    True
    """
    rounds, clients = len(sums), len(counts)
    if clients > _MOST:
        raise NotApplicable(
            f"the participation of {clients} clients is unknown, and more than {_MOST} are not looked for: "
            "give `participation`, which a server that chose the clients knows."
        )
    left, sizes, _ = torch.linalg.svd(sums.double().cpu(), full_matrices=False)
    rank = int((sizes > _RANK * sizes.max()).sum())
    if rank < clients or rank == rounds:
        raise NotApplicable(
            f"{rounds} sums of {clients} clients span {rank} dimensions: more rounds than clients are "
            "needed, and clients whose updates differ."
        )
    inside = _zeros_and_ones(left[:, :rank])
    in_window = torch.zeros(len(windows), rounds, dtype=torch.float64)
    for row, window in zip(in_window, windows, strict=True):
        row[list(window)] = 1.0
    shown = inside @ in_window.T  # (candidates, windows)
    columns = torch.zeros(rounds, clients, dtype=torch.float64)
    for own in counts.double().unique(dim=0):
        who = (counts.double() == own).all(dim=1).nonzero().flatten()
        fits = inside[(shown == own).all(dim=1)]
        if len(fits) != len(who):
            raise NotApplicable(
                f"{len(fits)} patterns of participation explain the sums for {len(who)} client(s) with the "
                "counts given: updates change from round to round, the counts are wrong, or more rounds are "
                "needed."
            )
        columns[:, who] = fits.T
    return columns


def _zeros_and_ones(basis: Tensor) -> Tensor:
    """(found, rounds) all vectors of zeros and ones in the span of the basis (rounds, rank), but for zero.

    A vector of the span follows from its entries in as many rounds as there are dimensions, of which all
    choices are tried.
    """
    rank = basis.shape[1]
    rounds = torch.from_numpy(qr(basis.T.numpy(), pivoting=True)[2][:rank].copy()).long()
    whole = basis @ torch.linalg.inv(basis[rounds])  # (rounds, rank): from those entries to all
    found = []
    for numbers in torch.arange(1, 2**rank).split(2**14):
        chosen = (numbers.unsqueeze(1) >> torch.arange(rank) & 1).double()
        vectors = chosen @ whole.T
        fits = (vectors - vectors.round().clamp(0, 1)).abs().amax(dim=1) < _INSIDE
        found.append(vectors[fits].round())
    return torch.cat(found)
