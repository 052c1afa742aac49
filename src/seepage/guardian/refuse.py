"""A defense that looks at a received model before it trains on it."""

from __future__ import annotations

from seepage.defenses import DEFENSES, DefenseEntry
from seepage.errors import NotApplicable
from seepage.guardian.check import guard
from seepage.types import Batch, Broadcast, Defense, InputSpec, LocalStep, Update, Verdict


def refuse_traps(*, spec: InputSpec | None = None, strict: bool = False) -> Defense:
    """Client: train only on models that the guard does not call a trap. Heuristic: honest models leak too.

    The private batch is not touched before the verdict.
    spec: with it the model is also run on noise.
    strict: refuse suspicious models as well; `GuardReport.false_alarm_rate` says how often that is wrong.
    """
    accepted = frozenset({Verdict.CLEAN} if strict else {Verdict.CLEAN, Verdict.SUSPICIOUS})

    def refuse(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        report = guard(broadcast.model, spec=spec)
        if report.verdict not in accepted:
            raise NotApplicable(
                f"refused to train in round {broadcast.round}: the received model is a likely trap "
                f"({report.evidence}); ask the server for another model or leave the federation."
            )
        return next_step(broadcast, batch)

    return refuse


def _by_weights_alone(*, strict: bool = False) -> Defense:
    return refuse_traps(strict=strict)


ALL_DEFENSES: dict[str, DefenseEntry] = {
    **DEFENSES,
    "refuse_traps": DefenseEntry(
        build=_by_weights_alone,
        description="refuses to train on a received model that the guard calls a trap",
        runs_at="client",
        trusts="nobody",
        guarantee="heuristic",
        adaptive="hides the trap better, or does without: honest weights leak too",
    ),
}
"""Every defense an audit can name: those of `seepage.defenses`, and this one, which needs the guard."""
