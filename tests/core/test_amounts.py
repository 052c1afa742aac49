"""Times and seeds as a user writes them."""

from __future__ import annotations

from typing import Any

import pytest

from seepage.core.amounts import seconds, seeds


@pytest.mark.parametrize(
    ("written", "meant"),
    [(1, (0,)), ("4", (0, 1, 2, 3)), ("4,", (4,)), ("3, 1", (3, 1)), ((5, 2), (5, 2)), (range(2), (0, 1))],
)
def test_a_number_counts_seeds_and_a_list_names_them(written: Any, meant: tuple[int, ...]) -> None:
    assert seeds(written) == meant


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "names no seeds"),
        ("many", "names no seeds"),
        ("1;2", "names no seeds"),
        (0, "names no seeds"),
        (-3, "names no seeds"),
        (True, "names no seeds"),
        (None, "names no seeds"),
        (10**9, "names no seeds"),
        ("-1,", "-1 is no seed"),
        ([True], "True is no seed"),
        ([0.5], "0.5 is no seed"),
        ([2**32], "is no seed"),
        (",", "at least one"),
        ([], "at least one"),
        ("1,1", "twice"),
    ],
)
def test_what_names_no_seeds_is_refused(written: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        seeds(written)


@pytest.mark.parametrize(("written", "meant"), [("90s", 90), ("1.5h", 5400), (7, 7), ("2m", 120)])
def test_times(written: Any, meant: float) -> None:
    assert seconds(written) == meant
