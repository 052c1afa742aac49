"""Tracing against networks whose structure is known because it is written here."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.plateaus import scaled
from torch import Tensor, nn
from torch.nn import functional as F

from seepage.core.errors import DataError, ModelError, NotApplicable
from seepage.core.types import InputSpec, Modality
from seepage.models.layers import output_layer, trace_linear_layers
from seepage.models.probes import dummy_inputs

IMAGE = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=3, mean=(0.5,), std=(0.2,))
TEXT = InputSpec(modality=Modality.TEXT, shape=(5,), num_classes=3, vocabulary=11, value_range=None)


class Backwards(nn.Module):
    """Registers its layers in the reverse order of execution, and uses a functional ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.middle = nn.Linear(8, 6, bias=False)
        self.first = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sigmoid(self.middle(F.relu(self.first(x.flatten(1))))))


def test_order_reads_and_activation_follow_execution():
    layers = trace_linear_layers(Backwards(), IMAGE)
    assert [layer.name for layer in layers] == ["first", "middle", "last"]
    assert [layer.index for layer in layers] == [0, 1, 2]
    assert [layer.reads for layer in layers] == ["input", "features", "features"]
    assert [layer.followed_by_relu for layer in layers] == [True, False, False]
    assert [layer.bias for layer in layers] == ["first.bias", None, "last.bias"]
    assert all(layer.per_example for layer in layers)
    assert output_layer(layers, num_classes=3).name == "last"


@pytest.mark.parametrize(
    ("between", "relu"),
    [
        ([nn.ReLU()], True),
        ([nn.ReLU(inplace=True)], True),
        ([nn.Dropout(0.5), nn.ReLU()], True),
        ([nn.BatchNorm1d(8), nn.ReLU()], False),
        ([nn.LayerNorm(8), nn.ReLU()], False),
        ([nn.LeakyReLU()], False),
        ([nn.GELU()], False),
        ([nn.Sigmoid()], False),
        ([], False),
    ],
)
def test_what_follows_a_layer(between, relu):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), *between, nn.Linear(8, 3))
    assert [layer.followed_by_relu for layer in trace_linear_layers(model, IMAGE)] == [relu, False]


def test_a_crafted_layer_that_is_negative_on_all_inputs_still_has_its_relu():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[1].bias.fill_(-1e4)
    assert trace_linear_layers(model, IMAGE)[0].followed_by_relu


class Bag(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.table = nn.Embedding(11, 4)
        self.token = nn.Linear(4, 4)
        self.head = nn.Linear(20 if how == "flat" else 4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.table(ids)
        if self.how == "flat":
            return self.head(embedded.flatten(1))
        if self.how == "mean":
            return self.head(embedded.mean(1))
        return self.head(self.token(embedded).mean(1))


def test_embeddings_and_positions():
    (flat,) = trace_linear_layers(Bag("flat"), TEXT)
    assert (flat.reads, flat.embedding, flat.per_example) == ("embedding", "table.weight", True)
    (mean,) = trace_linear_layers(Bag("mean"), TEXT)
    assert (mean.reads, mean.embedding, mean.per_example) == ("features", None, True)
    token, head = trace_linear_layers(Bag("token"), TEXT)
    assert (token.reads, token.per_example, head.per_example) == ("embedding", False, True)


def test_a_layer_called_twice_or_sharing_its_weight_is_not_per_example():
    shared = nn.Linear(16, 16)
    twin = nn.Linear(16, 16)
    twin.weight = shared.weight
    last = nn.Linear(16, 3)
    twice = trace_linear_layers(nn.Sequential(nn.Flatten(), shared, nn.Tanh(), shared, last), IMAGE)
    assert [(layer.name, layer.per_example) for layer in twice] == [("1", False), ("4", True)]
    tied = trace_linear_layers(nn.Sequential(nn.Flatten(), shared, nn.Tanh(), twin, last), IMAGE)
    assert [(layer.weight, layer.per_example) for layer in tied] == [
        ("1.weight", False), ("1.weight", False), ("4.weight", True),
    ]  # fmt: skip


def test_tracing_leaves_no_trace():
    model = Backwards().double().train()
    model.middle.eval()
    state = torch.get_rng_state()
    trace_linear_layers(model, IMAGE)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and model.first.training and not model.middle.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_dummies_are_in_the_range_and_units_of_the_model():
    raw = IMAGE.to_raw(dummy_inputs(IMAGE, 200, like=Backwards()))
    assert -1e-6 <= float(raw.min()) < 0.05 and 0.95 < float(raw.max()) <= 1 + 1e-6
    tokens = dummy_inputs(TEXT, 200, like=Backwards())
    assert set(tokens.flatten().tolist()) == set(range(11))


def test_what_cannot_be_traced_says_why():
    with pytest.raises(ModelError, match="cannot take a batch"):
        trace_linear_layers(nn.Linear(7, 3), IMAGE)
    with pytest.raises(NotApplicable, match="5 outputs"):
        output_layer(trace_linear_layers(Backwards(), IMAGE), num_classes=5)
    assert trace_linear_layers(nn.Conv2d(1, 3, 4), IMAGE) == []
    no_vocabulary = InputSpec(modality=Modality.TEXT, shape=(5,), num_classes=3)
    with pytest.raises(DataError, match="vocabulary"):
        trace_linear_layers(Bag("flat"), no_vocabulary)


@pytest.mark.parametrize("factor", [0.25, 2.0])
def test_the_share_of_live_outputs_lies_on_a_plateau(factor):
    """Networks with ReLUs behind every dense layer but the last, with leaky ones, and with none."""
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=5)

    def followed() -> list[list[bool]]:
        found = []
        for seed in (96_001, 96_002, 96_003):
            for between in (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Identity):
                torch.manual_seed(seed)
                sizes = (64, 100, 50, 20, 5)
                layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), between())]
                model = nn.Sequential(nn.Flatten(), *layers[:-1])
                found.append([layer.followed_by_relu for layer in trace_linear_layers(model, spec)])
        return found

    shipped = followed()
    assert shipped == 3 * [[True, True, True, False], *3 * [[False] * 4]]
    with scaled("seepage.models.layers:ALIVE_SHARE", factor):
        assert followed() == shipped
