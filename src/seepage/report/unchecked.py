"""Recorded exchanges: what keeps attacks from them, and the verdict where nobody gave the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from seepage.record import AttackSummary, AuditLog
from seepage.report.words import NOUNS, plural, things


def without_truth(
    log: AuditLog, attacks: Sequence[AttackSummary]
) -> tuple[Literal["claimed", "unknown"], str, tuple[str, ...]]:
    """Level, headline and details. It never says that nothing leaks: what nobody claims may leak as well."""
    names = {s.attack.key for s in attacks if s.cells}
    done = log.cells_where(lambda c: c.status == "done" and c.attack.key in names)
    # Several attacks may claim the same example, so an exchange counts with the one that claims most.
    different: dict[int, int] = {}
    for cell in done:
        different[cell.seed] = max(different.get(cell.seed, 0), cell.claimed_examples)
    updates = plural(len(different), "recorded update")
    found, claimed = sum(different.values()), sum(count > 0 for count in different.values())
    certified = len({cell.seed for cell in done if cell.complete})
    details = []
    if certified:
        details.append(
            f"In {certified} of {updates} an attack certifies that the layer it read holds nothing besides "
            "what it rebuilt."
        )
    details.append(
        "Nobody gave the truth, so that no claim was checked and nothing was scored: give it with --truth."
    )
    details.append(
        "An attack vouches only for what it can prove from the update. That it vouches for nothing, or for "
        "no more, does not mean that nothing, or no more, leaks."
    )
    if found and any(cell.claims_if_declared for cell in done):
        details.append(
            "What is claimed and certified holds if the clients declared the right number of their examples: "
            "twice as many, in pairs that are nearly alike, may have sent the same update."
        )
    if not found:
        one = NOUNS[log.header.input.modality][0]
        headline = f"No attack vouches for any {one} in {updates}; whether they leak was not measured."
        return "unknown", headline, tuple(details)
    where = updates if claimed == len(different) else f"{claimed} of {updates}"
    headline = f"A curious server vouches for {things(log.header, found)} that it read from {where}."
    if found > 1:
        headline = headline.replace(" that it", ", each counted once, that it")
    return "claimed", headline, tuple(details)


def hindrances(log: AuditLog) -> list[str]:
    """What about the recorded exchanges keeps attacks from them, and how many of them it is about.

    Where every example of an exchange came out exactly, nothing kept attacks from it.
    """
    seeds: dict[str, set[int]] = {}
    scored = log.cells_where(lambda cell: cell.space == "input" and cell.examples != ())
    read = {c.seed for c in scored if all(e.scores.get("exact") == 1.0 for e in c.examples)}
    for cell in log.cells:
        for said in () if cell.seed in read else cell.hindrances:
            seeds.setdefault(said, set()).add(cell.seed)
    whole = len(log.header.seeds)

    def which(found: set[int]) -> str:
        return "it" if whole == 1 else f"{len(found)} of {whole} exchanges"

    return [f"What may keep attacks from {which(found)}: {said}" for said, found in seeds.items()]
