"""The report on one sheet of paper: system, server, results, what to do, what is left open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seepage.record import BASELINE, AttackSummary, AuditLog, Header
from seepage.report.front import Front
from seepage.report.gaps import WOULD_FIT
from seepage.report.judgement import AuditVerdict, strongest
from seepage.report.vantage import protocol
from seepage.report.words import join, plural, share, with_interval

_FEW = 4


def one_page(
    log: AuditLog, summaries: Sequence[AttackSummary], ruling: AuditVerdict, front: Front
) -> list[tuple[str, str]]:
    """Headings with a sentence or two each."""
    header = log.header
    rows = [
        ("Verdict", f"{ruling.badge}. {ruling.headline}"),
        ("System", _system(header)),
        ("Server", f"{header.threat.description} It sees: {header.threat.server_sees}"),
        ("Safeguards", "; ".join(f"{one.title} ({one.guarantee})" for one in header.defenses) or "none"),
        ("Results", " ".join(_results(log, summaries)) or "No attack was measured."),
        ("For whom", " ".join(front.whom)),
        ("What to do", " ".join(_to_do(front))),
        ("Left open", _left_open(header, ruling)),
        (
            "Record",
            f"{header.created[:10]}, seeds {', '.join(map(str, header.seeds))}, run {header.run_key[:16]}",
        ),
    ]
    return [(key, value) for key, value in rows if value]


def _system(header: Header) -> str:
    said = protocol(header)
    batch, clients = said.get("batch_size"), said.get("clients") or 1
    played = (
        f", {plural(int(clients), 'client')}, {batch} examples each in a round, {said.get('algorithm', '')}"
        if batch
        else ""
    )
    size = f"{header.model_parameters:,} parameters"
    return f"{header.model_name} ({size}) on {header.data_name}{played}."


def _results(log: AuditLog, summaries: Sequence[AttackSummary]) -> Iterator[str]:
    leaking = strongest(log, summaries)
    others = [s for s in summaries if s.cells and s.attack.name != BASELINE and s not in leaking]
    for one in [*leaking, *others][:_FEW]:
        if one.claims_right is None:
            yield f"{one.attack.title}: {plural(one.claims, 'claim')}, not checked."
            continue
        exact = one.scores.get("exact")
        between = f" ({with_interval(exact)})" if exact else ""
        yield f"{one.attack.title}: {share(log.header, one.exact, one.examples)} exactly{between}."
    if len(leaking) + len(others) > _FEW:
        yield f"{len(leaking) + len(others) - _FEW} more in the table."


def _to_do(front: Front) -> Iterator[str]:
    if not front.advisable:
        return
    if front.actions is None or not front.actions.listed:
        yield "No remedy was measured here." if front.actions is None else front.actions.none_listed
        return
    for number, action in enumerate(front.actions.listed, start=1):
        yield f"{number}. {action.title}. {action.stops}"


def _left_open(header: Header, ruling: AuditVerdict) -> str:
    untried = [one.name for one in header.not_tried if one.why in WOULD_FIT]
    bound = "A lower bound: stronger attacks exist or will."
    if ruling.outcome == "not_measured":
        bound = "Everything: nothing was measured."
    tried = f" Not tried though they fit: {join(untried)}." if untried else ""
    return (
        f"{bound} Only a proof, such as differential privacy with a stated budget, bounds all of them.{tried}"
    )
