"""What a run is going to try, and what it leaves out and why: before it starts, and in the report."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.record import BASELINE, Header, NotTried, RunHeader
from seepage.report.gaps import not_tried
from seepage.report.words import duration, join, plural, sentence, unit


def plan_text(run: RunHeader) -> str:
    """Before the first cell: what runs and, as far as it is known, how long; of an audit also what does not.

    The names of what is left out, by kind of reason; the reasons themselves stand in the summary.
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
    """Sentences for the attacks of the catalogue that were not tried, those with the same reason together.

    >>> from seepage.report.plan import _grouped
    >>> from seepage.record import NotTried
    >>> _grouped([NotTried(name=n, why="over_budget", reason="no time was left.") for n in ("tag", "idlg")])
    ['Not tried: tag and idlg. No time was left.']
    """
    denied = [one.name for one in header.not_tried if one.why == "not_granted"]
    others = [one for one in header.not_tried if one.why != "not_granted"]
    said = _grouped([one for one in others if one.why != "does_not_fit"])
    said += _grouped([one for one in others if one.why == "does_not_fit"])
    if denied:
        verb = "needs" if len(denied) == 1 else "need"
        said.append(
            f"Not tried: {join(denied)}, which {verb} what the threat model '{header.threat.name}' does not "
            "grant."
        )
    return said


def _grouped(found: list[NotTried]) -> list[str]:
    return [f"Not tried: {join(names)}. {sentence(reason)}" for reason, names in by_reason(found).items()]


def by_reason(found: Sequence[NotTried]) -> dict[str, list[str]]:
    """The names of attacks that were not tried, those with the same reason together."""
    names: dict[str, list[str]] = {}
    for one in found:
        names.setdefault(one.reason, []).append(one.name)
    return names
