"""Defenses that train on more than the client's own examples: how many there are behind an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from seepage.core.types import Exchange, Reconstruction

Copies = Callable[[Mapping[str, Any]], int]
"""From a defense's settings to the number of training examples it makes of one."""


def one_each(settings: Mapping[str, Any]) -> int:
    """The client trains on its own examples."""
    return 1


def transformed_copies(settings: Mapping[str, Any]) -> int:
    """OASIS: the image and one copy for each transform.

    >>> transformed_copies({"transforms": ["rotate90", "rotate180"]})
    3
    """
    return 1 + len(settings.get("transforms", ("rotate90", "rotate180", "rotate270")))


def with_copies_counted(exchange: Exchange, each: int) -> Exchange:
    """The update as that of all copies: a client reports its own examples only."""
    number, labels = exchange.update.num_examples, exchange.labels
    if each == 1:
        return exchange
    return replace(
        exchange,
        update=replace(exchange.update, num_examples=None if number is None else each * number),
        labels=None if labels is None else labels.repeat_interleave(each),
    )


def without_claims_on_copies(found: Reconstruction, each: int) -> Reconstruction:
    """Nothing in an update says which of an image and its copies is the client's own.

    The set of an image's quarter turns is that of each of them, so an attack that vouches for one of them as
    the client's example would be wrong as often as not.
    """
    if each == 1:
        return found
    counts = found.label_counts
    return replace(
        found,
        claimed=None,
        if_declared=False,
        label_counts=None if counts is None else counts.div(each, rounding_mode="floor"),
    ).with_notes(
        f"Knowing the defense: {each} training examples are behind each of the client's. What comes back may "
        "be a transformed copy, so none is claimed to be the client's own."
    )
