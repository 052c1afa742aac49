"""For whom a leak is bad: which clients, which classes and which examples lose most, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seepage.record import AttackSummary, AuditLog, Cell, Example
from seepage.report.words import NOUNS, class_name, join, percent, plural, share

_NAMED = 3


def whom(log: AuditLog, summary: AttackSummary) -> tuple[str, ...]:
    """From the examples of the attack that the verdict names; nothing where none has a truth beside it."""
    cells = log.cells_of(summary.attack, done=True)
    examples = [example for cell in cells for example in cell.examples]
    if not examples:
        return ()
    hit = [example for example in examples if _taken(example)]
    if not hit:
        return _nearest(log, cells)
    said = [_everybody(log, hit, examples)]
    if len({(cell.seed, e.client) for cell in cells for e in cell.examples}) > len(cells):
        said.append(_clients(cells))
    classes = _by(examples, lambda example: class_name(log.header, example.label))
    if len(classes) > 1:
        said.append(_groups("class", "classes", classes))
    return tuple(one for one in said if one)


def _taken(example: Example) -> bool:
    return example.scores.get("exact") == 1.0


def _everybody(log: AuditLog, hit: Sequence[Example], examples: Sequence[Example]) -> str:
    noun = NOUNS[log.header.input.modality][1]
    if len(hit) == len(examples):
        return f"Everybody whose data was in these updates: all {len(examples)} {noun} came out exactly."
    part = percent(len(hit) / len(examples))
    return f"The people behind {share(log.header, len(hit), len(examples))} ({part}), which came out exactly."


def _clients(cells: Sequence[Cell]) -> str:
    counted: dict[int, list[int]] = {}
    for cell in cells:
        for example in cell.examples:
            own = counted.setdefault(example.client, [0, 0])
            own[0] += _taken(example)
            own[1] += 1
    return _groups("client", "clients", {f"client {name}": (a, b) for name, (a, b) in counted.items()})


def _by(examples: Sequence[Example], name: Callable[[Example], str]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for example in examples:
        exact, all_ = found.get(name(example), (0, 0))
        found[name(example)] = exact + _taken(example), all_ + 1
    return found


def _groups(one: str, several: str, counted: dict[str, tuple[int, int]]) -> str:
    """Those that lose most by name, and how many lose nothing.

    >>> _groups("client", "clients", {"client 0": (3, 4), "client 1": (0, 4)})
    'Of the 2 clients, client 0 (3 of 4) loses most; 1 loses nothing.'
    >>> _groups("class", "classes", {"a": (4, 4), "b": (2, 2)})
    'Every one of the 2 classes loses all that it had in these updates.'
    """
    shares = {exact / there for exact, there in counted.values()}
    if shares == {1.0}:
        return f"Every one of the {len(counted)} {several} loses all that it had in these updates."
    ordered = sorted(counted.items(), key=lambda item: (-item[1][0] / item[1][1], -item[1][0]))
    most = [f"{name} ({exact} of {there})" for name, (exact, there) in ordered[:_NAMED] if exact]
    spared = sum(exact == 0 for exact, _ in counted.values())
    end = f"; {plural(spared, 'loses', 'lose')} nothing" if spared else ""
    verb = "loses" if len(most) == 1 else "lose"
    return f"Of the {len(counted)} {several}, {join(most)} {verb} most{end}."


def _nearest(log: AuditLog, cells: Sequence[Cell]) -> tuple[str, ...]:
    """No exact copy, but a leak: those that came out best are named by the section of the attack."""
    noun, clients = NOUNS[log.header.input.modality][1], {e.client for c in cells for e in c.examples}
    said = f"No exact copy came out. How near each of the {noun} was is in the section of the attack"
    return (f"{said}, client by client." if len(clients) > 1 else f"{said}.",)
