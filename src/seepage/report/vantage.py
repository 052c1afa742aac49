"""Who the server is and what it looked at, as the end of a sentence: `from the secure sum of 8 clients`."""

from __future__ import annotations

from typing import Any

from seepage.record import AttackSummary, AuditLog, Header
from seepage.report.words import plural


def server(header: Header, summary: AttackSummary) -> str:
    """A server that crafted weights is dishonest; one that only looked is curious, whatever it might do."""
    crafted = summary.crafted
    if crafted is None:
        crafted = "craft_weights" in header.threat.grants
    return "A dishonest server" if crafted else "A curious server"


def protocol(header: Header) -> dict[str, Any]:
    """The protocol part of the spec; empty where the spec has none."""
    found = header.spec.get("protocol")
    return found if isinstance(found, dict) else {}


def looked_at(header: Header) -> tuple[int | None, int]:
    """How many clients were drawn to be looked at, None where all were; and how many there are."""
    clients = _whole(protocol(header).get("clients")) or 1
    audited = _whole(protocol(header).get("audited"))
    return (None if audited is None or audited >= clients else audited), clients


def vantage(log: AuditLog, summary: AttackSummary) -> str:
    """What this attack looked at in each run, e.g. `from one update in each of 3 runs`."""
    clients = _clients(log, summary)
    rounds = summary.rounds or _whole(protocol(log.header).get("rounds")) or log.header.threat.rounds
    over = f" over {plural(rounds, 'round')}" if rounds > 1 else ""
    kind = _aggregate(log.header)
    fakes = _whole(protocol(log.header).get("fakes"))
    if kind == "secure sum" and fakes:
        least = _whole(protocol(log.header).get("minimum_honest")) or 1
        seen = f"secure sums of {plural(least, 'client')} at a time, filled up with fakes{over}"
    elif kind == "secure sum":
        seen = f"the secure sum of {plural(clients, 'client')}{over}"
    elif kind:
        owners = "1 client's update" if clients == 1 else f"{clients} clients' updates"
        seen = f"the {kind} of {owners}{over}"
    elif clients > 1:
        audited, _ = looked_at(log.header)
        some = "" if audited is None else f"{audited} of "
        seen = f"the updates of {some}{clients} clients{over}"
    else:
        seen = f"{rounds} updates" if rounds > 1 else "one update"
    runs = f" in each of {summary.cells} runs" if summary.cells > 1 else ""
    return f"from {seen}{runs}"


def _aggregate(header: Header) -> str:
    """`secure sum`, `sum`, `mean`, `median`, or nothing where the server sees each update by itself."""
    named = str(protocol(header).get("aggregation") or "").lower()
    # without a named aggregation the threat model's sentence is all there is
    text = named or header.threat.server_sees.lower()
    if "secure" in named or (not named and "only the secure sum" in text):
        return "secure sum"
    return next((kind for kind in ("median", "mean", "sum") if kind in named), "")


def _clients(log: AuditLog, summary: AttackSummary) -> int:
    """Clients in one round: as the spec says, else as many as own examples in this attack's cells."""
    stated = _whole(protocol(log.header).get("clients"))
    if stated:
        return stated
    cells = log.cells_of(summary.attack, done=True)
    return max((len({e.client for e in c.examples}) for c in cells), default=1) or 1


def _whole(value: object) -> int | None:
    if isinstance(value, list | tuple):
        value = len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
