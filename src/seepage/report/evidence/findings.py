"""What every format says: the verdict, the gate, and one finding for each attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seepage.engine.gate import Ruling, rule
from seepage.record import BASELINE, AttackSummary, AuditLog, summarise
from seepage.report.judgement import AuditVerdict, Level, judged, verdict
from seepage.report.words import sentence

State = Literal["leak", "not_shown", "not_measured", "not_applicable"]


@dataclass(frozen=True)
class AttackFinding:
    """What one attack has shown."""

    summary: AttackSummary
    state: State
    level: Level
    text: str
    """One sentence or two, for a reader who sees nothing else."""
    in_part: str = ""
    """What leaked where no example itself did: labels, words, features of a layer."""

    @property
    def title(self) -> str:
        return self.summary.attack.title


@dataclass(frozen=True)
class Evidence:
    """One audit, judged once for all formats."""

    log: AuditLog
    verdict: AuditVerdict
    ruling: Ruling
    findings: tuple[AttackFinding, ...]
    guess: AttackSummary | None
    about: str = ""

    @classmethod
    def of(cls, log: AuditLog, *, about: str = "") -> Evidence:
        summaries = summarise(log)
        return cls(
            log,
            verdict(log, summaries),
            rule(log, log.header.spec.get("fail_on") or {}),
            tuple(_finding(log, one, summaries) for one in summaries if one.attack.name != BASELINE),
            next((one for one in summaries if one.attack.name == BASELINE), None),
            about,
        )

    @property
    def in_part(self) -> str:
        """What leaked where no attack shows that examples do; empty where one does, or nothing leaked."""
        leaks = [one.in_part for one in self.findings if one.state == "leak"]
        return "" if "" in leaks else "; ".join(dict.fromkeys(leaks))

    @property
    def gated(self) -> bool:
        return bool(self.log.header.spec.get("fail_on"))


def _finding(log: AuditLog, summary: AttackSummary, summaries: list[AttackSummary]) -> AttackFinding:
    if not summary.cells:
        state: State = "not_applicable" if summary.status == "not_applicable" else "not_measured"
        return AttackFinding(summary, state, "unknown", sentence(summary.reason))
    if summary.claims_right is None:
        said = f"{summary.claimed_examples} examples are claimed. There was no truth to check them against."
        return AttackFinding(summary, "not_measured", "claimed", said)
    level, text, in_part = judged(log, summary, summaries)
    if summary.status == "partial":
        text = f"{text} {sentence(summary.reason)}"
    if level == "unknown":
        return AttackFinding(summary, "not_measured", level, text)
    if level == "none_shown":
        # a run that finished only in part has not shown that the rest of it shows nothing
        state = "not_measured" if summary.status == "partial" else "not_shown"
        return AttackFinding(summary, state, level, text)
    return AttackFinding(summary, "leak", level, text, in_part)
