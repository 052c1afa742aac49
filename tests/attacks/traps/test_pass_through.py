"""Pass-throughs: what arrives at the dense layer must be the input, whatever lies before it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seepage.attacks.traps.carried import Hiding
from seepage.attacks.traps.placement import Placed, place
from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec, LocalTraining
from seepage.models.hooks import layer_input

from .helpers import dense_net, image_batch, image_spec, knowing


def placed(model: nn.Module, spec: InputSpec, *, hidden: bool, layer: str | None = None) -> Placed:
    hiding = Hiding(hidden, torch.Generator().manual_seed(5))
    return place(model, knowing(spec), layer=layer, hiding=hiding)


def arrival_error(result: Placed, spec: InputSpec) -> float:
    """Largest difference between the model's input and what is decoded from the trap layer's input."""
    inputs = image_batch(spec, 16, seed=9).inputs
    with torch.no_grad():
        result.model.eval()
        features = layer_input(result.model, result.layer.name, inputs)
    assert result.decode is not None
    return float((result.decode(features) - inputs.flatten(1)).abs().max())


def conv_net(
    spec: InputSpec,
    filters: tuple[int, ...],
    *,
    kernel: int = 3,
    norm: bool = False,
    stride: int = 1,
    bias: bool = True,
    padding: int | None = None,
) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = spec.shape[0]
    for index, count in enumerate(filters):
        pad = kernel // 2 if padding is None else padding
        layers.append(nn.Conv2d(channels, count, kernel, stride if index == 1 else 1, padding=pad, bias=bias))
        if norm:
            batch_norm = nn.BatchNorm2d(count)
            batch_norm.running_mean.normal_()
            batch_norm.running_var.uniform_(0.5, 2)
            layers.append(batch_norm)
        layers.append(nn.ReLU())
        channels = count
    features = nn.Sequential(*layers, nn.Flatten())
    size = features.eval()(torch.zeros(1, *spec.shape)).shape[1]
    return nn.Sequential(*features, nn.Linear(size, 20), nn.ReLU(), nn.Linear(20, spec.num_classes))


@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "hidden"])
@pytest.mark.parametrize("normalised", [False, True], ids=["raw", "normalised"])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel"),
    [(1, (4, 6), 3), (3, (8, 4, 6), 3), (5, (7, 8, 9, 6), 1), (3, (3, 3), 5), (1, (2,), 7)],
)
def test_convolutions_transmit_the_input(
    channels: int, filters: tuple[int, ...], kernel: int, normalised: bool, hidden: bool
) -> None:
    spec = image_spec((channels, 6, 7), normalised=normalised)
    result = placed(conv_net(spec, filters, kernel=kernel), spec, hidden=hidden)
    assert arrival_error(result, spec) <= (1e-5 if hidden else 2e-6)


def test_plain_pass_through_of_raw_pictures_is_the_identity() -> None:
    """One channel, one map: the flattened features are the picture, not merely decodable to it."""
    spec = image_spec((1, 5, 5))
    result = placed(conv_net(spec, (1, 1)), spec, hidden=False)
    inputs = image_batch(spec, 4).inputs
    assert torch.allclose(layer_input(result.model, result.layer.name, inputs), inputs.flatten(1), atol=1e-7)


@pytest.mark.parametrize("hidden", [False, True])
def test_maps_that_carry_noise_are_silent_at_the_dense_layer(hidden: bool) -> None:
    for normalised in (False, True):
        spec = image_spec((3, 6, 6), normalised=normalised)
        for filters in ((8,), (8, 9)):
            result = placed(conv_net(spec, filters), spec, hidden=hidden)
            features = layer_input(result.model, result.layer.name, image_batch(spec, 16).inputs)
            assert bool((features[:, ~result.carried.holds_data] == 0).all())
            assert bool(features[:, result.carried.where].any())


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_is_neutralised_by_its_own_parameters(bias: bool, hidden: bool) -> None:
    spec = image_spec((3, 6, 6), normalised=True)
    model = conv_net(spec, (8, 8), norm=True, bias=bias)
    result = placed(model, spec, hidden=hidden)
    assert arrival_error(result, spec) <= 2e-5
    for before, after in zip(model.buffers(), result.model.buffers(), strict=True):
        assert torch.equal(before, after)


def test_stride_two_becomes_space_to_depth() -> None:
    spec = image_spec((3, 7, 6))
    result = placed(conv_net(spec, (4, 12, 13), stride=2), spec, hidden=True)
    assert arrival_error(result, spec) <= 1e-5
    with pytest.raises(NotApplicable, match=r"11 filters, but 12 feature maps"):
        placed(conv_net(spec, (4, 11, 13), stride=2), spec, hidden=False)


def test_missing_padding_takes_more_maps() -> None:
    spec = image_spec((1, 8, 8))
    result = placed(conv_net(spec, (4,), padding=0), spec, hidden=False)
    assert arrival_error(result, spec) <= 1e-6
    with pytest.raises(NotApplicable, match="feature maps are needed"):
        placed(conv_net(spec, (3,), padding=0), spec, hidden=False)


def test_a_stride_that_skips_pixels_is_refused() -> None:
    spec = image_spec((1, 8, 8))
    with pytest.raises(NotApplicable, match="never looks at some"):
        placed(conv_net(spec, (8, 40), kernel=1, stride=2), spec, hidden=False)


class Functional(nn.Module):
    """ReLUs that are functions, not modules; registered backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(20, 5)
        self.dense = nn.Linear(6 * 36, 20)
        self.conv = nn.Conv2d(1, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.dense(F.relu(self.conv(x)).flatten(1))))


