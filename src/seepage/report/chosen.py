"""Which examples a page has room for: all of them, or those that leaked most and least and some drawn."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from dataclasses import dataclass

from seepage.record import AuditLog, Cell, Example, InputRecord

ROOM = 2 * 2**20
"""Bytes of a page for all its galleries: a report stays below 3 MB."""
SMALL_SIDE, LONGEST, SHORTEST = 96, 160, 24
"""Pictures up to SMALL_SIDE are enlarged with hard pixels; larger than LONGEST are shrunk for the page, and
down to SHORTEST where there are many of them."""
PAIRS, LARGE_PAIRS, TEXTS, ROWS, COLUMNS, SEEDS = 24, 8, 12, 5, 24, 5
FEWEST = 3
"""One that leaked most, one that leaked least, one drawn."""
_HEAD = 400
"""Bytes of a pair beside its pictures, words or values."""
_WORD, _VALUE = 40, 60
"""Bytes of a word, which may be marked, and of a value of a table with its column's name."""


@dataclass(frozen=True)
class Room:
    """What one gallery may show."""

    seeds: int
    """Of an attack."""
    pairs: int
    longest: int
    """Pixels of a picture's longer side."""


def room(log: AuditLog) -> Room:
    """Shares the page among the attacks: fewer seeds first, then fewer pairs, at last smaller pictures.

    A bound: a PNG is hardly longer than its pixels.
    """
    shape, modality = log.header.input.shape, log.header.input.modality
    most = {"image": LARGE_PAIRS if is_large(log.header.input) else PAIRS, "text": TEXTS, "tabular": ROWS}
    attacks = max(1, len({cell.attack.key for cell in log.cells if shows(cell)}))
    pair = {
        "image": _picture_pair(shape, LONGEST) if modality == "image" else 0,
        "text": 2 * _WORD * shape[-1] + _HEAD,
        "tabular": 3 * _VALUE * min(COLUMNS, shape[-1]) + _HEAD,
    }[modality]
    seeds = min(SEEDS, max(1, ROOM // (attacks * pair * most[modality])))
    share = ROOM // (attacks * seeds)
    pairs = min(most[modality], max(FEWEST, share // pair))
    longest = LONGEST
    while modality == "image" and longest > SHORTEST and pairs * _picture_pair(shape, longest) > share:
        longest -= 8
    return Room(seeds, pairs, longest)


def shows(cell: Cell) -> bool:
    """Whether there is anything to see of it: a layer's features are not."""
    return cell.status == "done" and cell.space == "input" and bool(cell.examples)


def is_large(example: InputRecord) -> bool:
    return example.modality == "image" and max(example.shape[-2:]) > SMALL_SIDE


def _picture_pair(shape: Sequence[int], longest: int) -> int:
    """Bytes of an original and its copy, as base64."""
    height, width = shape[-2:]
    channels = 3 if len(shape) == 3 and shape[0] > 2 else 1
    scale = min(1.0, longest / max(height, width))
    pixels = int(height * scale + 1) * int(width * scale + 1) * channels
    return 2 * (pixels + 100) * 4 // 3 + _HEAD


@dataclass(frozen=True)
class Group:
    """Examples under one heading; without one where all are shown."""

    title: str
    examples: tuple[Example, ...]


def choose(
    ordered: Sequence[Example], pairs: int, *, at_hand: Container[int], drawn: Container[int]
) -> list[Group]:
    """At most so many of the examples, which come with the most leaked first.

    at_hand: those that can be shown. drawn: those that were drawn before anything was known of them.

    Where there are more, a third leaked least, a third was drawn from those between, and the rest leaked
    most.
    """
    shown = [example for example in ordered if example.index in at_hand]
    if len(ordered) <= pairs:
        return [Group("", tuple(shown))]
    third = pairs // 3
    most, least = shown[: pairs - 2 * third], shown[len(shown) - third :]
    between = [e for e in shown[len(most) : len(shown) - third] if e.index in drawn]
    some = random.Random(len(ordered)).sample(range(len(between)), min(third, len(between)))
    groups = (
        (f"{len(most)} that leaked most", most),
        (f"{len(some)} of the others, drawn at random", [between[i] for i in sorted(some)]),
        (f"{len(least)} that leaked least", least),
    )
    return [Group(title, tuple(examples)) for title, examples in groups if examples]
