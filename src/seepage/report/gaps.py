"""What a verdict leaves open: attacks that could not run, that failed, and that nobody tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seepage.record import TIME_UP, AttackSummary, AuditLog, NotTried
from seepage.report.words import join, plural

_LONGEST = 90
"""Characters of a reason in the verdict; the whole of it stands further down."""

WOULD_FIT = {
    "not_listed": "Fit this deployment but were not tried",
    "over_budget": "Not tried for want of time",
}
_CANNOT_WORK = {
    "does_not_fit": "made for other models, data or protocols",
    "not_granted": "ruled out by this threat model",
}


@dataclass(frozen=True)
class Spoiled:
    """Attacks that finished with scores that say nothing, by their titles."""

    no_number: Sequence[str] = ()
    no_guess: Sequence[str] = ()
    """The log holds no score of the baseline to compare theirs with."""


def nothing_finished(attacks: Sequence[AttackSummary], spoiled: Spoiled) -> str:
    """The headline where nothing was measured."""
    if attacks and all(s.status == "not_applicable" for s in attacks):
        return "No attack of this audit can work in this setting, so nothing was measured."
    if spoiled.no_guess and spoiled.no_number:
        return "No attack has scores that can be compared with a guess, so nothing was measured."
    if spoiled.no_guess:
        return "The log holds no baseline to compare an attack with, so nothing was measured."
    if spoiled.no_number:
        return "The scores of every attack are no numbers, so nothing was measured."
    return "No attack has finished, so nothing can be said yet."


def out_of_time(log: AuditLog, attacks: Sequence[AttackSummary]) -> list[str]:
    """One sentence where searches ran out of time; none where an attack left them nothing to find."""
    runs = len(log.header.seeds)
    for one in attacks:
        whole = one.complete == runs or 0 < one.examples == one.exact
        if one.space == "input" and one.cells == runs and whole:
            return []
    cut = {
        s.attack.title: sum(TIME_UP in c.notes for c in log.cells_of(s.attack, done=True)) for s in attacks
    }
    named = [f"{title} in {count} of {plural(runs, 'run')}" for title, count in cut.items() if count]
    if not named:
        return []
    return [
        f"Stopped by the time budget: {join(named)}; a longer budget (--budget, or its own) may find more."
    ]


def gaps(
    log: AuditLog, attacks: Sequence[AttackSummary], spoiled: Spoiled, *, reasons: bool
) -> Iterator[str]:
    """Attacks that said nothing, cells that are still to run and, with `reasons`, what was not tried.

    Where nothing was shown these are the verdict's limits, so that the reasons stand beside the names.
    """
    for status, words in (
        ("not_applicable", "Not applicable here"),
        ("failed", "Failed"),
        ("partial", "Finished only in part"),
    ):
        found = [s for s in attacks if s.status == status]
        if found and reasons:
            by_reason: dict[str, list[str]] = {}
            for summary in found:
                by_reason.setdefault(short(summary.reason), []).append(summary.attack.title)
            yield f"{words}: {'; '.join(f'{join(names)} ({why})' for why, names in by_reason.items())}."
        elif found and status != "partial":
            yield f"{words}: {join([s.attack.name for s in found])}; the reason is given below."
    if spoiled.no_number:
        yield f"Not counted, for its scores are no numbers: {join(spoiled.no_number)}."
    if spoiled.no_guess:
        yield f"Not counted, for the log holds no baseline to compare it with: {join(spoiled.no_guess)}."
    if reasons:
        yield from not_tried(log.header.not_tried)
    if log.missing:
        verb = "is" if log.missing == 1 else "are"
        cells = plural(len(log.header.planned()), "cell")
        yield f"Partial log: {log.missing} of {cells} {verb} missing; run the same command again to finish."


def not_tried(attacks: Sequence[NotTried]) -> Iterator[str]:
    """Attacks that would have fitted by their names, a sentence for each kind of reason; the others counted.

    >>> list(not_tried([NotTried(name="tag", why="not_listed", reason="the audit names its attacks.")]))
    ['Fit this deployment but were not tried: tag.']
    >>> list(not_tried([NotTried(name="april", why="does_not_fit", reason="the model has no patches.")]))
    ['Not tried: 1 attack made for other models, data or protocols.']
    """
    for why, words in WOULD_FIT.items():
        names = [one.name for one in attacks if one.why == why]
        if names:
            yield f"{words}: {join(names)}."
    counts = {words: sum(one.why == why for one in attacks) for why, words in _CANNOT_WORK.items()}
    found = [f"{plural(count, 'attack')} {words}" for words, count in counts.items() if count]
    if found:
        yield f"Not tried: {join(found)}."


def short(reason: str) -> str:
    """A reason as it is, or cut at a word where it is long.

    >>> short("the model has no dense layer.")
    'the model has no dense layer'
    """
    text = reason.strip().rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} …"
