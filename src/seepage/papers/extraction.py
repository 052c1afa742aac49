"""What the tables on extraction share: finding the data, and one extraction with its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from seepage.attacks.analytic_extraction import choose_layer, read_layer
from seepage.attacks.base import check_update
from seepage.errors import DataError
from seepage.federation import local_update
from seepage.metrics import ExactRule, extraction_scores
from seepage.papers.table import Column
from seepage.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Reconstruction
from seepage.workloads.data import Dataset, load_data

COLUMNS = (
    Column("P", "extraction-precision, rows that hold one example among the active rows", 0.02, unit="share"),
    Column("R", "extraction-recall, examples of the batch that some row holds", 0.05, unit="share"),
    Column("A", "active rows among all rows", 0.02, unit="share"),
    Column("P all", "extraction-precision over all rows, as the paper's eq. (9) defines it", unit="share"),
)

WHICH_PRECISION = (
    "The paper's P is compared with ours over the active rows: eq. (9) divides by all rows, but its Table 5 "
    "(A = .022 with P = .803) is only possible over the active ones."
)


@dataclass(frozen=True)
class Source:
    """A dataset under the paper's name for it; the first of `options` that can be loaded is taken."""

    title: str
    dataset: str
    options: Sequence[Mapping[str, Any]] = ({"split": "train"}, {"split": "test"})


def load_present(sources: Sequence[Source]) -> tuple[dict[str, Dataset], tuple[str, ...]]:
    """The datasets that are there, by title, and a sentence on each that is not. DataError if none is."""
    present: dict[str, Dataset] = {}
    missing: list[str] = []
    for source in sources:
        try:
            present[source.title] = _load(source)
        except DataError as reason:
            missing.append(f"{source.title}: data not found: {reason}")
    if not present:
        raise DataError(f"none of the table's datasets was found. {missing[0]}")
    return present, tuple(missing)


def _load(source: Source) -> Dataset:
    reasons: list[DataError] = []
    for options in source.options:
        try:
            return load_data(source.dataset, **options)
        except DataError as reason:
            reasons.append(reason)
    raise reasons[-1]


def passive_extraction(model: nn.Module, batch: Batch, spec: InputSpec) -> dict[str, float]:
    """One client's FedSGD gradient, what `analytic_extraction` reads in it, and Section 8.1's scores."""
    broadcast = Broadcast(model)
    update = local_update(broadcast, batch, LocalTraining())
    seen = Exchange(broadcast=broadcast, update=update, clients=(0,))
    check_update(seen)  # a diverged training is an error, not a leak of zero
    layer = choose_layer(model, spec, None)
    return scores_of(read_layer(seen, Knowledge(input=spec), layer, rows_only=True), batch, spec)


def scores_of(found: Reconstruction, batch: Batch, spec: InputSpec) -> dict[str, float]:
    """Section 8.1's scores of what was read from the gradient rows."""
    assert found.rows is not None
    low, high = spec.value_range or (0.0, 1.0)  # texts have none: they match or not
    scores = extraction_scores(
        found.values,
        found.support,
        found.rows,
        spec.to_raw(batch.inputs),
        rule=ExactRule(unit=high - low),
    )
    return {
        "P": scores.precision_active,
        "R": scores.recall,
        "A": scores.active,
        "P all": scores.precision_all,
    }
