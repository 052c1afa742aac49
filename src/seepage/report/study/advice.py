"""A ranked recommendation in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seepage.defenses import DEFENSES
from seepage.record import epsilon_text
from seepage.report.study.caveats import WEAK_EPSILON, adaptive_attacker, caveats, part_of_the_protocol
from seepage.report.study.learned import chance_of, learned, why_not
from seepage.report.study.result import DefenseRow, StudyResult
from seepage.report.words import percent, with_interval

LITTLE = 0.01
"""Leakage without a defense below this: there is nothing to rank."""
BEARABLE = 0.5
"""A best score below this is called no good compromise."""
UNSTABLE = 0.1
"""Accuracy by which a defended training may beat the undefended one before that one is called unstable."""

RULE = (
    "Ranked by the share of the leakage that a defense stops, times the share of the accuracy above chance "
    "that it keeps, both against no defense."
)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One place of the ranking."""

    row: DefenseRow
    score: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do, and how far to trust it."""

    level: str
    """high, some, none_shown or unknown: the colour of the page."""
    headline: str
    details: tuple[str, ...]
    ranking: tuple[Ranked, ...]
    caveats: tuple[str, ...]


def advise(result: StudyResult) -> Advice:
    """Rank the defenses of a study."""
    plain = result.rows[0]  # every price is relative to the point without a defense
    ranking = _rank(result, plain)
    level, headline = _headline(result, plain, ranking)
    return Advice(
        level=level,
        headline=headline,
        details=(*_unstable(result, plain), *_details(ranking)),
        ranking=ranking,
        caveats=tuple(caveats(result)),
    )


def _rank(result: StudyResult, plain: DefenseRow) -> tuple[Ranked, ...]:
    classes = result.first.input.num_classes
    chance = chance_of(plain, classes)
    if plain.accuracy is None or not learned(plain, classes):
        return ()
    if plain.leakage is None or plain.leakage.value < LITTLE:
        return ()
    found = []
    for row in result.rows:
        if row is plain or row.accuracy is None or row.leakage is None or _not_attacked(row):
            continue
        kept = _clip((row.accuracy.value - chance) / (plain.accuracy.value - chance))
        stopped = _clip(1 - round(row.leakage.value, 3) / round(plain.leakage.value, 3))
        found.append(Ranked(row=row, score=kept * stopped, words=_words(row, kept, stopped)))
    # At equal scores a proof comes before a heuristic.
    return tuple(sorted(found, key=lambda r: (-round(r.score, 2), not r.row.point.formal)))


def _not_attacked(row: DefenseRow) -> bool:
    """Some attack failed or was not run here: what it would have got is not known, and is not nothing."""
    return any(one.status in {"failed", "not_run"} for pair in row.leaks for one in pair.both)


def _words(row: DefenseRow, kept: float, stopped: float) -> str:
    said = (
        f"stops {percent(stopped)} of what these attacks got and keeps {percent(kept)} of the accuracy above "
        f"chance ({with_interval(row.accuracy)}); {with_interval(row.exact)} of the examples come back "
        "exactly."
    )
    if row.point.epsilon is None:
        return said + " No proof stands behind it."
    if row.contradicted or row.point.broken:
        return said + f" Its promise does not hold: {row.accuracy_note or row.point.broken}"
    said += f" Proven: ε = {epsilon_text(row.point.epsilon)} for {row.point.protects}"
    if row.empirical_epsilon is not None and row.epsilon_at_least is not None:
        said += (
            f" (canaries show about {epsilon_text(row.empirical_epsilon)}, and at least "
            f"{epsilon_text(row.epsilon_at_least)})"
        )
    if row.bound_training is not None:
        said += f", and at most a chance of {percent(row.bound_training)} to rebuild one over the training"
    entry = DEFENSES.get(row.point.defense.name)
    if entry is not None and entry.runs_at == "server":
        said += f", for those who trust {entry.trusts}"
    return said + "."


def _headline(result: StudyResult, plain: DefenseRow, ranking: Sequence[Ranked]) -> tuple[str, str]:
    if plain.accuracy is None or plain.leakage is None:
        never = plain.leakage is None and all(one.status == "not_applicable" for one in plain.leaks)
        return "unknown", (
            "No attack of this study can work here, so nothing was measured."
            if never
            else "The runs without a defense are not finished, so nothing can be compared yet."
        )
    if plain.leakage.value < LITTLE:
        return (
            "none_shown",
            "These attacks got nothing even without a defense: this study cannot rank defenses.",
        )
    if not learned(plain, result.first.input.num_classes):
        return "unknown", why_not(plain, result.first.input.num_classes)
    if not ranking:
        return (
            "high",
            f"No defense was measured; without one, {with_interval(plain.exact)} of the examples leak.",
        )
    best = ranking[0]
    if best.score < BEARABLE:
        return "high", f"None of these defenses is a good compromise; {best.row.point.title} comes nearest."
    level = "none_shown" if _proven(best.row) else "some"
    return level, (
        f"Against these attacks {best.row.point.title} is the best compromise: {percent(best.row.accuracy)} "
        f"accuracy ({percent(plain.accuracy)} without it) and a leakage of {percent(best.row.leakage)} "
        f"({percent(plain.leakage)} without it)."
    )


def _unstable(result: StudyResult, plain: DefenseRow) -> Iterator[str]:
    """A defense that bounds the update also tames a step that is too large: no merit of the defense.

    Changes of the protocol may do better for good reasons: more examples or more local steps in a round.
    """
    reached = {
        row.accuracy.value: row
        for row in result.rows
        if row.accuracy is not None and not part_of_the_protocol(row.point)
    }
    if plain.accuracy is None or max(reached) <= plain.accuracy.value + UNSTABLE:
        return
    best = reached[max(reached)]
    yield (
        f"Do not read the accuracies yet: training without a defense ends at {percent(plain.accuracy)}, "
        f"with {best.point.title} at {percent(max(reached))}, so it is unstable at this learning rate. Lower "
        "protocol.lr and run the study again."
    )


def _details(ranking: Sequence[Ranked]) -> Iterator[str]:
    if not ranking:
        return
    best = ranking[0].row
    yield f"{best.point.title} {ranking[0].words}"
    if best.point.guarantee == "heuristic":
        yield _how_it_was_attacked(best)
    if not _proven(best):
        proven = [place for place in ranking if _proven(place.row)]
        yield (
            f"The best with a proof worth the name (ε up to {WEAK_EPSILON:g}): {proven[0].row.point.title} "
            f"{proven[0].words}"
            if proven
            else f"No defense in this study has a proof worth the name (ε up to {WEAK_EPSILON:g})."
        )


def _how_it_was_attacked(row: DefenseRow) -> str:
    if row.adapted:
        return (
            "It is heuristic. The figures are those of the worst attack, among them attacks by a server that "
            "knows of it; a cleverer one may get more: this is a lower bound on the leakage, no assurance."
        )
    if part_of_the_protocol(row.point):
        return (
            "It is heuristic. The server runs the protocol, so every attack here knows of it; a cleverer one "
            "may get more: this is a lower bound on the leakage, no assurance. What is known: "
            f"{adaptive_attacker(row.point.defense.name)}"
        )
    return (
        "It is heuristic and was attacked only by attacks that do not know of it: this is a lower bound "
        f"on the leakage, no assurance. An attacker who knows: {adaptive_attacker(row.point.defense.name)}"
    )


def _proven(row: DefenseRow) -> bool:
    promised = row.point.epsilon is not None and row.point.epsilon <= WEAK_EPSILON
    return promised and not row.contradicted and not row.point.broken


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))
