"""The sentences that report what was read by the alphabet alone."""

from __future__ import annotations

from seepage.attacks.reading.patterns.by_alphabet import ByAlphabet
from seepage.attacks.reading.patterns.no_bias import WithoutBias
from seepage.core.types import Exchange


def describe_by_alphabet(read: ByAlphabet, exchange: Exchange) -> tuple[str, ...]:
    """What was read, why it is believed, and what stays open."""
    if not len(read):
        return (
            f"{read.unmixed} example(s) were told apart by the neurons that each leaves off in every step. "
            "They lie on no grid, and an update that is a difference of weights is too coarse to rule out "
            "copies that are nearly alike: none is claimed.",
        )
    by_rows = len(read) - read.alone - read.unmixed
    notes = [
        "No backward signal could be foretold (several local steps, dropout, batch statistics, or a changed "
        "update), so the alphabet alone decides: a reading is an example if every value lies on the grid of "
        "pixels, or in the embedding table, as no mixture does.",
        f"{read.alone} example(s) had a neuron of their own; {by_rows} more were read from "
        "rows that hold one unknown example besides known ones, by the neurons that those leave off.",
    ]
    if read.unmixed:
        notes.append(
            f"{read.unmixed} were told apart by the neurons that each leaves off in every step: its share of "
            "the change of the weights is 0 there."
        )
    if read.replayed:
        notes.append("The same training on these examples ends where the client's training ended.")
    if claimed := int(read.claimed.sum()):
        notes.append(f"{claimed} example(s) are claimed.")
    if read.contradicted:
        notes.append(
            f"{read.contradicted} reading(s) are not claimed: they would have a share in rows whose neurons "
            "they do not switch on."
        )
    if read.doubtful:
        notes.append(
            f"{read.doubtful} reading(s) are not claimed: rounding, or others that are nearly alike, could "
            "put a mixture on the grid by accident."
        )
    n = exchange.update.num_examples
    if not read.single:
        notes.append(
            "None is claimed: the gradient does not show as many independent examples as were declared, so "
            "that any may be the mean of two that are nearly alike."
        )
    missing = "" if n is None or n <= len(read) else f"; {n - len(read)} example(s) are missing"
    if read.open_rows:
        notes.append(f"{read.open_rows} row(s) hold something else{missing}.")
    elif read.complete:
        notes.append("The layer's gradient is explained completely: nothing else is in it.")
    return tuple(notes)


def describe_without_bias(read: WithoutBias) -> tuple[str, ...]:
    """What was read beyond single rows, and how much of it is claimed."""
    notes = [
        f"With what known examples leave of other rows, {len(read)} examples become whole grey steps at one "
        f"length. {int(read.claimed.sum())} of them are claimed: the share of each in the rows that are "
        "explained is the backward signal of one of its labels."
    ]
    if read.complete:
        notes.append("The layer's gradient is explained completely: nothing else is in it.")
    elif read.open_rows:
        notes.append(f"{read.open_rows} row(s) hold something else.")
    return tuple(notes)
