"""Rows that a search came near, put into the first dense layer's equations: last digits, and which are right.

A true row lies in the row space of the layer's gradient and its signal in the column space: two conditions,
of as many equations as the layer has inputs and neurons beyond the batch, that a wrong row does not meet.
Where all rows meet them, the update of the whole batch is the proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.tables.combining import SAFE, in_span, with_numbers
from seepage.attacks.tables.fitting import by_signals
from seepage.attacks.tables.held import Held
from seepage.attacks.tables.placing import ROUNDED, Placed
from seepage.attacks.tables.proving import Rows, explains, reconstruction, written_rows
from seepage.attacks.tables.settling import labels_of, settle
from seepage.attacks.tables.sight import Sight
from seepage.core.types import Exchange, Knowledge, Reconstruction

SPARE = 10
"""Equations beyond the batch that must be left for nearness to mean anything. Derived: a signal in general
position lies within 1e-4 of a space with ten dimensions fewer by a chance of 1e-40."""


@dataclass(frozen=True)
class Confirmed:
    """Searched rows with the numbers that the layer's equations give them."""

    choices: Tensor
    numbers: Tensor
    labels: Tensor
    right: Tensor
    """(n,) bool"""


def confirm(rows: Tensor, labels: Tensor, sight: Sight, known: Knowledge) -> Confirmed:
    """Which of the searched rows (n, D), in model units, meet both conditions."""
    front, space = sight.front, sight.space
    assert sight.signals is not None
    raw = known.input.to_raw(rows.double())
    choices = torch.stack([raw[:, list(c.columns)].argmax(1) for c in front.categories], dim=1)
    wanted = rows.double()[:, front.number_columns]
    spanned = with_numbers(space, front, choices)
    numbers = spanned.numbers
    if spanned.free.shape[1]:  # what the span leaves open the search has said
        numbers = numbers + (wanted - numbers) @ torch.linalg.pinv(spanned.free).T @ spanned.free.T
    near = in_span(space, front, choices)
    numbers = torch.where(near[:, None], numbers, wanted)
    outside = by_signals(space, sight.signals)(front.features(choices, numbers), labels)[1]
    spare = len(space.signals) - space.rank >= SPARE
    right = near & (outside <= SAFE * max(space.noise, ROUNDED)) & torch.tensor(spare, device=near.device)
    return Confirmed(choices, numbers, labels, right)


def held_of(found: Confirmed, sight: Sight, known: Knowledge) -> Held:
    """The right rows, each once, for a search that holds them."""
    rows = sight.front.rows(found.choices, found.numbers, known.input)
    distinct = {tuple(row): i for i, row in enumerate(rows.tolist()) if bool(found.right[i])}
    kept = torch.tensor(sorted(distinct.values()), dtype=torch.long, device=rows.device)
    return Held(known.input.to_model(rows[kept]), found.labels[kept])


def proven(found: Confirmed, sight: Sight, exchange: Exchange, known: Knowledge) -> Reconstruction | None:
    """The batch that explains the whole update; None where these rows are not near enough to it."""
    front, space = sight.front, sight.space
    assert sight.signals is not None
    key = torch.cat([found.choices.double(), (found.numbers * 1e4).round()], dim=1)
    _, inverse = key.unique(dim=0, return_inverse=True)
    first = torch.stack([(inverse == i).nonzero()[0, 0] for i in range(int(inverse.max()) + 1)])
    choices, numbers, labels = found.choices[first], found.numbers[first], found.labels[first]
    fit = by_signals(space, sight.signals)
    unit, outside = fit(front.features(choices, numbers), labels)
    settled = settle(Placed(choices, numbers, labels, outside, unit), space, front, fit)
    if not bool(settled.numbers.isfinite().all() and settled.error.isfinite().all()):
        return None
    classes = max(2, known.input.num_classes)
    labels, counts = labels_of(
        settled, front, sight.signals, classes=classes, factor=sight.factor, most=sight.most
    )
    written = written_rows(front, settled.choices, settled.numbers, settled.error, known)
    answer = reconstruction(Rows(written, labels, counts, settled.error, ()), exchange, known)
    return answer if explains(answer) else None
