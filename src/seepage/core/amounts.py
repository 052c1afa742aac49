"""Times and seeds as a user writes them, in a file, in Python or on the command line."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST = 1e9
"""Seconds; thirty years."""
_MOST_SEEDS = 10**6


def seconds(time: str | float) -> float:
    """A time: 60s, 5m, 1.5h or a plain number of seconds.

    >>> seconds("5m"), seconds(12)
    (300.0, 12.0)
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    text = str(time)
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        found = -1.0 if isinstance(time, bool) else float(number) * units[unit]
    except ValueError:
        found = -1.0
    if not 0 < found <= _LONGEST:
        raise ValueError(f"'{text}' is no time: write a positive number with s, m or h, as in 60s")
    return found


def about(seconds: float) -> str:
    """A time that is not known exactly, the other way round.

    >>> about(44.7), about(301), about(9000)
    ('45 s', '5 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def seeds(wanted: str | int | Sequence[int]) -> tuple[int, ...]:
    """A number of seeds, counted from 0, or the seeds themselves; a text with a comma is a list.

    >>> seeds(3), seeds("3"), seeds("3,"), seeds("0, 5"), seeds([7])
    ((0, 1, 2), (0, 1, 2), (3,), (0, 5), (7,))
    """
    given = wanted
    try:
        if isinstance(given, str):
            parts = [part for part in given.split(",") if part.strip()]
            given = [int(part) for part in parts] if "," in given else int(given)
        if isinstance(given, int) and not isinstance(given, bool) and 0 < given <= _MOST_SEEDS:
            given = range(given)
        found = tuple(given)  # type: ignore[arg-type]  # any other number is no sequence: a TypeError
    except (ValueError, TypeError):
        raise ValueError(
            f"{wanted!r} names no seeds: write how many, as in 5, or which ones, as in 0,1,2 (one alone: 7,)"
        ) from None
    for one in found:
        if type(one) is not int or not 0 <= one < 2**32:
            raise ValueError(f"{one!r} is no seed: give whole numbers from 0 to 2**32 - 1")
    if not found:
        raise ValueError("give at least one seed")
    if len(set(found)) < len(found):
        raise ValueError("a seed is given twice, which would count the same run twice")
    return found
