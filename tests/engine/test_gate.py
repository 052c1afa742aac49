"""The gate fails closed: nothing passes that was not measured, and a measured leak is a leak."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from seepage.core.errors import SpecError
from seepage.core.types import Modality
from seepage.engine.gate import check_modality, check_thresholds, rule
from seepage.engine.spec import parse_spec
from seepage.metrics import METRICS
from seepage.record import AttackRef, AuditLog, Cell, Example, Header, InputRecord, RunFolder, ThreatRecord

NAN = math.nan


def cell(name: str, exact: list[float], *, seed: int = 0, metric: str = "exact", **rest: Any) -> Cell:
    examples = tuple(
        Example(index=i, client=0, label=0, recovered=True, scores={metric: value})
        for i, value in enumerate(exact)
    )
    return Cell(attack=AttackRef(name=name), seed=seed, status="done", examples=examples, **rest)


def stopped(name: str, status: Any, *, seed: int = 0) -> Cell:
    return Cell(attack=AttackRef(name=name), seed=seed, status=status, reason="the layer is frozen")


def log(*cells: Cell, seeds: tuple[int, ...] = (0,), attacks: Any = (), spec: Any = None) -> AuditLog:
    names = dict.fromkeys(["prior_only", *attacks, *(c.attack.name for c in cells)])
    header = Header(
        title="",
        created="",
        spec=spec or {},
        run_key="",
        seeds=seeds,
        attacks=tuple(AttackRef(name=n) for n in names),
        threat=ThreatRecord(name="", description="", grants=(), server_sees=""),
        input=InputRecord(modality="image", shape=(1, 4, 4), num_classes=2),
        model_name="",
        model_parameters=0,
        data_name="",
        data_source="",
        data_examples=0,
        exact_tolerance=1e-3,
        device="cpu",
        packages={},
        python="",
    )
    return AuditLog(RunFolder(Path()), header, cells)


def test_below_and_above() -> None:
    done = log(cell("a", [1.0, 0.0, 0.0, 0.0]))
    assert rule(done, {"exact": 0.26}).passed
    assert rule(done, {"exact": 0.25}).above == ("a: exact is 0.25, at or above the threshold 0.25.",)
    errors = log(cell("a", [0.2, 0.4], metric="mse"))
    assert rule(errors, {"mse": 0.29}).passed
    assert rule(log(cell("a", [0.25, 0.75], metric="mse")), {"mse": 0.5}).above  # at the threshold counts
    assert len(rule(errors, {"mse": 0.3001}).above) == 1


def test_the_baseline_neither_leaks_nor_measures() -> None:
    assert not rule(log(cell("prior_only", [1.0])), {"exact": 0.5}).above
    assert rule(log(cell("prior_only", [0.0])), {"exact": 0.5}).not_measured
    assert rule(log(cell("prior_only", [0.0])), {}).not_measured


@pytest.mark.parametrize("status", ["not_applicable", "failed"])
def test_an_attack_that_was_asked_for_and_did_not_run(status: str) -> None:
    found = rule(log(cell("a", [0.0]), stopped("b", status)), {"exact": 0.5})
    assert not found.passed and not found.above
    assert len(found.not_measured) == 1
    assert "b: exact was not measured" in found.not_measured[0] and "frozen" in found.not_measured[0]


def test_attacks_that_stopped_for_one_reason_share_one_sentence() -> None:
    found = rule(log(stopped("a", "failed"), stopped("b", "failed")), {"exact": 0.5})
    assert len(found.not_measured) == 1 and found.not_measured[0].startswith("a, b: exact was not measured")


def test_a_seed_that_is_missing_or_failed() -> None:
    missing = rule(log(cell("a", [0.0]), seeds=(0, 1)), {"exact": 0.5})
    assert "1 of 2 runs are missing" in missing.not_measured[0]
    failed = rule(log(cell("a", [0.0]), stopped("a", "failed", seed=1), seeds=(0, 1)), {"exact": 0.5})
    assert "1 of 2 runs" in failed.not_measured[0] and not failed.passed
    never = rule(log(cell("a", [0.0]), attacks=["later"]), {"exact": 0.5})
    assert never.not_measured[0].startswith("later: 1 of 1 runs are missing")


def test_a_measured_leak_is_a_leak_whatever_is_missing() -> None:
    found = rule(log(cell("a", [1.0]), stopped("a", "failed", seed=1), seeds=(0, 1)), {"exact": 0.5})
    assert found.above and found.not_measured


def test_what_the_audit_chose_by_itself_need_not_fit() -> None:
    twin = rule(log(cell("a", [0.0]), stopped("adaptive", "not_applicable")), {"exact": 0.5})
    assert twin.passed
    auto = log(cell("a", [0.0]), stopped("b", "not_applicable"), spec={"attacks": "auto"})
    assert rule(auto, {"exact": 0.5}).passed
    nobody = log(stopped("b", "not_applicable"), spec={"attacks": "auto"})
    assert "no attack of this audit measured exact" in rule(nobody, {"exact": 0.5}).not_measured[0]
    assert rule(nobody, {"psnr": 20}).not_measured == ("no attack of this audit measured psnr on inputs.",)
    broken = log(cell("a", [0.0]), stopped("adaptive", "failed"))
    assert not rule(broken, {"exact": 0.5}).passed


def test_scores_that_are_no_numbers_never_pass() -> None:
    found = rule(log(cell("a", [0.0, NAN])), {"exact": 0.5})
    assert not found.above and "not a number" in found.not_measured[0]
    assert rule(log(cell("a", [1.0, NAN])), {"exact": 0.5}).above
    assert rule(log(cell("a", [math.inf], metric="mse")), {"mse": 0.5}).not_measured
    assert rule(log(cell("a", [NAN])), {}).not_measured


def test_a_stop_without_a_reason_says_that_there_is_none() -> None:
    silent = stopped("a", "failed").model_copy(update={"reason": ""})
    assert rule(log(silent), {"exact": 0.5}).not_measured == (
        "a: exact was not measured in 1 of 1 runs, which failed: no reason is recorded.",
    )


def test_a_metric_that_nobody_measured() -> None:
    found = rule(log(cell("a", [0.0])), {"label_accuracy": 0.5})
    assert found.not_measured == ("no attack of this audit measured label_accuracy on anything.",)
    assert rule(log(cell("a", [0.0])), {"ssim": 0.5}).not_measured  # pictures below 3 x 3 pixels
    assert rule(log(cell("a", [0.0])), {"cosine": 0.5}).not_measured


def test_figures_of_whole_batches_are_not_every_attacks_to_give() -> None:
    cells = [cell("a", [0.0], batch_scores={"label_accuracy": 0.4}), cell("b", [0.0])]
    assert rule(log(*cells), {"label_accuracy": 0.5}).passed
    assert rule(log(*cells), {"label_accuracy": 0.4}).above
    halves = [cell("a", [0.0], batch_scores={"label_accuracy": 0.4}), cell("a", [0.0], seed=1)]
    assert not rule(log(*halves, seeds=(0, 1)), {"label_accuracy": 0.5}).passed


def test_features_are_no_inputs() -> None:
    features = cell("reader", [1.0, 1.0], space="fc")
    inputs = cell("inversion", [0.0, 0.0])
    for cells in ([features], [features, inputs]):
        found = rule(log(*cells), {"exact": 0.5})
        assert not found.above and "layer 'fc'" in found.not_measured[0]
    assert rule(log(features), {"exact": 0.5}).not_measured == (
        "reader: exact was not measured on inputs, for it rebuilt the features that enter layer 'fc': judge "
        "those with a threshold on cosine or relative_error, or leave the attack out.",
    )
    few = cell("reader", [0.0, 0.0], space="fc")
    assert rule(log(few, inputs), {"exact": 0.5}).passed
    assert rule(log(few), {"exact": 0.5}).not_measured  # but alone it measured no input
    unclear = cell("reader", [NAN, 0.0], space="fc")
    assert not rule(log(unclear, inputs), {"exact": 0.5}).passed


def test_features_can_be_judged_themselves() -> None:
    features, inputs = cell("reader", [0.8], metric="cosine", space="fc"), cell("inversion", [0.0])
    assert rule(log(features, inputs), {"exact": 0.5, "cosine": 0.9}).passed
    assert rule(log(features, inputs), {"exact": 0.5, "cosine": 0.8}).above


@pytest.mark.parametrize(
    ("metric", "threshold"),
    [
        ("exact", 1.5),
        ("exact", -0.1),
        ("exact", NAN),
        ("exact", math.inf),
        ("mse", -1e-9),
        ("psnr", 100.1),
        ("psnr", -math.inf),
        ("ssim", 1.01),
        ("cosine", -1.1),
        ("lpips", 0.1),
        ("registered_psnr", 20.0),
        ("cw_ssim", 0.5),
        ("exactness", 0.5),
    ],
)
def test_thresholds_that_cannot_be_reached_are_refused(metric: str, threshold: float) -> None:
    with pytest.raises(SpecError):
        check_thresholds({metric: threshold})


def test_a_metric_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(SpecError) as refusal:
        check_thresholds({"exactness": 0.5}, asked=["my.module:sharpness"])
    said = str(refusal.value)
    assert said.startswith(
        "unknown metric in fail_on 'exactness': did you mean 'exact'? Valid: active_neurons,"
    )
    assert "my.module:sharpness, psnr" in said


def test_a_metric_of_ones_own_is_held_to_its_own_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_gate_metric.py").write_text(
        "import seepage\n"
        "hue = seepage.Metric(title='Hue', description='', higher_leaks=True, unit='share',\n"
        "    modalities=('tabular', 'image'), compute=lambda recon, truth, spec: recon.mean(1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "own_gate_metric:hue"
    check_thresholds({name: 1.0}, asked=[name])
    with pytest.raises(SpecError, match="lies between 0 and 1, so a threshold of 2 would never"):
        check_thresholds({name: 2.0}, asked=[name])
    check_modality({name: 0.5}, Modality.IMAGE)
    with pytest.raises(SpecError, match="is measured on image and tabular data, and these are text, so"):
        check_modality({name: 0.5}, Modality.TEXT)


@pytest.mark.parametrize("value", [True, "0.1", NAN, None, [0.1]])
def test_thresholds_are_numbers(value: Any) -> None:
    with pytest.raises(SpecError, match="fail_on"):
        parse_spec({"model": "mlp", "data": "digits", "fail_on": {"exact": value}})


def test_thresholds_at_the_ends_can_be_reached() -> None:
    check_thresholds({"exact": 1, "mse": 0.0, "psnr": 100.0, "ssim": 1.0, "rmse": 0.0, "label_accuracy": 1.0})


def test_metrics_of_another_kind_of_data_are_refused() -> None:
    for modality in Modality:
        fits = {name: 0.5 for name, metric in METRICS.items() if modality in metric.modalities}
        check_modality(fits, modality)
        for name in set(METRICS) - set(fits):
            with pytest.raises(SpecError, match="never be measured"):
                check_modality({name: 0.5}, modality)


@pytest.mark.parametrize(
    ("metric", "threshold", "where"),
    [
        ("exact", 1.5, "between 0 and 1"),
        ("mse", -1.0, "at 0 or above"),
        ("psnr", 101.0, "at 100 or below"),
        ("cosine", -2.0, "between -1 and 1"),
    ],
)
def test_a_refused_threshold_says_where_the_metric_lies(metric: str, threshold: float, where: str) -> None:
    with pytest.raises(SpecError) as refusal:
        check_thresholds({metric: threshold})
    assert str(refusal.value) == (
        f"fail_on: {metric} lies {where}, so a threshold of {threshold:g} would never be reached: "
        "give one inside."
    )


MEASURED = {
    Modality.IMAGE: {"exact", "psnr", "ssim", "mse"},
    Modality.TEXT: {"exact", "token_accuracy", "rouge_1", "rouge_2", "rouge_l", "bag_of_words_recall"},
    Modality.TABULAR: {"exact", "rmse"},
}
"""What every audit records of each single input."""


def proposed(refusal: SpecError) -> set[str]:
    return set(str(refusal).partition("never be measured: use ")[2].removesuffix(".").split(" or "))


def test_a_refusal_proposes_what_is_measured() -> None:
    for modality, measured in MEASURED.items():
        for name in METRICS:
            if modality in METRICS[name].modalities:
                continue
            with pytest.raises(SpecError) as refusal:
                check_modality({name: 0.5}, modality)
            assert proposed(refusal.value) == measured
    with pytest.raises(SpecError) as refusal:
        check_thresholds({"lpips": 0.1})
    assert proposed(refusal.value) == MEASURED[Modality.IMAGE]


def test_without_thresholds_something_must_have_been_measured() -> None:
    assert rule(log(cell("a", [0.0]), stopped("b", "failed")), {}).passed
    assert rule(log(cell("a", [], batch_scores={"label_accuracy": 0.4})), {}).passed
    assert rule(log(), {}).not_measured == ("no attack was run.",)
    nobody = log(stopped("a", "failed"), stopped("b", "not_applicable"))
    assert rule(nobody, {}).not_measured == ("no attack finished (a, b): the layer is frozen.",)


def test_every_threshold_has_its_say() -> None:
    """The first one's findings stay where a later one has none, or others."""
    leaky = log(cell("a", [1.0], batch_scores={"label_accuracy": 0.4}))
    found = rule(leaky, {"exact": 0.5, "label_accuracy": 0.5, "cosine": 0.5})
    assert [said.partition(" is ")[0] for said in found.above] == ["a: exact"]
    gaps = rule(leaky, {"ssim": 0.5, "cosine": 0.5, "exact": 0.5}).not_measured
    assert gaps == (
        "a: ssim is missing in 1 of 1 finished runs.",
        "no attack of this audit measured cosine on a layer's features.",
    )


