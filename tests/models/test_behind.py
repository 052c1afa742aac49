"""What runs behind a layer: found where it is all of it, and the same signals without the front."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seepage.core.types import InputSpec, Modality
from seepage.models import signals as signals_module
from seepage.models.behind import names_behind
from seepage.models.layers import trace_linear_layers
from seepage.models.signals import BackwardSignals

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=3)


def deep() -> nn.Module:
    torch.manual_seed(97_001)
    front = [nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    back = [nn.Linear(64, 20), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(20, 3)]
    return nn.Sequential(*front, *back)


class Functional(nn.Module):
    """Its activation is no module; or the layer is passed by; or it runs twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.flat, self.first, self.last = nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.flat(x)
        hidden: Tensor = self.first(torch.tanh(x))
        if self.kind == "twice":
            hidden = self.first(hidden)
        hidden = F.relu(hidden) if self.kind == "functional" else hidden
        out: Tensor = self.last(hidden + x if self.kind == "passed by" else hidden)
        return out


def test_the_modules_behind_each_layer_are_named() -> None:
    model = deep()
    found = {layer.name: names_behind(model, layer, SPEC) for layer in trace_linear_layers(model, SPEC)}
    assert found == {"4": ("5", "6", "7"), "7": ()}


@pytest.mark.parametrize("kind", ["functional", "passed by", "twice"])
def test_where_modules_are_not_all_of_it_there_is_no_answer(kind: str) -> None:
    model = Functional(kind)
    first, last = (
        next(one for one in trace_linear_layers(model, SPEC) if one.name == name)
        for name in ("first", "last")
    )
    assert names_behind(model, first, SPEC) is None
    assert names_behind(model, last, SPEC) == ()


def test_signals_are_the_same_to_the_bit_and_the_front_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = deep()
    runs: list[int] = []
    model[0].register_forward_hook(lambda *_: runs.append(1))
    for layer in trace_linear_layers(model, SPEC):
        generator = torch.Generator().manual_seed(97_002)
        h = torch.rand(5, layer.in_features, generator=generator)
        y, rows = torch.arange(5) % 3, torch.arange(5) % layer.out_features
        own = BackwardSignals(model, layer, SPEC, loss="cross_entropy")
        precise = own.precisely()
        runs.clear()
        alone = [own.at_all_rows(h, y), own.at_one_row(h, rows), precise.at_all_rows(h.double(), y)]
        assert not runs
        with monkeypatch.context() as patched:
            patched.setattr(signals_module, "names_behind", lambda *_: None)
            whole = BackwardSignals(model, layer, SPEC, loss="cross_entropy")
            expected = [whole.at_all_rows(h, y), whole.at_one_row(h, rows)]
            expected.append(whole.precisely().at_all_rows(h.double(), y))
        assert runs
        assert all(torch.equal(one, other) for one, other in zip(alone, expected, strict=True))
