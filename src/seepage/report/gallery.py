"""Originals beside reconstructions, from most to least leaked: pictures, texts or rows."""

from __future__ import annotations

import base64
import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seepage.core.errors import LogError
from seepage.names.metrics import BESIDE, leading
from seepage.record import AuditLog, Cell, Example, InputRecord
from seepage.record.pictures import Array, to_png, value_limits
from seepage.report.words import NOUNS, class_name, plural, short_number, with_unit

SMALL_SIDE, LONGEST = 96, 160
"""Pictures up to SMALL_SIDE are enlarged with hard pixels; larger than LONGEST are shrunk for the page."""
PAIRS, LARGE_PAIRS, TEXTS, ROWS, COLUMNS, SEEDS = 24, 8, 12, 5, 24, 5

Words = tuple[tuple[str, bool], ...]


@dataclass(frozen=True, kw_only=True)
class Item:
    """One private example and what became of it. Only the fields of its modality are filled."""

    name: str
    class_name: str
    client: int
    scores: tuple[tuple[str, str], ...]
    exact: bool
    recovered: bool
    claimed: bool
    truth_picture: str = ""
    picture: str = ""
    truth_words: Words = ()
    words: Words = ()
    columns: tuple[tuple[str, str, str], ...] = ()
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
    done = [c for c in cells if c.status == "done" and c.space == "input" and c.examples]
    return tuple(_gallery(log, cell) for cell in done[:SEEDS]), max(0, len(done) - SEEDS)


def _gallery(log: AuditLog, cell: Cell) -> Gallery:
    modality = log.header.input.modality
    arrays = {} if modality == "text" else log.folder.read_arrays(cell.id)
    truth, rebuilt = arrays.get("truth"), arrays.get("reconstruction")
    if modality != "text" and (truth is None or rebuilt is None):
        return Gallery(seed=cell.seed, kind=modality, missing="The tensors of this run are not in the log.")
    large = modality == "image" and max(log.header.input.shape[-2:]) > SMALL_SIDE
    limit = {"image": LARGE_PAIRS if large else PAIRS, "text": TEXTS, "tabular": ROWS}[modality]
    order = _most_leaked_first(log, cell)
    items = tuple(_item(log, cell, example, truth, rebuilt) for example in order[:limit])
    left = len(order) - len(items)
    more = f"and {left} more in the log" if left else ""
    return Gallery(seed=cell.seed, kind=modality, items=items, more=more, pixelated=not large)


def _most_leaked_first(log: AuditLog, cell: Cell) -> list[Example]:
    what = leading(cell.examples[0].scores, log.header.input.modality)
    worst = float("-inf") if what.higher_leaks else float("inf")

    def leak(example: Example) -> tuple[bool, bool, float]:
        score = example.scores.get(what.name, worst)
        return example.scores.get("exact") == 1.0, example.recovered, score if what.higher_leaks else -score

    return sorted(cell.examples, key=leak, reverse=True)


def _item(log: AuditLog, cell: Cell, example: Example, truth: Array | None, rebuilt: Array | None) -> Item:
    header = log.header
    shared = Item(
        name=f"{NOUNS[header.input.modality][0]} {example.index}",
        class_name=class_name(header, example.label),
        client=example.client,
        scores=_scores(log, example),
        exact=example.scores.get("exact") == 1.0,
        recovered=example.recovered,
        claimed=example.claimed,
    )
    if truth is None or rebuilt is None:
        return _with_words(shared, example)
    if not 0 <= example.index < min(len(truth), len(rebuilt)):
        raise LogError(
            f"cell '{cell.id}' names example {example.index}, but its tensors hold "
            f"{plural(len(truth), 'row')}: delete that cell's files and resume the audit."
        )
    original, copy = truth[example.index], rebuilt[example.index]
    if header.input.modality == "tabular":
        return _with_columns(shared, header.input, original, copy)
    limits = value_limits(truth, header.input.value_range)  # of all originals, so that pairs share one scale
    return replace(
        shared,
        truth_picture=data_uri(to_png(original, limits, longest=LONGEST)),
        picture=data_uri(to_png(copy, limits, longest=LONGEST)) if example.recovered else "",
    )


def _scores(log: AuditLog, example: Example) -> tuple[tuple[str, str], ...]:
    modality = log.header.input.modality
    wanted = (leading((), modality), log.header.metric(BESIDE.get(modality, "")), *log.header.metrics)
    found = [metric for metric in wanted if metric.name in example.scores]
    return tuple((metric.title, with_unit(metric, example.scores[metric.name])) for metric in found)


def _with_words(item: Item, example: Example) -> Item:
    truth, words = same_words(example.truth_text or "", example.reconstruction_text or "")
    return replace(item, truth_words=truth, words=words)


def same_words(truth: str, rebuilt: str) -> tuple[Words, Words]:
    """Both texts as words, each marked if it stands in the other one too, in the same order.

    >>> same_words("the cat sat", "a cat sat")[1]
    (('a', False), ('cat', True), ('sat', True))
    """
    left, right = truth.split(), rebuilt.split()
    in_left, in_right = [False] * len(left), [False] * len(right)
    for block in difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
        in_left[block.a : block.a + block.size] = [True] * block.size
        in_right[block.b : block.b + block.size] = [True] * block.size
    return tuple(zip(left, in_left, strict=True)), tuple(zip(right, in_right, strict=True))


def _with_columns(item: Item, table: InputRecord, truth: Array, rebuilt: Array) -> Item:
    flat, copy = truth.reshape(-1), rebuilt.reshape(-1)
    names, kinds = table.column_names, table.column_kinds
    columns = tuple(
        (
            names[i] if i < len(names) else f"column {i}",
            _cell(float(flat[i]), kinds[i] if i < len(kinds) else "real"),
            _cell(float(copy[i]), kinds[i] if i < len(kinds) else "real"),
        )
        for i in range(min(len(flat), COLUMNS))
    )
    return replace(item, columns=columns, more_columns=len(flat) - len(columns))


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
