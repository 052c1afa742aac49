"""What the columns of a table are: their kinds, their spreads, and the scale a model is fed them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import torch
from torch import Tensor

from seepage.core.errors import DataError, SpecError
from seepage.core.types import InputSpec, Modality
from seepage.data.dataset import Dataset

LARGEST_WHOLE = 2**22
"""Whole numbers up to this one come back from standardised float32 values (24 bits) when they are rounded.
Columns with larger ones are measured, not counted."""
_NORMAL_HALF = 2 * NormalDist().inv_cdf(0.75)
"""Width of the shortest interval with half of all normal values of spread 1."""
Columns = Sequence[str | int]
"""Columns by their names or numbers."""


def with_columns(
    dataset: Dataset,
    *,
    integer: Columns | None = None,
    real: Columns | None = None,
    standardise: bool | None = None,
) -> Dataset:
    """The table with its columns' kinds, found by looking or as told, and their spreads.

    A column of whole numbers counts things, unless `real` names it. `standardise` is whether a model is to be
    fed the columns standardised; None leaves it to the loader.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(2,), num_classes=2, value_range=None)
    >>> rows = torch.tensor([[41.0, 1.75], [44.0, 1.5]])
    >>> found = with_columns(Dataset("two", rows, torch.tensor([0, 1]), spec, "by hand")).spec
    >>> found.integer, found.spread
    ((0,), (1.5, 0.125))
    """
    if dataset.spec.modality is not Modality.TABULAR or dataset.inputs.ndim != 2:
        for key, given in {"integer": integer, "real": real, "standardise": standardise}.items():
            if given is not None:
                raise SpecError(
                    f"{key} belongs to tables: leave it out of {dataset.spec.modality} data ({dataset.name})."
                )
        return dataset
    spec = dataset.spec
    if spec.spread is None:  # not looked at before
        rows = dataset.inputs.double()
        spec = replace(spec, integer=_whole(rows, spec), spread=tuple(spreads(rows).tolist()))
    counted = set(spec.integer) | set(_told(dataset, "integer", integer))
    measured = set(_told(dataset, "real", real))
    if both := set(_told(dataset, "integer", integer)) & measured:
        raise SpecError(
            f"column {_name(spec, min(both))} is named in integer and in real; keep one of the two."
        )
    for column in sorted(counted - measured):
        _check_whole(dataset, column)
    spec = replace(spec, integer=tuple(sorted(counted - measured)))
    return replace(dataset, spec=spec, standardise=_wanted(dataset, standardise))


def spreads(rows: Tensor) -> Tensor:
    """(D,) how far the values of each column of a table (N, D) lie apart.

    The standard deviation or, where a few large values make most of it, that of the middle: the width of the
    shortest interval that holds more than half of the values, over what it is for normal values of spread 1.
    Where more than half are equal it is the others' median distance from them. One very rich customer
    must not make everybody else's income the same.

    >>> spreads(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5e9]]))
    tensor([1.4826], dtype=torch.float64)
    """
    rows = rows.double()
    ordered = rows.sort(0).values
    more_than_half = len(rows) // 2 + 1
    widths = ordered[more_than_half - 1 :] - ordered[: len(rows) - more_than_half + 1]
    shortest, start = widths.min(0)  # (D,)
    common = ordered.gather(0, start.unsqueeze(0))
    away = (rows - common).abs()
    others = torch.where(away > 0, away, torch.nan).nanmedian(0).values.nan_to_num(0.0)
    middle = torch.where(shortest > 0, shortest / _NORMAL_HALF, others)
    return torch.minimum(rows.std(0, correction=0), middle)


def standardised(dataset: Dataset, public: Tensor) -> Dataset:
    """The table as a model is fed it: each column minus its mean over the rows `public`, over their spread.

    Only these rows are looked at: they must be nobody's secret. Columns in one-hot code stay 0 and 1. Where a
    column is constant it is divided by its magnitude, zeros by 1. A dataset that is not to be standardised
    comes back as it is.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(1,), num_classes=2, value_range=None)
    >>> rows, labels = torch.tensor([[10.0], [30.0], [99.0]]), torch.tensor([0, 1, 0])
    >>> data = Dataset("ages", rows, labels, spec, "by hand", standardise=True)
    >>> standardised(data, torch.tensor([0, 1])).batch(torch.tensor([0, 1])).inputs.flatten().tolist()
    [-1.0, 1.0]
    """
    if not dataset.standardise:
        return dataset
    if len(public) < 2:
        raise SpecError(
            f"{dataset.name} is to be standardised by rows that no client holds, and {len(public)} of its "
            f"{len(dataset)} are set aside: lower batch_size or clients, raise public_examples, give mean "
            "and std, or say standardise = false."
        )
    rows = dataset.inputs[public.to(dataset.inputs.device)].double()
    mean, spread = rows.mean(0), rows.std(0, correction=0)
    spread = torch.where(spread > 0, spread, rows.abs().amax(0))
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    one_hot = [column for group in dataset.spec.categories for column in group]
    mean[one_hot], spread[one_hot] = 0.0, 1.0
    spec = replace(dataset.spec, mean=tuple(mean.tolist()), std=tuple(spread.tolist()))
    return replace(dataset, spec=spec, standardise=False)


def _wanted(dataset: Dataset, standardise: bool | None) -> bool:
    given = dataset.spec.mean is not None
    if standardise is None:
        return dataset.standardise and not given
    if not isinstance(standardise, bool):
        raise SpecError(f"standardise is {standardise!r}; give true or false.")
    if standardise and given:
        raise SpecError("standardise = true finds mean and std itself; leave it out, or mean and std.")
    return standardise


def _whole(rows: Tensor, spec: InputSpec) -> tuple[int, ...]:
    """Columns of whole numbers, one-hot ones left out."""
    fits = ((rows == rows.round()) & (rows.abs() <= LARGEST_WHOLE)).all(0)
    one_hot = {column for group in spec.categories for column in group}
    return tuple(column for column in fits.nonzero().flatten().tolist() if column not in one_hot)


def _check_whole(dataset: Dataset, column: int) -> None:
    values = dataset.inputs[:, column].double()
    fits = (values == values.round()) & (values.abs() <= LARGEST_WHOLE)
    if not bool(fits.all()):
        row = int((~fits).nonzero()[0])
        raise DataError(
            f"{dataset.name}: column {_name(dataset.spec, column)} is named in integer, but row {row} holds "
            f"{float(values[row]):.10g}; name columns of whole numbers up to {LARGEST_WHOLE} there."
        )


def _told(dataset: Dataset, key: str, given: Columns | None) -> list[int]:
    """The numbers of the columns that the user named."""
    if given is None:
        return []
    spec, width = dataset.spec, dataset.spec.shape[0]
    if isinstance(given, str | int):
        raise SpecError(f"{key} is {given!r}; give a list of columns, as [{given!r}].")
    one_hot = {column for group in spec.categories for column in group}
    found = []
    for wanted in given:
        by_name = isinstance(wanted, str) and wanted in spec.column_names
        column = spec.column_names.index(wanted) if by_name else wanted
        if isinstance(column, bool) or not isinstance(column, int) or not 0 <= column < width:
            valid = ", ".join(spec.column_names) or f"0 to {width - 1}"
            raise SpecError(f"{dataset.name} has no column {wanted!r} to name in {key}; it has {valid}.")
        if column in one_hot:
            raise SpecError(
                f"column {_name(spec, column)} is a category in one-hot code; leave it out of {key}."
            )
        found.append(column)
    return found


def _name(spec: InputSpec, column: int) -> str:
    return f"'{spec.column_names[column]}'" if spec.column_names else str(column)
