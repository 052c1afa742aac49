"""What a run is going to try, and what it leaves out and why: before it starts, and in the report."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.record import BASELINE, Header, NotTried, RunHeader
from seepage.report.gaps import WOULD_FIT, not_tried
from seepage.report.words import duration, join, plural, sentence, unit


def plan_text(run: RunHeader) -> str:
    """Before the first cell: what runs and, as far as it is known, how long; of an audit also what does not.

    Of what is left out the names of those that fit; the reasons stand in the summary and on the page.
    """
    if run.kind != "audit":
        return _points_text(run)
    header = run.points[0]
    attacks = [ref for ref in header.attacks if ref.name != BASELINE]
    each = unit(header)
    beside = ", beside the baseline" if len(attacks) < len(header.attacks) else ""
    lines = [f"{plural(len(attacks), 'attack')} on {plural(len(header.seeds), each)}{beside}:"]
    for ref in attacks:
        seconds = header.expected_seconds.get(ref.key)
        lines.append(
            f"  {ref.title}"
            + ("" if seconds is None else f": about {duration(seconds)} a{'n' * (each[0] == 'e')} {each}")
        )
    return "\n".join([*lines, *not_tried(header.not_tried)])


def _points_text(run: RunHeader) -> str:
    """Of a study or a table."""
    trainings = sum(len(point.training_seeds) for point in run.points)
    parts = [plural(run.cells - trainings, "attacked batch", "attacked batches")]
    if trainings:
        parts.append(plural(trainings, "training"))
    return f"{plural(run.cells, 'cell')} at {plural(len(run.points), 'point')}: {join(parts)}."


def left_out(header: Header) -> list[str]:
    """What was not tried: attacks that fit, with what would try them. Those that cannot work are counted; the
    page has their reasons.

    >>> from seepage.report.plan import _grouped
    >>> from seepage.record import NotTried
    >>> _grouped([NotTried(name=n, why="over_budget", reason="no time was left.") for n in ("tag", "idlg")])
    ['Not tried: tag and idlg. No time was left.']
    """
    fit = [one for one in header.not_tried if one.why in WOULD_FIT]
    others = [one for one in header.not_tried if one.why not in WOULD_FIT]
    said = _grouped(fit)
    if others:
        said.append(
            " ".join([*not_tried(others), "The page names each with its reason.", *_dishonest(header)])
        )
    return said


def _dishonest(header: Header) -> list[str]:
    """How to try what a dishonest server could do, where the threat model has an honest one."""
    if "craft_weights" in header.threat.grants or all(o.why != "not_granted" for o in header.not_tried):
        return []
    alone = "individual_updates" in header.threat.grants
    name = "malicious_server" if alone else "malicious_server_secure_aggregation"
    return [f'threat = "{name}" tries those of a dishonest server.']


def _grouped(found: Sequence[NotTried]) -> list[str]:
    return [f"Not tried: {join(names)}. {sentence(reason)}" for reason, names in by_reason(found).items()]


def by_reason(found: Sequence[NotTried]) -> dict[str, list[str]]:
    """The names of attacks that were not tried, those with the same reason together, those that fit first."""
    names: dict[str, list[str]] = {}
    for one in sorted(found, key=lambda one: one.why not in WOULD_FIT):
        names.setdefault(one.reason, []).append(one.name)
    return names
