"""What public models have for reasons of their own, and checks must not take for a trap."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Verdict
from seepage.guardian.detectors import as_module
from seepage.guardian.detectors.fishing_head import lone_class_row
from seepage.guardian.detectors.layers import weight_layers
from seepage.guardian.detectors.pass_through import reading_input
from seepage.guardian.detectors.sign_distribution import sign_distribution


def test_a_layer_of_one_sign_has_no_two_distributions() -> None:
    """Gates of MAXIM: all weights but a few are positive."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 64)
    with torch.no_grad():
        layer.weight.abs_()
        layer.weight[0, :10] = -5.0
    with pytest.raises(NotApplicable, match="250 weights of either sign"):
        sign_distribution()(Broadcast(layer))
    with torch.no_grad():
        layer.weight[:8] = -5.0  # 512 of them, all larger than any positive one
    assert sign_distribution()(Broadcast(layer)).score == 1.0


def test_of_two_rows_only_a_zero_one_tells() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2))
    head = net[2]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight[0] *= 0.01  # 1e-4 of the energy, as two outputs of different units have it
    assert lone_class_row()(Broadcast(net)).verdict is Verdict.CLEAN
    with torch.no_grad():
        head.weight[0] = 0.0
    assert lone_class_row()(Broadcast(net)).verdict is not Verdict.CLEAN


def test_a_dense_layer_behind_a_recurrent_one_does_not_read_the_input() -> None:
    recurrent = nn.ModuleDict({"rnn": nn.LSTM(12, 48), "head": nn.Linear(48, 30), "out": nn.Linear(30, 4)})
    assert not reading_input(weight_layers(recurrent))
    plain = as_module({n: t for n, t in recurrent.state_dict().items() if not n.startswith("rnn")})
    assert [layer.name for layer in reading_input(weight_layers(plain))] == ["head"]