class Residual(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.dense((F.relu(self.conv(x)) + x).flatten(1))))


def test_functional_relus_are_seen_and_residuals_refused() -> None:
    spec = image_spec((1, 6, 6), normalised=True)
    assert arrival_error(placed(Functional(), spec, hidden=True), spec) <= 1e-5
    with pytest.raises(NotApplicable, match="residual"):
        placed(Residual(), spec, hidden=False)


@pytest.mark.parametrize(
    ("between", "why"),
    [
        (nn.MaxPool2d(2), "keeps one value of each window"),
        (nn.Sigmoid(), "Sigmoid"),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2), "grouped"),
    ],
)
def test_what_cannot_be_passed_is_named(between: nn.Module, why: str) -> None:
    spec = image_spec((1, 6, 6))
    front = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), between, nn.Flatten())
    size = front(torch.zeros(1, 1, 6, 6)).shape[1]
    model = nn.Sequential(*front, nn.Linear(size, 20), nn.ReLU(), nn.Linear(20, 5))
    with pytest.raises(NotApplicable, match=why):
        placed(model, spec, hidden=False)


def test_batch_norm_in_train_mode_is_refused() -> None:
    spec = image_spec((1, 6, 6))
    known = knowing(spec, local=LocalTraining(batch_norm="train"))
    with pytest.raises(NotApplicable, match="statistics of the client's batch"):
        place(conv_net(spec, (4, 4), norm=True), known, layer=None, hiding=Hiding(False, torch.Generator()))


@pytest.mark.parametrize("normalised", [False, True])
def test_dense_layers_transmit_the_input_with_all_hiding_measures(normalised: bool) -> None:
    spec = image_spec((1, 5, 5), normalised=normalised)
    model = dense_net(spec, 40, 60, 30)
    result = placed(model, spec, hidden=True, layer="5")
    assert arrival_error(result, spec) <= 1e-5
    first, second = result.model[1], result.model[3]
    assert result.decode is not None
    # (1) permuted, (2) gains: each value takes one weight in each layer, and their product is undone.
    assert not torch.equal(result.decode.where, torch.arange(25))
    # An input has no dead features, so a carrier of the first layer has exactly one weight.
    weights = first.weight.detach()
    carriers = {int(weights[n].argmax()): n for n in range(40) if int(weights[n].count_nonzero()) == 1}
    assert sorted(carriers) == list(range(25))
    gains = torch.stack(
        [
            weights[carriers[v], v] * second.weight.detach()[w, carriers[v]]
            for v, w in enumerate(result.decode.where)
        ]
    )
    assert torch.allclose(gains, result.decode.gain, rtol=1e-6)
    assert float(gains.std()) > 0.1 and bool((gains > 0).all())
    # (3) mainly negative weights into the dead, (4) both signs out of them, zero between carriers.
    live = sorted(carriers.values())
    dead = [n for n in range(40) if n not in live]
    assert bool((first.weight[dead] != 0).all())
    assert 0.7 < float((first.weight[dead] < 0).float().mean()) < 1
    outgoing = second.weight[:, dead]
    assert 0.3 < float((outgoing < 0).float().mean()) < 0.7
    assert bool(((second.weight[result.decode.where][:, live] != 0).sum(dim=1) == 1).all())


@pytest.mark.parametrize("hidden", [False, True])
def test_batch_norm_between_dense_layers_is_neutralised(hidden: bool) -> None:
    spec = image_spec((1, 4, 4), normalised=True)
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(20)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(16, 20, bias=False),
        norm,
        nn.ReLU(),
        nn.Linear(20, 30),
        nn.ReLU(),
        nn.Linear(30, 5),
    ).eval()
    result = placed(model, spec, hidden=hidden, layer="4")
    assert arrival_error(result, spec) <= 1e-5
    features = layer_input(result.model, "4", image_batch(spec, 16).inputs)
    assert bool((features[:, ~result.carried.holds_data] == 0).all())


def test_dead_neurons_stay_dead_for_any_input() -> None:
    spec = image_spec((1, 4, 4), normalised=True)
    result = placed(dense_net(spec, 50, 20), spec, hidden=True, layer="3")
    corners = spec.to_model((torch.rand(500, 1, 4, 4) < 0.5).float())
    hidden = layer_input(result.model, "3", corners)
    assert bool((hidden[:, ~result.carried.holds_data] == 0).all())


def test_a_layer_too_narrow_for_the_input_is_refused() -> None:
    spec = image_spec((1, 6, 6))
    with pytest.raises(NotApplicable, match="35 neurons for 36 input values"):
        placed(dense_net(spec, 35, 20), spec, hidden=False, layer="3")
