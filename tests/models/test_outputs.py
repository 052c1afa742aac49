"""Outputs that a loss on logits does not expect: said in one sentence, from the model to the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import seepage
from seepage.core.types import InputSpec, Modality
from seepage.models.outputs import doubts_about_outputs

SPEC = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=3, value_range=None)


class Halves(nn.Module):
    """A linear layer whose outputs are never negative, and do not sum to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.inner(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_probabilities_are_noticed_in_any_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=1)).to(dtype)
    (said,) = doubts_about_outputs(model, SPEC)
    assert "without its softmax" in said


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(6, 3),
        nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(dim=1)),
        nn.Sequential(nn.Linear(6, 3), nn.ReLU()),
        Halves(),
    ],
)
def test_logits_and_their_like_are_not(model: nn.Module) -> None:
    torch.manual_seed(0)
    assert doubts_about_outputs(model, SPEC) == ()


def test_one_output_is_not_judged() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=2, value_range=None)
    assert doubts_about_outputs(nn.Sequential(nn.Linear(6, 1), nn.Softmax(dim=1)), spec) == ()


def test_the_verdict_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
    details = {}
    for name, model in {"logits": net, "softmax": nn.Sequential(net, nn.Softmax(dim=1))}.items():
        log = seepage.audit(
            model=model,
            data="digits",
            attacks=["analytic_extraction"],
            batch_size=2,
            seeds=[0],
            out=tmp_path / name,
            engine="here",
            on_plan=lambda header: None,
        )
        details[name] = " ".join(log.to_json()["verdict"]["details"])
    assert "outputs are probabilities" in details["softmax"]
    assert "outputs are probabilities" not in details["logits"]
