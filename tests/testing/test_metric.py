"""What `check_metric` lets through, and the sentence for each thing that it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seepage.core.metric import Metric
from seepage.core.types import InputSpec
from seepage.metrics import METRICS
from seepage.testing import CheckFailed, check_metric


def error(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    return (recon - truth).flatten(1).square().mean(dim=1)


GOOD = Metric(
    title="Error",
    description="Mean squared error.",
    higher_leaks=False,
    unit="error",
    modalities=("image", "tabular"),
    compute=error,
)


@pytest.mark.parametrize(
    "name",
    ["psnr", "mse", "ssim", "token_accuracy", "rouge_1", "rouge_2", "rouge_l", "bag_of_words_recall", "rmse"],
)
def test_metrics_of_seepage_pass(name: str) -> None:
    check_metric(name)


def test_a_metric_of_ones_own_passes() -> None:
    check_metric(GOOD)


def over_the_batch(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    own = error(recon, truth, spec)
    return own / own.max().clamp_min(1e-9)


def in_place(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    return recon.sub_(truth).flatten(1).square().mean(dim=1)


def blind(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    return error(torch.where(recon.isnan(), truth, recon), truth, spec)


def spreads_nan(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    return error(recon, truth, spec) + 0.0 * recon.sum()


BAD: list[tuple[Any, str]] = [
    (replace(GOOD, higher_leaks=True), "says that higher leaks more: turn higher_leaks round"),
    (
        replace(GOOD, compute=lambda r, t, s: error(r, t, s).mean()),
        "return a tensor with one number for each",
    ),
    (replace(GOOD, compute=lambda r, t, s: 1.0), "gives float for 6 examples"),
    (replace(GOOD, compute=over_the_batch), "depends on the examples beside it"),
    (replace(GOOD, compute=in_place), "changes what it is given: work on copies"),
    (replace(GOOD, compute=blind), "an example with a NaN scores as well as an exact copy"),
    (replace(GOOD, compute=spreads_nan), "a NaN in one example changes the scores of others"),
    (replace(GOOD, compute=lambda r, t, s: error(r, t, s) - 1), "outside of its limits 0 to inf"),
    (replace(GOOD, compute=lambda r, t, s: 1 / 0), "on image data, raised ZeroDivisionError"),
    (replace(GOOD, description=""), "has no description"),
    (error, "this is a function: make it a seepage.Metric"),
    ("extraction_recall", "make it a seepage.Metric"),
    ("psrn", "did you mean 'psnr'"),
]


@pytest.mark.parametrize(("metric", "said"), BAD, ids=[said[:30] for _, said in BAD])
def test_what_is_wrong_is_one_sentence(metric: Any, said: str) -> None:
    with pytest.raises(CheckFailed, match=said) as failure:
        check_metric(metric)
    assert "\n" not in str(failure.value)


def test_every_metric_of_single_inputs_that_an_audit_records_is_checked() -> None:
    recorded = [
        m for m in METRICS.values() if m.level == "example" and m.space == "input" and not m.on_request
    ]
    assert {m.name for m in recorded} == {
        "exact", "psnr", "mse", "ssim", "token_accuracy", "rouge_1", "rouge_2", "rouge_l",
        "bag_of_words_recall", "rmse",
    }  # fmt: skip
