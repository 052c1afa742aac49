"""Originals beside reconstructions, from most to least leaked: pictures, texts or rows."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import groupby

from seepage.core.errors import LogError
from seepage.names.metrics import BESIDE, leading
from seepage.record import AuditLog, Cell, Example, InputRecord
from seepage.record.packed import where
from seepage.record.pictures import Array, to_png, value_limits
from seepage.record.shown import drawn, most_exposed_first
from seepage.report.chosen import COLUMNS, LONGEST, PAIRS, Group, choose, is_large, room, shows
from seepage.report.sentences import Words, marked_words
from seepage.report.words import NOUNS, class_name, plural, short_number, with_unit

Column = tuple[str, str, str, bool]
_FIRST_DAY = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, kw_only=True)
class Item:
    """One private example and what became of it. Only the fields of its modality are filled."""

    name: str
    seed: int
    index: int
    class_name: str
    client: int
    leak: float
    """The main metric, the larger the more leaked; for sorting."""
    scores: tuple[tuple[str, str], ...]
    exact: bool
    recovered: bool
    claimed: bool
    truth_picture: str = ""
    picture: str = ""
    truth_words: Words = ()
    words: Words = ()
    columns: tuple[Column, ...] = ()
    """Name, original, rebuilt, and whether the value leaked: right by the log's own rule of exactness."""
    more_columns: int = 0


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The examples of one seed. `missing` says why nothing can be shown."""

    seed: int
    kind: str
    items: tuple[Item, ...] = ()
    more: str = ""
    missing: str = ""
    pixelated: bool = False


def build_galleries(log: AuditLog, cells: Sequence[Cell]) -> tuple[tuple[Gallery, ...], int]:
    """One gallery for each finished cell in input space, and the number of seeds left to the log."""
    done, space = where(cells, shows), room(log)
    shown = tuple(
        build_gallery(log, cell, pairs=space.pairs, longest=space.longest) for cell in done[: space.seeds]
    )
    return shown, max(0, len(done) - space.seeds)


def build_gallery(
    log: AuditLog,
    cell: Cell,
    *,
    keep: Sequence[int] | None = None,
    pairs: int = PAIRS,
    longest: int = LONGEST,
) -> Gallery:
    """One cell's examples, the most leaked first, or those with these indices; pictures up to `longest`."""
    modality = log.header.input.modality
    arrays = {} if modality == "text" else log.folder.read_arrays(cell.id)
    truth, rebuilt = arrays.get("truth"), arrays.get("reconstruction")
    if modality != "text" and (truth is None or rebuilt is None):
        return Gallery(seed=cell.seed, kind=modality, missing="The tensors of this run are not in the log.")
    count = len(cell.examples)
    kept = arrays["rows"].tolist() if "rows" in arrays else range(count)
    chance = range(count) if rebuilt is None else set(drawn(count, rebuilt[:1].nbytes))
    place = {example: row for row, example in enumerate(kept)}
    groups = choose(most_leaked_first(log, cell), pairs, at_hand=place, drawn=chance)
    if keep is not None:
        known = {example.index: example for example in cell.examples if example.index in place}
        groups = [Group("", tuple(known[i] for i in keep if i in known))]
    items = tuple(
        _item(log, cell, example, place[example.index], truth, rebuilt, longest)
        for group in groups
        for example in group.examples
    )
    left = count - len(items)
    values = "" if len(place) == count else f", which has the values of {len(place)} in all"
    said = ", then ".join(group.title for group in groups if group.title)
    more = f"{said + '; ' if said else ''}and {left} more in the log{values}" if left else ""
    return Gallery(
        seed=cell.seed, kind=modality, items=items, more=more, pixelated=not is_large(log.header.input)
    )


def most_leaked_first(log: AuditLog, cell: Cell) -> list[Example]:
    """Exact copies, then by the main metric."""
    what = leading(cell.examples[0].scores, log.header.input.modality)
    missing = float("-inf") if what.higher_leaks else float("inf")
    order = most_exposed_first(
        [e.scores.get("exact") == 1.0 for e in cell.examples],
        [e.recovered for e in cell.examples],
        [e.scores.get(what.name, missing) for e in cell.examples],
        higher_leaks=what.higher_leaks,
    )
    return [cell.examples[i] for i in order.tolist()]


