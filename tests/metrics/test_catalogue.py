"""One place for what a metric means, and metrics that an audit asks for, from inside and outside."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import seepage
from seepage.core.errors import SpecError
from seepage.core.types import INPUT_SPACE, InputSpec, Modality
from seepage.metrics import (
    METRICS,
    check_requested,
    lpips_available,
    psnr,
    requested,
    score_examples,
    score_requested,
)
from seepage.metrics.catalogue import METRICS as REGISTRY
from seepage.names import metrics as names

PICTURE = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=2)

brightness = seepage.Metric(
    title="Brightness error",
    description="How far the mean brightness is off.",
    higher_leaks=False,
    unit="error",
    modalities=("image",),
    compute=lambda recon, truth, spec: (recon - truth).flatten(1).mean(1).abs(),
)
one_number = seepage.Metric(
    title="One", description="", higher_leaks=True, compute=lambda recon, truth, spec: recon.mean()
)
broken = seepage.Metric(
    title="Broken", description="", higher_leaks=True, compute=lambda recon, truth, spec: 1 / 0
)
not_a_metric = 3


def test_names_are_read_without_torch() -> None:
    code = "import seepage.names.metrics, seepage.record, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_entry_is_where_it_says() -> None:
    assert set(names.METRICS) == set(names.ENTRIES) == set(METRICS)
    for name, facts in names.METRICS.items():
        found = REGISTRY[name]
        assert found.title == facts.title and callable(getattr(found, "compute", score_examples))


def test_a_metric_of_every_audit_computes_what_the_audit_records() -> None:
    recon, truth = torch.rand(2, 3, 1, 4, 4).unbind()
    found = METRICS["psnr"]
    assert isinstance(found, seepage.Metric)
    torch.testing.assert_close(found.compute(recon, truth, PICTURE), psnr(recon, truth, data_range=1.0))


def test_a_metric_from_outside_is_scored_under_the_name_it_was_asked_by() -> None:
    (found,) = requested([f"{__name__}:brightness"])
    assert found.on_request and found.facts() == names.MetricFacts(
        name=f"{__name__}:brightness",
        title="Brightness error",
        description="How far the mean brightness is off.",
        higher_leaks=False,
        unit="error",
        modalities=("image",),
        on_request=True,
    )
    truth = torch.zeros(2, 1, 4, 4)
    recon = truth + torch.tensor([0.5, -0.25]).reshape(2, 1, 1, 1)
    check_requested([found], truth, PICTURE)
    scores = score_requested([found], recon, truth, PICTURE, space=INPUT_SPACE)
    assert scores[found.name].tolist() == [0.5, 0.25] and scores[found.name].dtype == torch.float64
    assert score_requested([found], recon, truth, PICTURE, space="fc1") == {}  # it is about inputs
    assert score_requested([found], recon[:0], truth[:0], PICTURE, space=INPUT_SPACE)[found.name].numel() == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("psnrr", "unknown metric 'psnrr': did you mean 'psnr'?"),
        ("psnr", "metrics: psnr is recorded in any case: leave it out."),
        ("label_accuracy", "metrics: label_accuracy is recorded in any case: leave it out."),
        (f"{__name__}:not_a_metric", "is a int: name a seepage.Metric"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(name: str, said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        requested([name])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one_number", "gives values of shape () for 2 examples: return one number for each."),
        ("broken", "failed (ZeroDivisionError: division by zero): mend it, or leave it out."),
    ],
)
def test_a_metric_that_cannot_score_is_refused_before_anything_runs(name: str, said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        check_requested(requested([f"{__name__}:{name}"]), torch.rand(2, 1, 4, 4), PICTURE)


def test_a_metric_that_is_not_there_or_of_other_data_is_refused_with_the_reason() -> None:
    if not lpips_available()[0]:
        big = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=2)
        with pytest.raises(SpecError, match=re.escape(lpips_available()[1])):
            check_requested(requested(["lpips"]), torch.rand(1, 3, 32, 32), big)
    rows = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=2)
    with pytest.raises(SpecError, match="measured on image data, and these are tabular"):
        check_requested(requested(["cw_ssim"]), torch.rand(2, 4), rows)


@pytest.mark.parametrize(
    ("facts", "said"),
    [({"modalities": ("sound",)}, "'sound' data, which is no kind"), ({"limits": (1.0, 0.0)}, "lower first")],
)
def test_facts_that_cannot_be_are_refused(facts: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        names.MetricFacts(title="Mine", description="", higher_leaks=True, **facts)  # type: ignore[arg-type]


def test_an_audit_records_a_metric_of_ones_own_beside_the_baseline(tmp_path: Path) -> None:
    name = f"{__name__}:brightness"
    log = seepage.audit(
        model="mlp",
        data="digits",
        attacks=["analytic_extraction"],
        batch_size=2,
        seeds=[0, 1],
        metrics=name,
        fail_on={name: 0.0},
        out=tmp_path,
        on_plan=lambda header: None,
    )
    cell = next(c for c in log.cells if c.attack.name == "analytic_extraction")
    assert all(e.scores[name] < 1e-4 < e.baseline[name] for e in cell.examples if e.scores["exact"])
    read = seepage.open_log(tmp_path)
    assert read.header.metric(name).title == "Brightness error" and not read.header.metric(name).higher_leaks
    assert read.header.metric(name).reach == (0.0, math.inf)
    page = read.to_html(tmp_path / "page.html").read_text()
    assert page.count("Brightness error") >= 2  # in the table of figures, and below each picture
