"""What one attack got in one run, whether it knew of defenses or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from seepage.core.types import INPUT_SPACE
from seepage.record import ADAPTIVE, BASELINE, AttackRef, AuditLog
from seepage.report.study.leakage import Leak, leak
from seepage.report.words import sentence

Status = Literal["measured", "cannot work", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One attack in one run: of several settings, and of the attack with and without knowledge of the
    defenses, the one that got most."""

    status: Status
    leak: Leak | None = None
    reason: str = ""

    @property
    def title(self) -> str:
        """What it was called in that run."""
        if self.leak is None:
            return ""
        known = ", knowing the defense" if self.leak.attack.name == ADAPTIVE else ""
        return f"{self.leak.attack.plain.title}{known}"


def sides(log: AuditLog) -> dict[str, Side]:
    """By name of the attack, in the order of the log; those that were left out come last."""
    refs: dict[str, list[AttackRef]] = {}
    for ref in log.header.attacks:
        if ref.name != BASELINE:
            refs.setdefault(ref.plain.name, []).append(ref)
    found = {name: _side(log, several) for name, several in refs.items()}
    for one in log.header.not_tried:
        cannot = one.why in {"does_not_fit", "not_granted"}
        status: Status = "cannot work" if cannot else "not measured"
        found.setdefault(one.name, Side(status=status, reason=sentence(one.reason)))
    return found


def _side(log: AuditLog, refs: list[AttackRef]) -> Side:
    planned = len(log.header.seeds)
    leaks = [leak(ref, log.cells_of(ref), planned) for ref in refs]
    measured = [one for one in leaks if one.leakage is not None]
    unfinished = [one for one in leaks if one.status not in {"done", "not_applicable"}]
    most = max(measured, key=_amount, default=None)
    if unfinished:
        return Side(status="not measured", leak=most, reason=sentence(unfinished[0].reason))
    if most is None:
        return Side(status="cannot work", reason=sentence(leaks[0].reason))
    return Side(status="measured", leak=most)


def _amount(one: Leak) -> tuple[bool, float, float]:
    """Inputs before features of a layer, then by what was taken of them."""
    assert one.leakage is not None
    return one.space == INPUT_SPACE, one.leakage.value, 0.0 if one.exact is None else one.exact.value


def worst(found: Mapping[str, Side], spaces: frozenset[str]) -> Leak | None:
    """The attack that got most in a run, finished or not. spaces: those that count."""
    leaks = [one.leak for one in found.values() if one.leak is not None and one.leak.leakage is not None]
    return max((one for one in leaks if one.space in spaces), key=_amount, default=None)


def counted(runs: Iterable[Mapping[str, Side]]) -> frozenset[str]:
    """Features are not inputs: where some attack of some run rebuilds inputs, only those are compared."""
    found = {one.leak.space for run in runs for one in run.values() if one.leak is not None}
    return frozenset({INPUT_SPACE}) if INPUT_SPACE in found else frozenset(found)
