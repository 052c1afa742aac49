"""What `check_detector` lets through, and the sentence for each thing that it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Detector, Finding, Verdict
from seepage.testing import CheckFailed, check_detector


@pytest.mark.parametrize(
    ("name", "traps"),
    [("trap_rows", ["trap_weights"]), ("row_balance", ["trap_weights"]), ("round_jump", [])],
)
def test_detectors_of_seepage_pass(name: str, traps: list[str]) -> None:
    check_detector(name, traps=traps)


def says(verdict: Verdict, score: float = 0.0, evidence: str = "nothing") -> Detector:
    def detector(broadcast: Broadcast) -> Finding:
        return Finding(verdict=verdict, evidence=evidence, score=score)

    return detector


def trains(broadcast: Broadcast) -> Finding:
    with torch.no_grad():
        next(broadcast.model.parameters()).add_(1.0)
    return says(Verdict.CLEAN)(broadcast)


def cannot(broadcast: Broadcast) -> Finding:
    raise NotApplicable("it has no layer.")


NUMBERS = iter(range(1000))


def wavers(broadcast: Broadcast) -> Finding:
    return says((Verdict.CLEAN, Verdict.SUSPICIOUS)[next(NUMBERS) % 2])(broadcast)


def counts(broadcast: Broadcast) -> Finding:
    """Looks at something else each time, and comes to the same verdict."""
    return says(Verdict.CLEAN, next(NUMBERS))(broadcast)


def test_a_detector_may_look_at_other_rows_each_time() -> None:
    check_detector(counts)


def untyped(*, previous=None):  # type: ignore[no-untyped-def]
    return says(Verdict.CLEAN)


BAD: list[tuple[Any, tuple[str, ...], str]] = [
    (says(Verdict.TRAP), (), "accuses a freshly initialised mlp .* raise its threshold"),
    (says(Verdict.CLEAN), ("trap_weights",), "does not find trap_weights, which it is said to know"),
    (says(Verdict.CLEAN), ("tag",), "crafts no model"),
    (wavers, (), "another verdict the second time"),
    (says(Verdict.CLEAN, float("inf")), (), "no finite number"),
    (says(Verdict.CLEAN, evidence=""), (), "gives no evidence"),
    (trains, (), "changes the model"),
    (cannot, (), "could look at none of the models"),
    (lambda broadcast: None, (), "returns a NoneType: return a Finding"),
    (untyped, (), "the setting 'previous' of the detector has no type"),
    ("trap_row", (), "did you mean 'trap_rows'"),
    (3, (), "is no detector"),
]


@pytest.mark.parametrize(("detector", "traps", "said"), BAD, ids=[said[:30] for *_, said in BAD])
def test_what_is_wrong_is_one_sentence(detector: Any, traps: tuple[str, ...], said: str) -> None:
    with pytest.raises(CheckFailed, match=said) as failure:
        check_detector(detector, traps=traps)
    assert "\n" not in str(failure.value)
