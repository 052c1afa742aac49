"""One row over and over with a ladder of biases, and what is like it without being one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.core.types import Broadcast, Verdict
from seepage.guardian import guard
from seepage.guardian.detectors import DETECTORS


def inside_a_transformer() -> nn.ModuleDict:
    """Other layers make what 'up' reads, so no statistic is taken of it."""
    torch.manual_seed(0)
    sizes = {"read": (12, 32), "value": (32, 32), "up": (32, 64), "down": (64, 32), "head": (32, 4)}
    return nn.ModuleDict({name: nn.Linear(*size) for name, size in sizes.items()})


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("entries", [2, 5, 32])
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_one_row_over_and_over_is_a_trap_in_any_layer(kind: torch.dtype, entries: int, share: float) -> None:
    """Few entries, any length of rows, a part of the rows: by chance rows of two entries have neighbours."""
    model = inside_a_transformer()
    count = int(64 * share)
    with torch.no_grad():
        row = torch.zeros(32)
        row[:entries] = torch.randn(entries)
        model["up"].weight[-count:] = row * (0.5 + torch.rand(count, 1))  # type: ignore[operator]
        model["up"].bias[-count:] = torch.linspace(-2, 1, count)  # type: ignore[operator]
    report = guard(model.to(kind))
    assert (report.verdict, report.detector, report.layer) == (Verdict.TRAP, "identical_rows", "up")


@pytest.mark.parametrize(
    "how", ["one bias", "one threshold", "a table of ones", "one input", "nearly", "classes"]
)
def test_rows_that_are_alike_without_a_ladder_are_no_trap(how: str) -> None:
    model = inside_a_transformer()
    layer = model["head" if how == "classes" else "up"]
    count = len(layer.weight)  # type: ignore[arg-type]
    with torch.no_grad():
        row, length = torch.randn(32), 0.5 + torch.rand(count, 1)
        layer.weight.copy_(row * length)  # type: ignore[operator]
        layer.bias.copy_(torch.linspace(-2, 1, count))  # type: ignore[operator]
        if how == "one bias":  # merged neurons
            layer.bias.fill_(0.3)  # type: ignore[operator]
        elif how == "one threshold":  # condensed ones: the bias is one more weight
            noise = 1e-3 * torch.randn(count, 33) / 33**0.5
            layer.weight.copy_(length * (row + noise[:, :32] * row.norm()))  # type: ignore[operator]
            layer.bias.copy_(length[:, 0] * row.norm() * (0.02 + noise[:, 32]))  # type: ignore[operator]
        elif how == "a table of ones":  # a state space model's A and D
            layer.weight.copy_(torch.arange(1.0, 33).log().expand(count, 32))  # type: ignore[operator]
            layer.bias.copy_(1 + 0.002 * torch.randn(count))  # type: ignore[operator]
        elif how == "one input":  # all others are dead
            layer.weight.mul_(torch.eye(32)[3]).mul_(torch.randn(count, 1).sign())  # type: ignore[operator]
        elif how == "nearly":
            layer.weight.mul_(1 + 0.05 * torch.randn(count, 32))  # type: ignore[operator]
    finding = DETECTORS["identical_rows"]()(Broadcast(model))
    assert finding.verdict is Verdict.CLEAN, finding
