"""One batch kept over all runs, and how far its own luck carries R (Boenisch et al. 2021, Section 8).

The paper's means go over 10 initialisations. If all of them saw the same batch, no average takes away what is
special about that batch. R follows from the activations alone (an example is found where it is alone at some
neuron), so many batches can be counted under the same models without a single gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from seepage.attacks.parts.crafting.traps import lonely
from seepage.attacks.parts.layers import watching
from seepage.papers.table import Column, Figure, Row, Table
from seepage.workloads.data import Dataset

BATCHES = 100
_LEAST_POOL = 1000
_BATCHES_A_POOL = 10
"""Batches are drawn from so many times their size, so that two of them have little in common."""
_CHUNK = 250
_SEED = 0
"""Not that of a run: all runs count the same batches."""
_PERCENTILES = {"R 5 %": 0.05, "R 95 %": 0.95}
_FIRST = "R first"
_OF_BATCH = "R of batch "

KEPT_COLUMNS = (
    Column(
        "R 5 %",
        f"mean R of one batch kept over all runs, 5th percentile of {BATCHES} batches; counted",
        unit="share",
    ),
    Column("R 95 %", "the same, 95th percentile", unit="share"),
)
FIRST_COLUMN = Column(
    _FIRST, "mean R of the data's first B examples, kept over all runs; counted", unit="share"
)


def kept_recalls(
    model: nn.Module, dataset: Dataset, *, batch_size: int, first: bool = False
) -> dict[str, float]:
    """R of every kept batch under one run's model; `first`: also of the data's first examples."""
    generator = torch.Generator().manual_seed(_SEED)
    size = max(_LEAST_POOL, _BATCHES_A_POOL * batch_size)
    pool = torch.randperm(len(dataset), generator=generator)[:size]
    fires = activations(model, dataset.inputs[pool])  # (pool, N)
    recalls = {
        f"{_OF_BATCH}{k}": recall(fires[torch.randperm(len(pool), generator=generator)[:batch_size]])
        for k in range(BATCHES)
    }
    if first:
        recalls[_FIRST] = recall(activations(model, dataset.inputs[:batch_size]))
    return recalls


@torch.no_grad()
def activations(model: nn.Module, inputs: Tensor) -> Tensor:
    """(n, N) bool: which neurons of the first dense layer each example activates."""
    with watching(model, "relu0") as seen:
        for part in inputs.split(_CHUNK):
            model(part)
    return torch.cat(seen) > 0


def recall(fires: Tensor) -> float:
    """R (eq. 10) by counting.

    >>> recall(torch.tensor([[1, 1, 0], [0, 1, 0]]).bool())
    0.5
    """
    return float(lonely(fires).float().mean())


def with_kept_batches(table: Table) -> Table:
    """The table with percentiles of its kept batches, and a note on where the paper's R lie among them."""
    rows = tuple(replace(row, figures=_summed_up(row)) for row in table.rows)
    first = (FIRST_COLUMN,) if any(_FIRST in row.figures for row in rows) else ()
    return replace(
        table, columns=(*table.columns, *KEPT_COLUMNS, *first), rows=rows, notes=(*table.notes, *luck(rows))
    )


def _summed_up(row: Row) -> dict[str, Figure]:
    figures = {name: figure for name, figure in row.figures.items() if not name.startswith(_OF_BATCH)}
    means = [figure.mean for name, figure in row.figures.items() if name.startswith(_OF_BATCH)]
    for name, share in _PERCENTILES.items():
        figures[name] = Figure.over([float(np.quantile(means, share))])
    return figures


def luck(rows: Iterable[Row]) -> tuple[str, ...]:
    """A note for each group: how many of the paper's R are what one kept batch can have.

    >>> figures = {"R": Figure.over([0.5], paper=0.62)}
    >>> figures |= {n: Figure.over([v]) for n, v in (("R 5 %", 0.4), ("R 95 %", 0.6))}
    >>> luck([Row("MNIST", "B = 20", figures)])
    ("MNIST: 0 of 1 published R lie between the 5th and the 95th percentile of one kept batch's.",)
    """
    published: dict[str, list[bool]] = {}
    for row in rows:
        paper = row.figures["R"].paper
        if paper is not None:
            low, high = (round(row.figures[name].mean, 3) for name in _PERCENTILES)  # as the paper rounds
            published.setdefault(row.group, []).append(low <= paper <= high)
    return tuple(
        f"{group}: {sum(inside)} of {len(inside)} published R lie between the 5th and the 95th percentile of "
        "one kept batch's."
        for group, inside in published.items()
    )
