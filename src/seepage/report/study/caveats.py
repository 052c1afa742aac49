"""What keeps a study's recommendation from being more than that."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from seepage.attacks import ATTACKS
from seepage.core.types import INPUT_SPACE
from seepage.defenses import DEFENSES, Described
from seepage.record import AttackRef, DefenseRecord
from seepage.report.study.result import StudyResult

WEAK_EPSILON = 10.0
"""Above it, the promise allows an attacker's odds to grow by more than a factor of 20 000."""


def caveats(result: StudyResult) -> Iterator[str]:
    """One sentence each, the general ones first."""
    yield from _of_the_attacks(result)
    yield from _of_the_training(result)
    for row in result.rows:
        if row.accuracy_note:
            yield f"{row.point.title}: {row.accuracy_note}"
        for one in (one for pair in row.leaks for one in pair.both):
            if one.status in {"failed", "partial"}:
                yield f"{row.point.title}, {one.attack.title} ({one.status}): {one.reason}"


def _of_the_attacks(result: StudyResult) -> Iterator[str]:
    rows = result.rows
    if result.missing:
        yield f"{result.missing} planned cells have not been run yet: the figures will change."
    yield (
        "0 exact copies is not safety: another attack, more rounds or more computing time may do better. "
        "Attacks give a lower bound on the leakage, and only for the rounds that they saw."
    )
    every = [one for row in rows for pair in row.leaks for one in pair.both if one.main is not None]
    if features := dict.fromkeys(one.attack.plain.title for one in every if one.space != INPUT_SPACE):
        counted = any(one.space == INPUT_SPACE for one in every)
        yield f"{', '.join(features)}: rebuilt features inside the network, not inputs" + (
            ", at least at some points: shown in the table there, not counted as leakage."
            if counted
            else ". No attack here got inputs, so the leakage is that of features."
        )
    rows_only = {one.attack.plain.name for one in every if _reads_single_rows(one.attack.plain)}
    if rows_only - {one.attack.plain.name for one in every if not _reads_single_rows(one.attack.plain)}:
        yield (
            "Crafted layers were read row by row, as published. With read = 'peel' the same attack takes "
            "found examples away and reads on: larger batches, sums and copies that stop single rows need "
            "not stop it."
        )
    heuristic = [row.point for row in rows if row.point.guarantee == "heuristic"]
    adapted = dict.fromkeys(row.point.defense.name for row in rows if row.adapted)
    if adapted:
        yield (
            f"Attacks were also run by a server that knows the defense ({', '.join(adapted)}). Its answers "
            "are the ones that seepage has; there may be better ones."
        )
    unknown = [p for p in heuristic if not _needs_noise(p) and not part_of_the_protocol(p)]
    names = dict.fromkeys(point.defense.name for point in unknown)
    for name in (name for name in names if name not in adapted):
        yield (
            f"{name} is heuristic, and the attacks here do not know that it is used. An attacker who does: "
            f"{adaptive_attacker(name)}"
        )
    for point in heuristic:
        if _needs_noise(point):
            yield (
                f"{point.title}: without the noise, or with a server that leaves it out, nothing is proven; "
                "only the clipping is left."
            )
    weak = [r.point.title for r in rows if r.point.epsilon is not None and r.point.epsilon > WEAK_EPSILON]
    if weak:
        yield (
            f"{', '.join(weak)}: ε above {WEAK_EPSILON:g} promises little. Where theory's bound is near "
            "100 %, the noise stopped these attacks only because they do not filter it."
        )


def _of_the_training(result: StudyResult) -> Iterator[str]:
    training = result.log.header.spec["training"]
    tuned = any(row.lrs for row in result.rows)
    yield (
        f"Accuracy is that of a training of {'at most ' if tuned else ''}{training['rounds']} rounds with "
        f"{training['clients']} clients, "
        + (
            "each defense at its own learning rate, chosen on examples that no client has (a deployment "
            "would have to choose it without looking at private data)."
            if tuned
            else "at the same learning rate for all; a defense that shrinks updates would gain from a larger "
            "one, and a longer training may rank them otherwise."
        )
    )
    if rising := [row.point.title for row in result.rows if row.still_rising]:
        yield (
            f"{', '.join(rising)}: the accuracy was still rising when the rounds were over; raise "
            "training.rounds to see where it ends."
        )
    if measures := [row.point.title for row in result.rows if part_of_the_protocol(row.point)]:
        yield (
            f"{', '.join(measures)}: the same number of rounds as the others, though larger batches and "
            "local averaging use more examples in each. Shares are of all examples behind an update or a sum."
        )
    seeds = min(len(result.first.seeds), len(result.first.training_seeds))
    if seeds == 1:
        yield "Only one seed: how much the figures vary is not known."
    elif seeds < 5:
        yield f"Only {seeds} seeds: the 95 % intervals are wide, and differences inside of them mean nothing."


def _reads_single_rows(attack: AttackRef) -> bool:
    """An attack on a crafted layer that could peel, and was not told to."""
    factory = ATTACKS.get(attack.name)
    if factory is None:  # a study may come from a version with other attacks
        return False
    default = inspect.signature(factory).parameters.get("read")
    return default is not None and attack.params.get("read", default.default) != "peel"


def _needs_noise(point: DefenseRecord) -> bool:
    """A mechanism whose proof rests on noise that is not there."""
    entry = DEFENSES.get(point.defense.name)
    return entry is not None and entry.guarantee != "heuristic" and not point.formal


def part_of_the_protocol(point: DefenseRecord) -> bool:
    return point.runs_at == "protocol"


def adaptive_attacker(name: str) -> str:
    """What an attacker who knows of the defense does; a study may come from a version with other ones."""
    entry = DEFENSES.entries().get(name)  # nothing is imported: a framework may not be installed here
    return str(entry.facts["adaptive"]) if entry and "adaptive" in entry.facts else Described.adaptive
