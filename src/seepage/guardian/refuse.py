"""A defense that looks at a received model before it trains on it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress

from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Defense, Finding, InputSpec, LocalStep, Update, Verdict
from seepage.defenses import Deployment
from seepage.guardian.check import GuardReport, guard
from seepage.guardian.detectors.loss_jump import loss_jump
from seepage.guardian.detectors.rare_neurons import LEAST_EXAMPLES, rare_neurons
from seepage.guardian.detectors.step_history import MOST_ROUNDS


def refuse_traps(*, spec: InputSpec | None = None, strict: bool = True) -> Defense:
    """Client: train only on models that the guard calls clean. Heuristic: honest models leak too.

    A model that could not be checked is refused as well: a client that cannot look has no reason to trust.

    The models of the last rounds are kept, to compare the next one with. The private batch is not touched
    before the verdict on weights, behaviour and steps; after it the losses on the batch are compared, and it
    is looked at which neurons fire for few examples of it, for which the models are only evaluated.
    spec: with it the model is also run on noise, and neurons on the batch are looked at.
    strict: refuse suspicious models as well; `GuardReport.false_alarms` says how often that is wrong. Without
    it only what has the exact structure of a known attack is refused.
    """
    accepted = frozenset({Verdict.CLEAN} if strict else {Verdict.CLEAN, Verdict.SUSPICIOUS})
    kept: dict[int, nn.Module] = {}
    looked_at = _LastLook(spec)

    def refuse(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        number = broadcast.round
        # By round: several clients of one audit share this defense, and an audit may start anew at round 0.
        history = [kept[r] for r in sorted(kept) if r < number]
        report, new = looked_at.report(broadcast.model, history)
        if report.verdict is Verdict.NOT_CHECKED:
            raise NotApplicable(
                f"refused to train in round {number}: the received model could not be checked "
                f"({report.evidence}); store its layers as torch does, or train without refuse_traps."
            )
        if report.verdict not in accepted:
            raise NotApplicable(_refusal(number, report.evidence))
        for finding in _on_private(broadcast, batch, history, spec):
            if finding.verdict not in accepted:
                raise NotApplicable(_refusal(number, finding.evidence))
        if new or number not in kept:
            for old in [r for r in kept if r >= number or r < number - MOST_ROUNDS]:
                del kept[old]
            kept[number] = copy.deepcopy(broadcast.model)
        return next_step(broadcast, batch)

    return refuse


def _on_private(
    broadcast: Broadcast, batch: Batch, history: Sequence[nn.Module], spec: InputSpec | None
) -> Iterator[Finding]:
    """What the client's own batch shows; in the first rounds, and with few examples, nothing."""
    enough = len(batch) >= LEAST_EXAMPLES
    checks = [loss_jump(history=history, batch=batch)]
    checks += [rare_neurons(spec=spec, sample=batch.inputs)] if enough else []
    for check in checks:
        with suppress(NotApplicable):
            yield check(broadcast)


class _LastLook:
    """The guard's report, kept while the same model comes again: all clients of a round receive one model."""

    def __init__(self, spec: InputSpec | None) -> None:
        self.spec = spec
        self._seen: tuple[object, ...] = ()
        self._report: GuardReport | None = None

    def report(self, model: nn.Module, history: Sequence[nn.Module]) -> tuple[GuardReport, bool]:
        """The report, and whether it is a new one."""
        # In-place changes raise a tensor's version.
        tensors = [*model.parameters(), *model.buffers()]
        seen = (model, *((id(t), t._version) for t in tensors), *history)
        same = len(seen) == len(self._seen) and all(
            a is b or (isinstance(a, tuple) and a == b) for a, b in zip(seen, self._seen, strict=True)
        )
        if self._report is not None and same:
            return self._report, False
        self._report, self._seen = guard(model, spec=self.spec, history=history), seen
        return self._report, True


def _refusal(number: int, evidence: str) -> str:
    return (
        f"refused to train in round {number}: the received model is a likely trap ({evidence}); ask the "
        "server for another model or leave the federation."
    )


def refuse_in_audit(*, strict: bool = True, deployment: Deployment | None = None) -> Defense:
    """`refuse_traps` with the inputs that the audit knows."""
    return refuse_traps(spec=None if deployment is None else deployment.input, strict=strict)
