"""What rows of a table are worth: numbers as they are written, and a proof by the update of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.proof import unexplained
from seepage.attacks.tables.digits import written
from seepage.attacks.tables.front import Front
from seepage.core.types import Batch, Exchange, Knowledge, Reconstruction
from seepage.labels import counts_if_inferred
from seepage.models.precision import EXACT
from seepage.protocol.widening import model_placement

PROVEN = 1e-5
"""Share of the update that a proven batch may leave: float32 leaves 1e-7 times the root of its widths, a
year of age in one row of 32 about 5e-4."""
BETWEEN = 0.25
"""How far from a whole number a reading may lie. Derived: the mean of two neighbouring numbers lies at a
half, that of three rows at a third."""
SURE = 20.0
"""Deviations of a number's error that a claimed one leaves room for: smooth networks' own rounding, which the
rest of the gradient does not show, made errors of up to 6 (GELU, tanh; Adult, seeds 0 and 2)."""


@dataclass(frozen=True)
class Written:
    """Raw rows (k, D), numbers as finely as they are seen to be written."""

    raw: Tensor
    doubtful: Tensor
    """(k,) bool: a whole number lies between two, as the mean of near copies does."""
    open: Tensor
    """(k,) bool: some number is not seen to be written in steps, so that a mean of copies would not show."""


@dataclass(frozen=True)
class Rows:
    """What was read of one update, before it is written down."""

    written: Written
    """(k, D)"""
    labels: Tensor | None
    counts: Tensor | None
    """(k,) how often each is in the batch; None: nobody knows."""
    error: Tensor
    """(k, J) in model units."""
    notes: tuple[str, ...]
    all_in_span: bool = False
    """Every combination of categories in the span is one of these rows, as many as it has dimensions."""


def written_rows(front: Front, choices: Tensor, numbers: Tensor, error: Tensor, known: Knowledge) -> Written:
    """Rows with categories (k, groups) and numbers (k, J) of this error, in model units."""
    spec = known.input
    raw = front.rows(choices, numbers, spec)
    std = torch.ones(spec.shape[0]) if spec.std is None else torch.tensor(spec.std, dtype=torch.float64)
    doubtful = torch.zeros(len(raw), dtype=torch.bool, device=raw.device)
    open_ = doubtful.clone()
    for j, column in enumerate(front.number_columns.tolist()):
        off = error[:, j] * float(std[column])
        exact = written(raw[:, column], off, whole=column in spec.integer)
        if exact is None:
            open_[:] = True
            continue
        if column in spec.integer:
            doubtful |= (raw[:, column] - exact).abs() > BETWEEN
        raw[:, column] = exact
    return Written(raw, doubtful, open_)


def _fine(rows: Rows, known: Knowledge) -> Tensor:
    """(k,) bool: what rounding may have added changes no number by more than an exact copy may have."""
    spec = known.input
    categorical = {column for group in spec.categories for column in group}
    numbers = [column for column in range(spec.shape[0]) if column not in categorical]
    std = torch.tensor(spec.std or [1.0] * spec.shape[0], dtype=rows.error.dtype, device=rows.error.device)
    allowed = torch.tensor(
        [0.5 / float(std[c]) if c in spec.integer else EXACT for c in numbers],
        dtype=rows.error.dtype,
        device=rows.error.device,
    )
    return (SURE * rows.error <= allowed).all(1)


def reconstruction(rows: Rows, exchange: Exchange, known: Knowledge) -> Reconstruction:
    """With the claims that the update of these rows, or the span alone, allows."""
    spec, notes, raw = known.input, list(rows.notes), rows.written.raw
    sure = _fine(rows, known) & ~rows.written.doubtful
    proven, complete, label_counts = rows.all_in_span, None, None
    if rows.labels is not None and rows.counts is not None and bool((rows.counts > 0).all()):
        # rows that differ by less than the update shows are one row that is there twice, with the mean of
        # their numbers
        sure &= ~(rows.written.open & (rows.counts > 1))
        merged = not bool((sure | (rows.counts == 1)).all())
        raw, labels, sure = (t.repeat_interleave(rows.counts, dim=0) for t in (raw, rows.labels, sure))
        left = _left(raw, labels, exchange, known)
        proven = left is not None and left <= PROVEN
        complete = proven and not merged
        if left is not None:
            notes.append(
                f"The update of these rows differs from the one sent by {left:.1g} of it"
                + (": rounding." if proven else ", more than rounding.")
            )
        if proven and merged:
            notes.append("Some rows are there more than once, or are several that hardly differ.")
        if proven:
            label_counts = torch.bincount(labels.cpu(), minlength=spec.num_classes)
    if label_counts is None:
        label_counts, more = counts_if_inferred(exchange, known)
        notes += more
    claimed = sure & proven
    return Reconstruction(
        values=raw.float(),
        claimed=claimed.cpu(),
        confidence=claimed.double().cpu(),
        label_counts=label_counts,
        complete=complete,
        notes=tuple(notes),
    )


def _left(raw: Tensor, labels: Tensor, exchange: Exchange, known: Knowledge) -> float | None:
    """The share of the update that these rows do not explain; None where they are not as many as sent."""
    n = exchange.update.num_examples
    if n is not None and len(raw) != n:
        return None
    device, dtype = model_placement(exchange.broadcast.model)
    batch = Batch(known.input.to_model(raw).to(device, dtype), labels.to(device))
    return unexplained(exchange, known, batch)
