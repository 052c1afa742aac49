"""Whole rows of a table, exactly: categories from the row space, numbers from the signals, and a proof."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.tables.combining import SAFE, Combinations, combine
from seepage.attacks.tables.fitting import Fit, Signals, by_pattern, by_signals
from seepage.attacks.tables.front import Front, front_of, precise
from seepage.attacks.tables.placing import ROUNDED, place_all
from seepage.attacks.tables.proving import Rows, reconstruction, written_rows
from seepage.attacks.tables.row_space import RowSpace
from seepage.attacks.tables.settling import labels_of, settle
from seepage.attacks.tables.sight import Sight, sight_of
from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge, Modality, Reconstruction, UpdateKind

PLAUSIBLE = 3000
"""Numbers that are tried where categories leave some open. Cost: time."""


class ExactTable(PerUpdateAttack):
    """Reads the rows of a table with categories from its first dense layer."""

    def check(self, model: nn.Module, known: Knowledge) -> None:
        """A table with categories in known units, and a dense layer that reads it column by column."""
        check_table(known)
        front_of(precise(model), known.input)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        check_table(known)
        rows = read_rows(exchange, known)
        return reconstruction(rows, exchange, known)


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
    sight = sight_of(exchange, known)
    space, front = sight.space, sight.front
    if sight.signals is not None:
        return _by_signals(sight, sight.signals, known)
    if front.layer.followed_by_relu:
        model, gradient = sight.model, sight.gradient
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


def _by_signals(sight: Sight, signals: Signals, known: Knowledge) -> Rows:
    """What the server can compute of each row tells the rows, their labels, and how often they are there."""
    space, front = sight.space, sight.front
    classes = max(2, known.input.num_classes)
    fit = by_signals(space, signals)
    placed, combined = place_all(space, front, fit, classes=classes, plausible=_plausible(front, known))
    if not len(placed):
        return _by_span(combined, space, front, known)
    settled = settle(placed, space, front, fit)
    labels, counts = labels_of(settled, front, signals, classes=classes, factor=sight.factor, most=sight.most)
    raw = written_rows(front, settled.choices, settled.numbers, settled.error, known)
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
        written_rows(front, placed.choices, numbers, error, known),
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
    raw = written_rows(front, found.choices, found.numbers, error, known)
    return Rows(raw, None, None, error, notes, alone)


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


def exact_table() -> ExactTable:
    """Passive, exact: rows of a table with categories, from the span of a dense layer's gradient, with proof.

    Categories are combined until they lie in the row space, whatever the activation, with dropout or batch
    norm behind the layer, and after several local steps; numbers follow. Beyond as many rows as categories
    have columns (or the layer neurons) nothing is told apart: `inverting_gradients` searches there.
    """
    return ExactTable()
