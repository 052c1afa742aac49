"""Whole rows of a table, exactly: categories from the row space, numbers from the signals, and a proof."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.proof import unexplained
from seepage.attacks.reading.scale import expected_kappa
from seepage.attacks.tables.combining import SAFE, Combinations, combine
from seepage.attacks.tables.digits import written
from seepage.attacks.tables.fitting import Fit, Signals, by_pattern, by_signals
from seepage.attacks.tables.front import Front, front_of, precise
from seepage.attacks.tables.placing import ROUNDED, place_all
from seepage.attacks.tables.row_space import RowSpace, row_space
from seepage.attacks.tables.settling import labels_of, settle
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Exchange, Knowledge, Modality, Reconstruction, UpdateKind
from seepage.labels import counts_if_inferred
from seepage.models.gradients import layer_gradient
from seepage.models.precision import EXACT
from seepage.models.signals import BackwardSignals, draws_chances
from seepage.protocol.widening import model_placement

PLAUSIBLE = 3000
"""Numbers that are tried where categories leave some open."""
PROVEN = 1e-5
"""Share of the update that a proven batch may leave: float32 leaves 1e-7 times the root of its widths, a
year of age in one row of 32 about 5e-4."""
SURE = 20.0
"""Deviations of a number's error that a claimed one leaves room for: smooth networks' own rounding, which the
rest of the gradient does not show, made errors of up to 6 (GELU, tanh; Adult, seeds 0 and 2)."""
MOST_CLASSES = 32
"""Beyond so many, signals of every label are not tried. Cost: each label is a pass."""


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


class ExactTable(PerUpdateAttack):
    """Reads the rows of a table with categories from its first dense layer."""

    def check(self, model: nn.Module, known: Knowledge) -> None:
        """A table with categories in known units, and a dense layer that reads it column by column."""
        check_table(known)
        front_of(precise(model), known.input)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        check_table(known)
        rows = read_rows(exchange, known)
        return _reconstruction(rows, exchange, known)


def check_table(known: Knowledge) -> None:
    """Raise NotApplicable where it is not known which columns are categories, and how they are fed."""
    if known.input.modality is not Modality.TABULAR:
        raise NotApplicable("this attack reads tables: use another one for pictures and texts.")
    if not known.input.categories:
        raise NotApplicable(
            "no column is known to hold categories, which rows are told apart by here: name them in "
            "categorical, or use 'exact_extraction', which reads tables of numbers."
        )
    if known.normalised:
        raise NotApplicable(
            "columns are normalised in a way that the server was not told, so that categories are not in "
            "known units: grant 'normalisation', or use 'exact_extraction'."
        )


def read_rows(exchange: Exchange, known: Knowledge) -> Rows:
    """Categories by the row space, numbers by the span of the signals; NotApplicable says what stands in the
    way."""
    model, spec, n = precise(exchange.broadcast.model), known.input, exchange.update.num_examples
    front = front_of(model, spec)
    gradient = layer_gradient(exchange, known, front.layer)
    space = row_space(gradient, most=n)
    if space is None:
        raise NotApplicable(
            f"the gradient of '{front.layer.name}' has no gap in its spectrum, as of more rows than its "
            f"{min(gradient.weight.shape)} inputs or neurons, or of noise: "
            "'inverting_gradients' searches instead."
        )
    if known.local is not None and known.local.batch_norm == "train" and not space.biased:
        raise NotApplicable(
            f"a batch norm in train mode behind '{front.layer.name}' takes the mean over the batch away, so "
            "that no row lies in the span of the gradient: 'inverting_gradients' searches instead."
        )
    one_step = gradient.steps == 1 and not draws_chances(model, known.local)
    kappa = expected_kappa(exchange, known)
    if one_step and gradient.scale is not None and kappa is not None and spec.num_classes <= MOST_CLASSES:
        signals = BackwardSignals(model, front.layer, spec, loss=known.loss).at_all_rows
        return _by_signals(space, front, signals, known, gradient.scale * kappa)
    if front.layer.followed_by_relu:
        weight = model.get_parameter(front.layer.weight).detach()
        bias = None if front.layer.bias is None else model.get_parameter(front.layer.bias).detach()
        moved = (gradient.weight, gradient.bias) if exchange.update.kind is UpdateKind.DELTA else None
        fit = by_pattern(space, weight, weight.new_zeros(len(weight)) if bias is None else bias, moved)
        return _by_pattern(space, front, fit, known)
    return _by_span(combine(space, front), space, front, known)


def _spanned(space: RowSpace, front: Front, combined: Combinations) -> str:
    return (
        f"The gradient of '{front.layer.name}' has rank {space.rank}; {len(combined.choices)} combination(s) "
        "of categories lie in its row space."
    )


def _by_signals(space: RowSpace, front: Front, signals: Signals, known: Knowledge, factor: float) -> Rows:
    """factor: what the gradient must be multiplied by to be a sum over examples."""
    classes = max(2, known.input.num_classes)
    fit = by_signals(space, signals)
    placed, combined = place_all(space, front, fit, classes=classes, plausible=_plausible(front, known))
    if not len(placed):
        return _by_span(combined, space, front, known)
    settled = settle(placed, space, front, fit)
    labels, counts = labels_of(settled, front, signals, classes=classes, factor=factor)
    raw = _written(front, settled.choices, settled.numbers, settled.error, known)
    return Rows(raw, labels, counts, settled.error, (_spanned(space, front, combined),))


def _by_pattern(space: RowSpace, front: Front, fit: Fit, known: Knowledge) -> Rows:
    """What dropout and several steps leave: rows by the neurons that they leave off."""
    placed, combined = place_all(space, front, fit, classes=2, plausible=_plausible(front, known))
    if not len(placed):
        return _by_span(combined, space, front, known)
    numbers, error = placed.numbers, torch.full_like(placed.numbers, combined.doubt)
    if combined.free.shape[1]:
        settled = settle(placed, space, front, fit)
        numbers, error = settled.numbers, settled.error
    sure = bool((placed.outside <= SAFE * max(space.noise, ROUNDED)).all())
    told = f"{len(placed)} row(s) were told by the neurons that they leave off."
    return Rows(
        _written(front, placed.choices, numbers, error, known),
        None,
        None,
        error,
        (_spanned(space, front, combined), told),
        # what rounding does to numbers that a pattern had to settle is not known
        sure and len(placed) == space.rank and combined.free.shape[1] == 0,
    )


def _by_span(found: Combinations, space: RowSpace, front: Front, known: Knowledge) -> Rows:
    """Without signals: exact where the categories leave nothing open.

    More combinations than rows would be guesses, of which the best fit anything.
    """
    if len(found.choices) > space.rank:
        raise NotApplicable(
            f"{len(found.choices)} combinations of categories lie in the span of {space.rank} rows, and what "
            "would tell them apart cannot be computed for this training or so many rows: 'exact_extraction' "
            "and 'inverting_gradients' may."
        )
    notes: tuple[str, ...] = (_spanned(space, front, found),)
    error = torch.full_like(found.numbers, found.doubt)
    alone = found.free.shape[1] == 0 and len(found.choices) == space.rank
    if found.free.shape[1]:
        notes += (
            "Rows that share all their categories leave the numbers of all rows open, and what would tell "
            "cannot be computed for this training: numbers are guesses.",
        )
    return Rows(_written(front, found.choices, found.numbers, error, known), None, None, error, notes, alone)


def _plausible(front: Front, known: Knowledge) -> Tensor:
    """(T, J) numbers in model units: those of public rows first, then heavy-tailed ones."""
    generator = torch.Generator().manual_seed(known.seed)
    j = len(front.number_columns)
    normal = torch.randn(PLAUSIBLE, j, generator=generator, dtype=torch.float64)
    spread = torch.rand(PLAUSIBLE, 1, generator=generator, dtype=torch.float64)
    made_up = normal * (0.3 + 3 * spread**3)
    if known.auxiliary is None or not len(known.auxiliary):
        return made_up
    public = known.auxiliary.inputs.double().cpu()[: PLAUSIBLE // 2, front.number_columns.cpu()]
    both = torch.cat([public, made_up])
    return both[torch.randperm(len(both), generator=generator)]


def _written(front: Front, choices: Tensor, numbers: Tensor, error: Tensor, known: Knowledge) -> Tensor:
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


def _reconstruction(rows: Rows, exchange: Exchange, known: Knowledge) -> Reconstruction:
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
        confidence=claimed.double().cpu(),
        label_counts=label_counts,
        complete=complete,
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
    categorical = {column for group in spec.categories for column in group}
    order = torch.arange(len(raw), device=raw.device)
    side = torch.where(order % 2 == 0, 1.0, -1.0) * several  # copies stand next to each other
    for column in range(spec.shape[0]):
        if column in categorical:
            continue
        step = 1.0 if column in spec.integer else EXACT * std[column]
        moved = raw.clone()
        moved[:, column] += side * step
        left = _left(moved, labels, exchange, known)
        if left is None or left <= PROVEN:
            return False
    return True


def _left(raw: Tensor, labels: Tensor, exchange: Exchange, known: Knowledge) -> float | None:
    """The share of the update that these rows do not explain; None where they are not as many as sent."""
    n = exchange.update.num_examples
    if n is not None and len(raw) != n:
        return None
    device, dtype = model_placement(exchange.broadcast.model)
    batch = Batch(known.input.to_model(raw).to(device, dtype), labels.to(device))
    return unexplained(exchange, known, batch)


def exact_table() -> ExactTable:
    """Passive, exact: rows of a table with categories, from the span of a dense layer's gradient, with proof.

    Categories are combined until they lie in the row space, whatever the activation, with dropout or batch
    norm behind the layer, and after several local steps; numbers follow. Beyond as many rows as categories
    have columns (or the layer neurons) nothing is told apart: `inverting_gradients` searches there.
    """
    return ExactTable()