def _item(
    log: AuditLog,
    cell: Cell,
    example: Example,
    row: int,
    truth: Array | None,
    rebuilt: Array | None,
    longest: int,
) -> Item:
    header = log.header
    shared = Item(
        name=f"{NOUNS[header.input.modality][0]} {example.index}",
        seed=cell.seed,
        index=example.index,
        leak=_leak(header.input.modality, example),
        class_name=class_name(header, example.label),
        client=example.client,
        scores=_scores(log, example),
        exact=example.scores.get("exact") == 1.0,
        recovered=example.recovered,
        claimed=example.claimed,
    )
    if truth is None or rebuilt is None:
        return _with_words(shared, example)
    if not 0 <= row < min(len(truth), len(rebuilt)):
        raise LogError(
            f"cell '{cell.id}' names example {example.index}, but its tensors hold "
            f"{plural(len(truth), 'row')}: delete that cell's files and resume the audit."
        )
    original, copy = truth[row], rebuilt[row]
    if header.input.modality == "tabular":
        return _with_columns(shared, header.input, original, copy, header.exact_tolerance)
    limits = value_limits(truth, header.input.value_range)  # of all originals, so that pairs share one scale
    return replace(
        shared,
        truth_picture=data_uri(to_png(original, limits, longest=longest)),
        picture=data_uri(to_png(copy, limits, longest=longest)) if example.recovered else "",
    )


def _scores(log: AuditLog, example: Example) -> tuple[tuple[str, str], ...]:
    modality = log.header.input.modality
    wanted = (leading((), modality), log.header.metric(BESIDE.get(modality, "")), *log.header.metrics)
    found = [metric for metric in wanted if metric.name in example.scores]
    return tuple((metric.title, with_unit(metric, example.scores[metric.name])) for metric in found)


def _with_words(item: Item, example: Example) -> Item:
    truth, words = marked_words(
        example.truth_text or "", example.reconstruction_text or "", known=example.known_words
    )
    return replace(item, truth_words=truth, words=words)


def _leak(modality: str, example: Example) -> float:
    what = leading(example.scores, modality)
    score = example.scores.get(what.name, math.nan)
    return score if what.higher_leaks else -score


def _with_columns(item: Item, table: InputRecord, truth: Array, rebuilt: Array, tolerance: float) -> Item:
    flat, copy = truth.reshape(-1), rebuilt.reshape(-1)
    names, kinds = table.column_names, table.column_kinds
    each = [
        (
            names[i] if i < len(names) else f"column {i}",
            _shown(table, i, float(flat[i])),
            _shown(table, i, float(copy[i])),
            item.recovered and _right(table, i, float(flat[i]), float(copy[i]), tolerance),
        )
        for i in range(len(flat))
    ]
    columns = [*_merged(each, kinds)]
    return replace(item, columns=tuple(columns[:COLUMNS]), more_columns=max(0, len(columns) - COLUMNS))


def _merged(columns: Sequence[Column], kinds: Sequence[str]) -> Iterator[Column]:
    """The columns that are one category in one-hot code as one, by the category's name, as the file has it.

    >>> town = [("town=Bonn", "0", "1", False), ("town=Ulm", "1", "0", False), ("age", "41", "41", True)]
    >>> list(_merged(town, ["categorical", "categorical", "integer"]))
    [('town', 'Ulm', 'Bonn', False), ('age', '41', '41', True)]
    """

    def stem(i: int) -> str:
        coded = i < len(kinds) and kinds[i] == "categorical" and "=" in columns[i][0]
        return columns[i][0].partition("=")[0] if coded else ""

    for name, run in groupby(range(len(columns)), stem):
        group = [columns[i] for i in run]
        if not name or [truth for _, truth, _, _ in group].count("1") != 1:
            yield from group
            continue
        named = [(one.removeprefix(f"{name}="), truth, copy) for one, truth, copy, _ in group]
        (original,) = (value for value, truth, _ in named if truth == "1")
        found = [value for value, _, copy in named if copy == "1"]
        yield name, original, found[0] if len(found) == 1 else "?", all(right for *_, right in group)


def _right(table: InputRecord, column: int, truth: float, rebuilt: float, tolerance: float) -> bool:
    """As `ColumnRecord.right` counts: whole numbers and categories equal, the others within the tolerance."""
    if column < len(table.column_kinds) and table.column_kinds[column] != "real":
        return math.isfinite(rebuilt) and round(rebuilt) == round(truth)
    low, high = table.value_range or (0.0, 1.0)
    spread = table.column_spreads[column] if column < len(table.column_spreads) else high - low
    return abs(rebuilt - truth) <= tolerance * spread


def _shown(table: InputRecord, column: int, value: float) -> str:
    """A value as the file had it: the nearest day as a date, where there is one."""
    if column in table.column_days and math.isfinite(value):
        number = _FIRST_DAY + round(value)
        if date.min.toordinal() <= number <= date.max.toordinal():
            return date.fromordinal(number).isoformat()
    return _cell(value, table.column_kinds[column] if column < len(table.column_kinds) else "real")


def _cell(value: float, kind: str) -> str:
    """A count is shown whole where it is within a hundredth of one, whatever its size.

    >>> _cell(1234567.002, "integer"), _cell(0.47, "categorical"), _cell(-0.001, "integer")
    ('1234567', '0.47', '0')
    """
    if kind == "real" or not math.isfinite(value):
        return short_number(value)
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
