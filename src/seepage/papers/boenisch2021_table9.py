"""Boenisch et al. 2021, Table 9: the average of several mini-batches' gradients (Section 8.3, Appendix D)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seepage.federation import aggregate, draw_clients, local_update
from seepage.papers.extraction import WHICH_PRECISION, Source, scores_of
from seepage.papers.rows import RowPlan, fingerprint
from seepage.papers.table import Table
from seepage.papers.trapping import (
    SHORT,
    SHORTER_NETWORK,
    assemble,
    fresh_model,
    read_traps,
    seen_by_server,
    set_traps,
)
from seepage.types import Batch, Broadcast, Crafted, LocalTraining
from seepage.workloads.data import Dataset

NAME = "boenisch2021/table9"

SOURCES = (Source("MNIST", "mnist"),)

SCALE = 0.7

# (B, Num): (A, P, R)
PUBLISHED = {
    (20, 1): (0.544, 0.459, 0.995),
    (20, 5): (0.471, 0.540, 0.190),
    (20, 10): (0.461, 0.508, 0.100),
    (20, 20): (0.484, 0.468, 0.047),
    (50, 1): (0.706, 0.317, 0.750),
    (50, 5): (0.630, 0.327, 0.169),
    (50, 10): (0.716, 0.311, 0.082),
    (50, 20): (0.655, 0.332, 0.040),
    (100, 1): (0.798, 0.214, 0.542),
    (100, 5): (0.822, 0.197, 0.107),
    (100, 10): (0.783, 0.230, 0.060),
    (100, 20): (0.759, 0.248, 0.026),
}

NOTES: tuple[str, ...] = (
    WHICH_PRECISION,
    SHORTER_NETWORK,
    f"Traps with s = {SCALE}, as in Table 5: the paper's rows with Num = 1 have its figures.",
    "Two readings. An average of Num gradients is the gradient of Num x B examples: every row that any of "
    "them activates is active, so A must rise and P fall with Num. The paper's A and P stay where one "
    "mini-batch has them, and its R is that of one mini-batch divided by Num (.542 / 20 = .027, paper .026). "
    "So its figures are those of one mini-batch's gradient, with R counted against all Num x B examples: "
    "the second reading has them, the first has not.",
)


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    sizes: Sequence[tuple[int, int]] = tuple(PUBLISHED),
    scale: float = SCALE,
    width: int = 1000,
    hidden: Sequence[int] = SHORT,
) -> Table:
    """Both readings of the table, for every pair of sizes (B, Num)."""
    return assemble(
        name=NAME,
        title=f"Boenisch et al. 2021, Table 9: trap weights and averaged mini-batches, N = {width}",
        sources=SOURCES,
        plan=partial(plan_rows, sizes=sizes, scale=scale, width=width, hidden=tuple(hidden)),
        notes=NOTES,
        seeds=seeds,
        out=out,
        quiet=quiet,
    )


def plan_rows(
    title: str,
    dataset: Dataset,
    *,
    sizes: Sequence[tuple[int, int]],
    scale: float,
    width: int,
    hidden: tuple[int, ...],
) -> list[RowPlan]:
    """The sizes in the first reading, then in the second."""
    print_ = fingerprint(dataset, scale=scale, width=width, hidden=hidden)
    readings: dict[str, Callable[..., dict[str, float]]] = {
        "the average of the gradients": averaged,
        "one of the gradients, R against all": one_against_all,
    }
    return [
        RowPlan(
            group=f"{title}, {reading}",
            label=f"B = {b}, Num = {num}",
            measure=partial(measure, dataset, (b, num), scale=scale, width=width, hidden=hidden),
            published=dict(zip("APR", PUBLISHED.get((b, num), ()), strict=False)),
            fingerprint=print_,
        )
        for reading, measure in readings.items()
        for b, num in sizes
    ]


def averaged(dataset: Dataset, sizes: tuple[int, int], seed: int, **network: Any) -> dict[str, float]:
    """The mean of all mini-batches' gradients on the same model, scored against all their examples."""
    batches, traps = _round(dataset, sizes, seed, **network)
    broadcast = Broadcast(traps.model)
    mean = local_update(broadcast, batches[0], LocalTraining())
    for batch in batches[1:]:  # weighted by examples so far, so that it is the mean in the end
        mean = aggregate([mean, local_update(broadcast, batch, LocalTraining())], "mean")
    found = read_traps(seen_by_server(traps, mean), dataset.spec)
    return scores_of(found, Batch.concat(batches), dataset.spec)


def one_against_all(dataset: Dataset, sizes: tuple[int, int], seed: int, **network: Any) -> dict[str, float]:
    """The last mini-batch's gradient alone, its finds divided by the number of all examples."""
    batches, traps = _round(dataset, sizes, seed, **network)
    update = local_update(Broadcast(traps.model), batches[-1], LocalTraining())
    found = read_traps(seen_by_server(traps, update), dataset.spec)
    return scores_of(found, Batch.concat(batches), dataset.spec)


def _round(
    dataset: Dataset, sizes: tuple[int, int], seed: int, *, scale: float, width: int, hidden: Sequence[int]
) -> tuple[list[Batch], Crafted]:
    """The mini-batches, and the trapped model that all of them are taken on."""
    model = fresh_model(dataset.spec, seed=seed, width=width, hidden=hidden)
    return mini_batches(dataset, sizes, seed), set_traps(model, dataset.spec, scale=scale, seed=seed)


def mini_batches(dataset: Dataset, sizes: tuple[int, int], seed: int) -> list[Batch]:
    """Num mini-batches of B examples."""
    size, number = sizes
    drawn = draw_clients(dataset.labels, clients=number, examples_each=size, seed=seed)
    return [dataset.batch(mine) for mine in drawn]
