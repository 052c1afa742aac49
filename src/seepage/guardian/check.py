"""`guard`: every detector that can be run, one verdict, and what the verdict does not mean.

No alarm is called clean only where every layer could be looked at; otherwise the model was not checked.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from seepage.core.errors import DataError, ModelError, NotApplicable
from seepage.core.registry import wants
from seepage.core.types import Batch, Broadcast, Detector, Finding, InputSpec, Verdict
from seepage.guardian.detectors import DETECTORS
from seepage.guardian.detectors.coverage import Coverage, coverage
from seepage.guardian.detectors.layers import read_once
from seepage.guardian.false_alarms import FalseAlarms

CAVEAT = (
    "A clean verdict does not mean that training on this model is private. Honest weights leak too: single "
    "examples can be read from the gradients of an untouched model (Boenisch et al. 2021, Section 5), and an "
    "attacker who knows these checks can stay below their thresholds (Section 10.1). It means only that none "
    "of the known signs was found. What your own update gives away is measured by the gate (`seepage gate`)."
)

_ORDER = (Verdict.CLEAN, Verdict.SUSPICIOUS, Verdict.TRAP)


@dataclass(frozen=True, kw_only=True)
class GuardReport:
    """What the guard says about one received model."""

    verdict: Verdict
    layer: str | None
    evidence: str
    score: float | None
    """Of the detector that decided; None where none could be run."""
    detector: str | None
    false_alarms: FalseAlarms
    """How often these checks were not silent on honest models that had no part in the calibration."""
    findings: Mapping[str, Finding]
    unchecked: Mapping[str, str]
    """Detectors that could not be run, with the reason."""
    seconds: float
    layers: Coverage = field(default_factory=Coverage)
    """Which layers were looked at, and which were not."""
    caveat: str = CAVEAT

    def text(self) -> str:
        """For people."""
        words = self.verdict.value.replace("_", " ")
        lines = [f"Verdict: {words}" + (f" (layer '{self.layer}')" if self.layer else "")]
        lines.append(f"Evidence: {self.evidence}.")
        if self.detector is not None:
            lines.append(
                f"Check '{self.detector}': {self.score:.3g}. These checks were not silent on "
                f"{self.false_alarms.text()}."
            )
        lines += [f"Also: {f.evidence} ({n}: {f.verdict.value})." for n, f in self._others()]
        lines.append(f"Layers looked at: {_few(self.layers.read) or 'none'}.")
        lines += [f"Layer not checked: '{n}' {why}." for n, why in self.layers.unread.items()]
        if self.layers.left_out:
            lines.append(f"No check is about: {_few([f'{n} {w}' for n, w in self.layers.left_out.items()])}.")
        for reason in dict.fromkeys(self.unchecked.values()):
            names = [name for name, why in self.unchecked.items() if why == reason]
            lines.append(f"Not checked: {', '.join(names)}: {reason}")
        return "\n".join([*lines, self.caveat])

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "verdict": self.verdict.value,
            "layer": self.layer,
            "evidence": self.evidence,
            "detector": self.detector,
            "score": self.score,
            "false_alarms": self.false_alarms.to_dict(),
            "seconds": round(self.seconds, 3),
            "findings": {
                n: {"verdict": f.verdict.value, "score": f.score, "layer": f.layer, "evidence": f.evidence}
                for n, f in self.findings.items()
            },
            "not_checked": dict(self.unchecked),
            "layers_checked": list(self.layers.read),
            "layers_not_checked": {**self.layers.unread, **self.layers.left_out},
            "caveat": self.caveat,
        }

    def _others(self) -> list[tuple[str, Finding]]:
        return [
            (name, finding)
            for name, finding in self.findings.items()
            if finding.verdict is not Verdict.CLEAN and name != self.detector
        ]


def _check_model(model: object) -> None:
    """A module with values; None for an earlier one that is not there."""
    if model is None:
        return
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"the guard looks at a torch module, not at a {type(model).__name__}: load the weights into one, "
            "or give a file to guard_file or 'seepage guard'."
        )
    if any(p.is_meta for p in model.parameters()):
        raise ModelError("the model is on the meta device and holds no values: load its weights first.")


def _check_sample(sample: object) -> None:
    """Of a sample that is empty or not finite every detector is silent, which would look clean."""
    values = sample.inputs if isinstance(sample, Batch) else sample
    if values is None:
        return
    if not isinstance(values, Tensor):
        raise DataError(f"the sample must be a tensor or a Batch, not a {type(values).__name__}.")
    if not values.numel():
        raise DataError("the sample is empty: give examples, best 32 or more, or leave it out.")
    if values.is_floating_point() and not bool(values.isfinite().all()):
        raise DataError("the sample holds NaN or infinite values: give examples as the model is fed them.")


def guard(
    model: nn.Module,
    *,
    previous: nn.Module | None = None,
    history: Sequence[nn.Module] = (),
    sample: Tensor | Batch | None = None,
    spec: InputSpec | None = None,
    detectors: Sequence[str | Callable[..., Any]] = (),
) -> GuardReport:
    """Is this model a trap? Looks at the weights; with `spec` also at behaviour on harmless inputs.

    previous: the model of an earlier round, or any version that is known to be honest.
    history: models of earlier rounds, the oldest first; the last is taken for `previous` where none is given.
    sample: examples as the model is fed them, noise is used without; 32 or more, best the client's own, show
        neurons that fire for few of them. A Batch with labels is also what losses are compared on, given a
        history. Nothing of it leaves the guard.
    spec: shape and value range of the inputs.
    detectors: more checks beside our own, which the false-alarm rate does not count: a name that a package
        offers, "package.module:thing", a function of a broadcast, or one that builds such a function from
        those of spec, sample, batch, previous and history that it has parameters for.

    >>> import torch
    >>> honest = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> guard(honest).verdict
    <Verdict.CLEAN: 'clean'>
    >>> with torch.no_grad():
    ...     _ = honest[1].weight.copy_(torch.eye(64).repeat(2, 1)[:100])
    >>> guard(honest).layer
    '1'
    """
    started = time.perf_counter()
    if model is None:
        raise ModelError("the guard was given no model.")
    for one in (model, previous, *history):
        _check_model(one)
    _check_sample(sample)
    given = {
        "spec": spec,
        "sample": sample.inputs if isinstance(sample, Batch) else sample,
        "batch": sample if isinstance(sample, Batch) else None,
        "previous": history[-1] if previous is None and history else previous,
        "history": history,
    }
    wanted = {**DETECTORS, **dict(_named(one) for one in detectors)}
    findings: dict[str, Finding] = {}
    unchecked: dict[str, str] = {}
    with read_once():
        for name, build in wanted.items():
            try:
                findings[name] = built_detector(build, given)(Broadcast(model))
            except NotApplicable as reason:
                unchecked[name] = str(reason)
        seen = coverage(model)
    return _combine(findings, unchecked, seen, time.perf_counter() - started)


def _named(detector: str | Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    if isinstance(detector, str):
        return detector, DETECTORS.find(detector)
    return getattr(detector, "__name__", type(detector).__name__), detector


def built_detector(build: Callable[..., Any], given: Mapping[str, Any]) -> Detector:
    """What takes a broadcast is the detector itself; anything else builds it from what it can take."""
    if wants(build):
        return build
    taken = inspect.signature(build).parameters
    detector: Detector = build(**{name: value for name, value in given.items() if name in taken})
    return detector


def _combine(
    findings: dict[str, Finding], unchecked: dict[str, str], seen: Coverage, seconds: float
) -> GuardReport:
    alarms = {n: f for n, f in findings.items() if f.verdict is not Verdict.CLEAN}
    # The detectors are listed from the most telling sign to the least: the first worst one decides.
    name = max(alarms, key=lambda n: _ORDER.index(alarms[n].verdict), default=None)
    if name is not None:
        decided = alarms[name]
        verdict, layer, evidence, score = decided.verdict, decided.layer, decided.evidence, decided.score
    elif seen.enough:
        verdict, layer, score = Verdict.CLEAN, None, None
        evidence = f"none of {len(findings)} checks found a known sign"
    else:
        verdict, layer, score = Verdict.NOT_CHECKED, None, None
        evidence = f"{seen.gap}, so this is no statement about the model"
    return GuardReport(
        verdict=verdict,
        layer=layer,
        evidence=evidence,
        score=score,
        detector=name,
        false_alarms=FalseAlarms.of(findings),
        findings=findings,
        unchecked=unchecked,
        seconds=seconds,
        layers=seen,
    )


def _few(names: Sequence[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
