"""Outputs that a loss on logits does not expect: said in one sentence, from the model to the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import seepage
from seepage.core.errors import ModelError
from seepage.core.types import InputSpec, Modality
from seepage.models.loading import build_model, check_forward
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


TWO_CLASSES = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=2, value_range=None)


@pytest.mark.parametrize(
    ("model", "sentences"),
    [
        (nn.Linear(6, 1), 0),
        (nn.Sequential(nn.Linear(6, 1), nn.Softplus()), 0),
        (nn.Sequential(nn.Linear(6, 1), nn.Softmax(dim=1)), 0),  # always 1: nothing that could be trained
        (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid()), 1),
    ],
)
def test_one_output_is_a_probability_if_no_input_takes_it_out_of_0_to_1(
    model: nn.Module, sentences: int
) -> None:
    said = doubts_about_outputs(model, TWO_CLASSES)
    assert len(said) == sentences
    assert all("without its sigmoid" in one for one in said)


class Squeezed(nn.Module):
    """One logit an example, without a dimension for it: as `squeeze` leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).squeeze()


def test_one_logit_without_a_dimension_becomes_a_column() -> None:
    model = build_model(Squeezed(), TWO_CLASSES)
    assert check_forward(model, TWO_CLASSES) == (2, 1)
    assert model(torch.zeros(1, 6)).shape == (1, 1)
    x = torch.rand(5, 6)
    assert torch.equal(model(x)[:, 0], model.inner(x)[:, 0])


def test_series_are_told_how_they_can_be_given() -> None:
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 20, 6), num_classes=3)
    network = nn.Sequential(nn.Conv1d(20, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(ModelError, match=r"nn.Sequential\(nn.Unflatten\(1, \(20, 6\)\), model\)"):
        check_forward(network, spec)
    rows = InputSpec(modality=Modality.TABULAR, shape=(120,), num_classes=3)
    assert check_forward(nn.Sequential(nn.Unflatten(1, (20, 6)), network), rows) == (2, 3)


def test_one_number_for_many_classes_is_told_how_to_be_a_regression() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=40)
    with pytest.raises(ModelError, match="give the numbers themselves as targets for a regression"):
        check_forward(nn.Linear(6, 1), spec)


def test_a_regression_says_as_many_numbers_as_there_are_targets() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=1, num_targets=3)
    assert check_forward(nn.Linear(6, 3), spec) == (2, 3)
    with pytest.raises(ModelError, match=r"let it return \(2, 3\)"):
        check_forward(nn.Linear(6, 2), spec)


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
