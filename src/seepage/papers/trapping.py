"""What the tables on trap weights share: one trapped model, one answer to it, and its scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from torch import nn

from seepage.attacks import ATTACKS
from seepage.attacks.analytic_extraction import read_layer
from seepage.attacks.base import check_update
from seepage.attacks.crafted_extraction import read_bait
from seepage.federation import draw_clients, local_update
from seepage.papers.extraction import Source, load_present, scores_of
from seepage.papers.kept_batch import kept_recalls
from seepage.papers.rows import RowPlan, compute_rows
from seepage.papers.table import Column, Table
from seepage.types import (
    Batch,
    Broadcast,
    Crafted,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Reconstruction,
    Update,
)
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model

COLUMNS = (
    Column("A", "active rows among all rows", unit="share"),
    Column("P", "extraction-precision, rows that hold one example among the active rows", unit="share"),
    Column("R", "extraction-recall, examples of the batch that some row holds", 0.05, unit="share"),
    Column("P all", "extraction-precision over all rows, as the paper's eq. (9) defines it", unit="share"),
)

SHORT = (200,)
"""Widths of the layers behind the trapped one."""

SHORTER_NETWORK = (
    "Behind the trapped layer stands one layer of 200 neurons, not Table 7's 3000, 3000, 2000 and 1000: "
    "A, P and R depend on the trapped layer's activations only, as long as a gradient reaches it. With "
    "the whole network the figures of a seed are the same (a test compares them)."
)

ONE_BATCH = (
    "Each run draws its own traps and its own batch. By all evidence the paper kept one batch over its 10 "
    "initialisations, the first pictures of the training set, so its means hold that batch's luck: R 5 % and "
    "R 95 % show how far it reaches. R first is that batch where the data above are the training set."
)


def fresh_model(
    spec: InputSpec, *, seed: int, width: int, hidden: Sequence[int], initialiser: str = "xavier_uniform"
) -> nn.Module:
    """The FC-NN of Table 7, or a shorter one."""
    return build_model("fcnn", spec, initialiser=initialiser, seed=seed, width=width, hidden=tuple(hidden))


def draw_batch(dataset: Dataset, size: int, seed: int) -> Batch:
    """One client's mini-batch, without repeats."""
    (mine,) = draw_clients(dataset.labels, clients=1, examples_each=size, seed=seed)
    return dataset.batch(mine)


def set_traps(model: nn.Module, spec: InputSpec, *, scale: float | None, seed: int) -> Crafted:
    """Algorithm 1 in the model's first dense layer, as the registered attack does it.

    scale: None for the attack's own ladder of scales, as set for peeling.
    """
    attack = ATTACKS["trap_weights"](scale=scale, read="rows" if scale else "peel")
    crafted = attack.craft(model, (), Knowledge(input=spec, seed=seed))
    assert crafted is not None
    return crafted


def answer(crafted: Crafted, batch: Batch) -> Exchange:
    """What a client's FedSGD gradient shows the server."""
    broadcast = Broadcast(crafted.model)
    return seen_by_server(crafted, local_update(broadcast, batch, LocalTraining()))


def seen_by_server(crafted: Crafted, update: Update) -> Exchange:
    """The exchange of an update that a trapped model caused."""
    broadcast = Broadcast(crafted.model)
    seen = Exchange(broadcast=broadcast, update=update, clients=(0,), secret=crafted.secret)
    check_update(seen)
    return seen


def read_traps(seen: Exchange, spec: InputSpec, local: LocalTraining | None = None) -> Reconstruction:
    """What single rows of the trapped layer's gradient show."""
    return read_bait(seen, Knowledge(input=spec, local=local), partial(read_layer, rows_only=True))


def trap_extraction(
    dataset: Dataset,
    scale: float,
    seed: int,
    *,
    batch_size: int,
    width: int,
    hidden: Sequence[int],
    first: bool = False,
) -> dict[str, float]:
    """One run: fresh traps, a fresh batch, and Section 8.1's scores; R of kept batches beside them."""
    batch = draw_batch(dataset, batch_size, seed)
    model = fresh_model(dataset.spec, seed=seed, width=width, hidden=hidden)
    crafted = set_traps(model, dataset.spec, scale=scale, seed=seed)
    scores = scores_of(read_traps(answer(crafted, batch), dataset.spec), batch, dataset.spec)
    return {**scores, **kept_recalls(crafted.model, dataset, batch_size=batch_size, first=first)}


def named_sources(datasets: dict[str, Dataset], what: str = "pictures") -> Iterable[str]:
    """A note on each dataset: where it came from and how much there is."""
    return (f"{title}: {d.source}, {len(d)} {what}." for title, d in datasets.items())


def assemble(
    *,
    name: str,
    title: str,
    sources: Sequence[Source],
    plan: Callable[[str, Dataset], Sequence[RowPlan]],
    notes: Sequence[str],
    seeds: int,
    out: Path,
    quiet: bool,
    what: str = "pictures",
) -> Table:
    """Compute the rows that `plan` has for each dataset that is there."""
    datasets, missing = load_present(sources)
    plans = [row for source, dataset in datasets.items() for row in plan(source, dataset)]
    return Table(
        name=name,
        title=title,
        columns=COLUMNS,
        rows=compute_rows(plans, seeds=seeds, out=out, quiet=quiet),
        notes=(*named_sources(datasets, what), *notes),
        missing=missing,
    )
