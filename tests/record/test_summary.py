"""Summaries of cells made by hand, with the figures worked out beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from seepage.record import (
    AttackRef,
    AuditLog,
    Cell,
    Cost,
    Estimate,
    Example,
    Header,
    InputRecord,
    RunFolder,
    ThreatRecord,
)
from seepage.record import summarise as summarise_log

BASE, ATTACK = AttackRef(name="prior_only"), AttackRef(name="attack", params={"steps": 3})
OTHER = AttackRef(name="attack", params={"steps": 4})


def log_of(*cells: Cell, seeds: tuple[int, ...] = (0, 1)) -> AuditLog:
    header = Header(
        title="t",
        created="now",
        spec={},
        run_key="",
        seeds=seeds,
        attacks=(BASE, ATTACK, OTHER),
        threat=ThreatRecord(name="t", description="d", grants=(), server_sees="all"),
        input=InputRecord(modality="image", shape=(1, 2, 2), num_classes=2),
        model_name="m",
        model_parameters=1,
        data_name="d",
        data_source="s",
        data_examples=1,
        exact_tolerance=1e-3,
        device="cpu",
        packages={},
        python="3",
    )
    return AuditLog(RunFolder(Path("nowhere")), header, cells)


def example(i: int, exact: float, psnr: float, guess: float) -> Example:
    return Example(
        index=i,
        client=0,
        label=0,
        recovered=True,
        scores={"exact": exact, "psnr": psnr},
        baseline={"exact": 0.0, "psnr": guess},
    )


def done(seed: int, examples: list[Example], attack: AttackRef = ATTACK, **more: Any) -> Cell:
    return Cell(attack=attack, seed=seed, status="done", examples=tuple(examples), **more)


def summary_of(log: AuditLog, attack: AttackRef) -> Any:
    return next(s for s in summarise_log(log) if s.attack == attack)


def test_counts_claims_costs_and_means_by_hand() -> None:
    first = done(
        0,
        [example(0, 1.0, 100.0, 10.0), example(1, 0.0, 20.0, 12.0), example(2, 1.0, 90.0, 14.0)],
        batch_scores={"extraction_recall": 0.5},
        claims=4,
        claims_right=3,
        claimed_examples=2,
        space="fc",
        knowledge=("k",),
        notes=("n1", "n2"),
        cost=Cost(seconds=1.0, rounds=1, peak_memory_mb=5.0),
    )
    second = done(
        1,
        [example(0, 0.0, 30.0, 16.0)],
        batch_scores={"extraction_recall": 1.0},
        claims=1,
        notes=("n2", "n3"),
        cost=Cost(seconds=3.0, rounds=4, peak_memory_mb=2.0),
    )
    stranger = done(0, [example(0, 1.0, 99.0, 1.0)], OTHER, claims=50)
    summary = summary_of(log_of(first, stranger, second), ATTACK)
    assert (summary.status, summary.reason) == ("done", "")
    assert (summary.cells, summary.examples, summary.exact) == (2, 4, 2)
    assert (summary.claims, summary.claims_right, summary.claimed_examples) == (5, 3, 2)
    assert summary.space == "fc"
    assert set(summary.scores) == {"exact", "psnr", "extraction_recall"}
    assert summary.scores["exact"].value == pytest.approx(2 / 4)
    assert summary.scores["psnr"].value == pytest.approx((100 + 20 + 90 + 30) / 4)
    assert (summary.scores["psnr"].n, summary.scores["psnr"].batches) == (4, 2)
    assert summary.scores["extraction_recall"].value == pytest.approx(0.75)
    recall = summary.scores["extraction_recall"]
    assert (recall.n, recall.batches) == (2, 2)  # half of three examples is no count: one value a batch
    assert set(summary.baseline) == {"exact", "psnr"}
    assert summary.baseline["psnr"].value == pytest.approx((10 + 12 + 14 + 16) / 4)
    assert (summary.seconds, summary.rounds, summary.peak_memory_mb) == (2.0, 4, 5.0)
    assert summary.knowledge == ("k",)
    assert summary.notes == ("n1", "n2", "n3")


@pytest.mark.parametrize(
    ("claims", "right", "different"),
    [(1, 2, 1), (3, 1, 2), (3, 3, 3)],  # more right than made, more examples than claims, more than came out
)
def test_claims_that_contradict_what_came_out_are_no_record(claims: int, right: int, different: int) -> None:
    examples = [example(0, 1.0, 100.0, 10.0), example(1, 1.0, 90.0, 12.0), example(2, 0.0, 20.0, 14.0)]
    counts = {"claims": claims, "claims_right": right, "claimed_examples": different}
    with pytest.raises(ValidationError, match="contradict each other"):
        done(0, examples, **counts)
    assert done(0, examples, claims=3, claims_right=3, claimed_examples=2).claimed_examples == 2


def test_nearly_exact_does_not_count_as_exact() -> None:
    summary = summary_of(log_of(done(0, [example(0, 0.999, 60.0, 1.0)])), ATTACK)
    assert summary.exact == 0


def refused(seed: int, status: str, reason: str) -> Cell:
    return Cell(attack=ATTACK, seed=seed, status=status, reason=reason)


GOOD = done(0, [example(0, 1.0, 50.0, 1.0)], claims=1, claims_right=1)


@pytest.mark.parametrize(
    ("cells", "status", "reason", "counted"),
    [
        ([], "not_run", "this attack has not been run yet", 0),
        ([GOOD], "partial", "1 of 2 runs are still missing", 1),
        ([GOOD, refused(1, "failed", "why.")], "partial", "1 of 2 runs did not finish: why.", 1),
        ([refused(0, "not_applicable", "a."), refused(1, "not_applicable", "b.")], "not_applicable", "a.", 0),
        ([refused(0, "failed", "a.")], "failed", "a.", 0),
        ([GOOD, done(1, [])], "done", "", 2),
    ],
)
def test_status(cells, status, reason, counted) -> None:
    summary = summary_of(log_of(*cells), ATTACK)
    assert (summary.status, summary.reason, summary.cells) == (status, reason, counted)
    assert summary.exact == (1 if GOOD in cells else 0)
    assert bool(summary.scores) == (GOOD in cells)


def test_the_order_is_that_of_the_log() -> None:
    assert [s.attack for s in summarise_log(log_of())] == [BASE, ATTACK, OTHER]


def test_a_metric_that_some_examples_lack_is_averaged_over_the_others() -> None:
    bare = Example(index=1, client=0, label=0, recovered=False, scores={"lpips": 0.5})
    summary = summary_of(log_of(done(0, [example(0, 1.0, 40.0, 2.0), bare])), ATTACK)
    assert (summary.scores["psnr"].value, summary.scores["psnr"].n) == (40.0, 1)
    assert (summary.scores["lpips"].value, summary.scores["lpips"].n) == (0.5, 1)
    assert summary.baseline["psnr"].value == 2.0
    assert (summary.examples, summary.exact) == (2, 1)


def test_scores_that_count_the_examples_of_a_batch_are_counts() -> None:
    batch = [example(i, 0.0, 20.0, 10.0) for i in range(10)]
    cells = [
        done(seed, batch, batch_scores={"label_accuracy": 1.0, "active_neurons": 1.0}) for seed in (0, 1)
    ]
    summary = summary_of(log_of(*cells), ATTACK)
    assert summary.scores["label_accuracy"] == Estimate.of_counts([(10, 10), (10, 10)])
    assert summary.scores["active_neurons"] == Estimate.of_counts([(1, 1), (1, 1)])  # not of the examples
    some = [done(seed, batch, batch_scores={"label_accuracy": value}) for seed, value in ((0, 0.7), (1, 0.9))]
    labels = summary_of(log_of(*some), ATTACK).scores["label_accuracy"]
    assert labels == Estimate.of_counts([(7, 10), (9, 10)]) and labels.value == pytest.approx(0.8)


def test_bounds_stay_where_values_can_be() -> None:
    batches = [
        [example(0, 1.0, 100.0, 8.0), example(1, 0.0, 8.0, 8.0)],
        [example(0, 1.0, 100.0, 9.0), example(1, 1.0, 100.0, 8.0)],
    ]
    scores = summary_of(log_of(*(done(i, b) for i, b in enumerate(batches))), ATTACK).scores
    assert scores["psnr"].high == 100.0 and 0.0 <= scores["exact"].low < 0.75 < scores["exact"].high <= 1.0
