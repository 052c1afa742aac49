"""What rows of a table are worth: numbers as they are written, and a proof by the update of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.proof import unexplained
from seepage.attacks.tables.front import Front, columns_of_numbers
from seepage.core.types import Batch, Exchange, Knowledge, Reconstruction
from seepage.labels import counts_if_inferred
from seepage.models.precision import EXACT
from seepage.protocol.widening import model_placement

_MOST_DECIMALS = 4
"""Decimals that columns are written with, at most. Derived: float32 has seven digits, and with more decimals
none is left for numbers of a thousand and more."""
_ON = 0.05
"""Share of a step within which a reading counts as on it. Derived: one in ten lies there by chance."""
_ENOUGH = 6
"""Different readings that must lie on steps. Derived: 0.1 ** 6 by chance."""
PROVEN = 1e-5
"""Share of the update that a proven batch may leave. Derived: float32 leaves 1e-7 times the root of its
widths, a year of age in one row of 32 about 5e-4."""
EXPLAINING = 0.5
"""Confidence in unclaimed rows that together explain the update; 0 where they do not. A choice: any number
between 0 and 1 does the same."""
SURE = 20.0
"""Deviations of a number's error that a claimed one leaves room for: smooth networks' own rounding, which the
rest of the gradient does not show, made errors of up to 6 (GELU, tanh; Adult, seeds 0 and 2). No plateau test
yet."""


@dataclass(frozen=True)
class Rows:
    """What was read of one update, before it is written down."""

    raw: Tensor
    """(k, D)"""
    labels: Tensor | None
    counts: Tensor | None
    """(k,) how often each is in the batch; None: nobody knows."""
    error: Tensor
    """(k, J) in model units."""
    notes: tuple[str, ...]
    all_in_span: bool = False
    """Every combination of categories in the span is one of these rows, as many as it has dimensions."""


def written_rows(front: Front, choices: Tensor, numbers: Tensor, error: Tensor, known: Knowledge) -> Tensor:
    """Raw rows, numbers as finely as they are seen to be written."""
    spec = known.input
    raw = front.rows(choices, numbers, spec)
    std = torch.ones(spec.shape[0]) if spec.std is None else torch.tensor(spec.std, dtype=torch.float64)
    for j, column in enumerate(front.number_columns.tolist()):
        off = error[:, j] * float(std[column])
        exact = written(raw[:, column], off, whole=column in spec.integer)
        if exact is not None:
            raw[:, column] = exact
    return raw


def _fine(rows: Rows, known: Knowledge) -> Tensor:
    """(k,) bool: what rounding may have added changes no number by more than an exact copy may have."""
    spec, numbers = known.input, columns_of_numbers(known.input)
    std = spec.std or (1.0,) * spec.shape[0]
    allowed = rows.error.new_tensor([0.5 / std[c] if c in spec.integer else EXACT for c in numbers])
    return (SURE * rows.error <= allowed).all(1)


def reconstruction(rows: Rows, exchange: Exchange, known: Knowledge) -> Reconstruction:
    """With the claims that the update of these rows, or the span alone, allows."""
    spec, notes, fine, raw = known.input, list(rows.notes), _fine(rows, known), rows.raw
    # A mean of rows that are nearly alike lies in the span as well: they must be as many as were declared.
    proven = rows.all_in_span and len(raw) == exchange.update.num_examples
    complete, label_counts = None, None
    if rows.labels is not None and rows.counts is not None and bool((rows.counts > 0).all()):
        several = rows.counts > 1
        raw, labels, fine, several = (
            t.repeat_interleave(rows.counts, dim=0) for t in (raw, rows.labels, fine, several)
        )
        left = _left(raw, labels, exchange, known)
        proven = left is not None and left <= PROVEN
        if proven and bool(several.any()) and not _copies_differ(raw, labels, several, exchange, known):
            fine = fine & ~several
            notes.append(
                f"{int(several.sum())} row(s) seem to be copies, and are not claimed: rows that are nearly "
                "alike would lead to the same update as copies of their mean."
            )
        complete = proven and bool(fine.all())
        if left is not None:
            notes.append(
                f"The update of these rows differs from the one sent by {left:.1g} of it"
                + (": rounding." if proven else ", more than rounding.")
            )
        if proven:
            label_counts = torch.bincount(labels.cpu(), minlength=spec.num_classes)
    if label_counts is None:
        label_counts, more = counts_if_inferred(exchange, known)
        notes += more
    claimed = fine & proven
    return Reconstruction(
        values=raw.float(),
        claimed=claimed.cpu(),
        # rows that explain the update, but whose digits or copies are not vouched for, lie between
        confidence=torch.where(claimed, 1.0, EXPLAINING if proven else 0.0).double().cpu(),
        label_counts=label_counts,
        complete=complete,
        # The mean of rows that differ in a number is a row; that of two categories is none.
        if_declared=bool(claimed.any()) and rows.error.shape[1] > 0,
        notes=tuple(notes),
    )


def _copies_differ(
    raw: Tensor, labels: Tensor, several: Tensor, exchange: Exchange, known: Knowledge
) -> bool:
    """Whether rows that are nearly alike would not have been proven in the place of copies (k,) of one.

    Of each pair of copies one is moved up and one down, in one column of numbers, by as little as counts.
    """
    spec = known.input
    std = spec.std or (1.0,) * spec.shape[0]
    order = torch.arange(len(raw), device=raw.device)
    side = torch.where(order % 2 == 0, 1.0, -1.0) * several  # copies stand next to each other
    for column in columns_of_numbers(spec):
        step = 1.0 if column in spec.integer else EXACT * std[column]
        moved = raw.clone()
        moved[:, column] += side * step
        left = _left(moved, labels, exchange, known)
        if left is None or left <= PROVEN:
            return False
    return True


def explains(answer: Reconstruction) -> bool:
    """Whether the rows of an answer made here lead to the update that was sent."""
    sure = answer.confidence
    return sure is not None and len(sure) > 0 and float(sure.min()) >= EXPLAINING


def _left(raw: Tensor, labels: Tensor, exchange: Exchange, known: Knowledge) -> float | None:
    """The share of the update that these rows do not explain; None where they are not as many as sent."""
    n = exchange.update.num_examples
    if n is not None and len(raw) != n:
        return None
    device, dtype = model_placement(exchange.broadcast.model)
    batch = Batch(known.input.to_model(raw).to(device, dtype), labels.to(device))
    return unexplained(exchange, known, batch)


def written(column: Tensor, error: Tensor, *, whole: bool) -> Tensor | None:
    """The readings (k,) of one column as they must have been written; None where they could be anything.

    error: (k,) what rounding may have added. whole: the column counts things, as the schema says.

    >>> seen = [7.250003, 71.283299, 7.925002, 53.1, 8.05, 8.4583, 51.862504]
    >>> read = torch.tensor(seen, dtype=torch.double)
    >>> written(read, torch.full((7,), 3e-6), whole=False).tolist()
    [7.25, 71.2833, 7.925, 53.1, 8.05, 8.4583, 51.8625]
    """
    if whole:
        return column.round()
    for decimals in range(_MOST_DECIMALS + 1):
        steps = column * 10**decimals
        # where rounding may have moved a reading by a step, nearness says nothing
        if bool((error * 10**decimals > _ON).any()):
            return None
        near = (steps - steps.round()).abs() <= _ON
        if bool(near.all()) and len(steps.round().unique()) >= _ENOUGH:
            exact: Tensor = steps.round() / 10**decimals
            return exact
    return None