def test_features_at_the_threshold_leave_inputs_unmeasured() -> None:
    """As many exact features as the threshold asks for may be as many exact inputs."""
    inputs = cell("inversion", [0.0])
    half = cell("reader", [1.0, 0.0], space="fc")
    assert rule(log(half, inputs), {"exact": 0.5}).not_measured
    assert rule(log(half, inputs), {"exact": 0.51}).passed
    unread = cell("reader", [0.9], metric="cosine", space="fc")
    assert not rule(log(unread, inputs), {"exact": 0.5}).passed


@pytest.mark.parametrize(("status", "words"), [("failed", "failed"), ("not_applicable", "did not apply")])
def test_a_gap_says_what_became_of_the_runs(status: str, words: str) -> None:
    halves = log(cell("a", [0.0]), stopped("a", status, seed=1), seeds=(0, 1))
    assert rule(halves, {"exact": 0.5}).not_measured == (
        f"a: exact was not measured in 1 of 2 runs, which {words}: the layer is frozen.",
    )


@pytest.mark.parametrize(
    ("reason", "told"), [("no memory", "no memory."), ("Why?", "Why?"), ("Stop.", "Stop."), ("No!", "No!")]
)
def test_a_reason_ends_as_a_sentence_once(reason: str, told: str) -> None:
    one = Cell(attack=AttackRef(name="a"), seed=0, status="failed", reason=reason)
    assert rule(log(one), {"exact": 0.5}).not_measured[0].endswith(f": {told}")


def test_an_error_at_the_threshold_is_a_leak_and_says_so() -> None:
    found = rule(log(cell("a", [0.25, 0.75], metric="mse")), {"mse": 0.5})
    assert found.above == ("a: mse is 0.5, at or below the threshold 0.5.",)
