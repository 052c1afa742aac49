"""Which columns of a table came out: how many of each one's values are right, beside the best guess."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core.types import Batch, ColumnKind, InputSpec
from seepage.metrics import ExactRule
from seepage.record import ColumnRecord


def column_records(
    rebuilt: Tensor, guess: Tensor, truth: Tensor, *, spec: InputSpec, rule: ExactRule, public: Batch | None
) -> tuple[ColumnRecord, ...]:
    """One record a column, in the table's order; the columns of a category count as one.

    `rebuilt` and `guess` (n, d) are raw rows matched with `truth`; rows of NaN were not recovered. The guess
    may name the most common public value of a column in place of what its row says: without it, a column that
    is 0 nearly everywhere would seem to leak.
    """
    recovered = ~rebuilt.isnan().any(1)
    right = torch.zeros_like(truth, dtype=torch.bool)
    right[recovered] = rule.values(rebuilt[recovered], truth[recovered])
    groups = _groups(spec)
    guesses = [rule.values(guess, truth)]
    if public is not None and len(public):
        typical = _most_common(spec.to_raw(public.inputs).cpu(), groups, spec).to(truth)
        guesses.append(rule.values(typical.expand_as(truth), truth))
    return tuple(
        ColumnRecord.model_validate(
            {
                "name": _name(spec, columns),
                "kind": spec.kinds[columns[0]].value,
                "right": _count(right, columns),
                "guessed": max(_count(one, columns) for one in guesses),
                "examples": len(truth),
            }
        )
        for columns in groups
    )


def _count(right: Tensor, columns: list[int]) -> int:
    return int(right[:, columns].all(1).sum())


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
