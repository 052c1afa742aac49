"""Which columns of a table came out: how many of each one's values are right, beside the best guess."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.types import Batch, ColumnKind, InputSpec
from seepage.metrics import ExactRule
from seepage.record import ColumnRecord


def right_values(rows: Tensor, truth: Tensor, spec: InputSpec, rule: ExactRule) -> Tensor:
    """(columns,): in how many of the raw rows (n, d) each column's value is right; a category's columns count
    as one."""
    right = rule.values(rows, truth)
    return torch.stack([right[:, columns].all(1).sum() for columns in _groups(spec)])


def column_records(
    right: Sequence[int],
    guessed: Sequence[int],
    truth: Tensor,
    *,
    spec: InputSpec,
    rule: ExactRule,
    public: Batch | None,
) -> tuple[ColumnRecord, ...]:
    """One record a column, in the table's order.

    right, guessed: the `right_values` of what was recovered, and of the best guess. The guess may name the
    most common public value of a column in place of what its row says: without it, a column that is 0 nearly
    everywhere would seem to leak.
    """
    groups = _groups(spec)
    common = [0] * len(groups)
    if public is not None and len(public):
        typical = _most_common(spec.to_raw(public.inputs).cpu(), groups, spec).to(truth)
        common = right_values(typical.expand_as(truth), truth, spec, rule).tolist()
    return tuple(
        ColumnRecord.model_validate(
            {
                "name": _name(spec, columns),
                "kind": spec.kinds[columns[0]].value,
                "right": own,
                "guessed": max(guess, usual),
                "examples": len(truth),
            }
        )
        for columns, own, guess, usual in zip(groups, right, guessed, common, strict=True)
    )


def _groups(spec: InputSpec) -> list[list[int]]:
    """Columns of the encoded table that are one column of the user's."""
    groups = {group[0]: list(group) for group in map(sorted, spec.categories)}
    inside = {column for group in spec.categories for column in group}
    return [
        groups.get(column, [column])
        for column in range(spec.shape[0])
        if column in groups or column not in inside
    ]


def _name(spec: InputSpec, columns: list[int]) -> str:
    """`sex` for the columns sex=f and sex=m."""
    if not spec.column_names:
        return f"column {columns[0]}" if len(columns) == 1 else f"columns {columns[0]} to {columns[-1]}"
    names = [spec.column_names[column] for column in columns]
    if len(names) == 1:
        return names[0]
    shared = {name.partition("=")[0] for name in names}
    return shared.pop() if len(shared) == 1 else " / ".join(names)


def _most_common(rows: Tensor, groups: list[list[int]], spec: InputSpec) -> Tensor:
    """(d,): each column's most common value, a category's columns taken together."""
    whole = torch.tensor([kind is not ColumnKind.REAL for kind in spec.kinds])
    rows = torch.where(whole, rows.round(), rows)
    common = rows.new_empty(rows.shape[1])
    for columns in groups:
        values, counts = rows[:, columns].unique(dim=0, return_counts=True)
        common[columns] = values[counts.argmax()]
    return common
