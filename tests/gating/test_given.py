"""What cannot be measured is refused in a sentence, by the full mode and the quick one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.core.errors import DataError
from seepage.core.types import Batch
from seepage.gating import gate


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 3))


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    ("model", "batch", "said"),
    [
        (net(), Batch(torch.full((2, 9), torch.nan), torch.tensor([0, 1])), "example 0 holds NaN"),
        (net(), Batch(torch.rand(2, 9), torch.tensor([[0.5], [float("inf")]])), "the target of example 1"),
        (net(), Batch(torch.rand(2, 9), torch.tensor([0, 3])), "the label of example 1 is 3"),
        (net().bfloat16(), Batch(torch.rand(2, 9), torch.tensor([0, 1])), "weights bfloat16"),
        (net(), Batch(torch.rand(0, 9), torch.tensor([], dtype=torch.long)), "holds no example"),
    ],
    ids=["nan", "infinite target", "label", "type", "empty"],
)  # fmt: skip
def test_a_batch_that_cannot_be_measured_is_refused(
    model: nn.Module, batch: Batch, said: str, quick: bool
) -> None:
    with pytest.raises(DataError, match=said):
        gate(model, None, batch, quick=quick)


def test_a_model_of_16_bits_is_measured_on_examples_of_16_bits() -> None:
    report = gate(net().bfloat16(), None, (torch.rand(2, 9).bfloat16(), torch.tensor([0, 1])), advice=False)
    assert report.answer == "block"
    assert report.exposed == [0, 1]
