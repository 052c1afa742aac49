"""What crafted models do on harmless inputs, and the statistics behind it against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage.core.errors import DataError, ModelError, NotApplicable
from seepage.core.types import Broadcast, InputSpec, Modality, Verdict
from seepage.guardian.check import guard
from seepage.guardian.detectors import DETECTORS, looking_at
from seepage.guardian.detectors.gradient_share import d_snr
from seepage.guardian.detectors.gradient_share import measure as measure_share
from seepage.guardian.detectors.harmless import Probe, noise
from seepage.guardian.detectors.layers import same_draws
from seepage.guardian.detectors.lone_neurons import lone_share
from seepage.guardian.detectors.rare_neurons import rare_share
from seepage.guardian.detectors.transmission import arrival

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=5)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 5)
    )


def sample(count: int = 128) -> torch.Tensor:
    """Pictures of nobody, with shapes and brightness."""
    return noise(SPEC, count, white=False, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", looking_at("behaviour"))
@pytest.mark.parametrize("seed", range(4))
def test_fresh_nets_behave(name: str, seed: int) -> None:
    assert DETECTORS[name](spec=SPEC, sample=sample())(Broadcast(net(seed))).verdict is Verdict.CLEAN
    if name != "rare_neurons":
        assert DETECTORS[name](spec=SPEC)(Broadcast(net(seed))).verdict is Verdict.CLEAN


def test_neurons_with_quantiles_of_the_data_for_biases_are_seen_on_a_sample() -> None:
    """Each fires for a tenth of the data, each for others (QBI); which data the server used is not known."""
    model, theirs = net(), noise(SPEC, 400, white=False, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        model[1].bias.zero_()
        model[1].bias.copy_(-model[1](theirs.flatten(1)).quantile(0.9, dim=0))
    finding = DETECTORS["rare_neurons"](spec=SPEC, sample=sample())(Broadcast(model))
    assert finding.verdict is Verdict.SUSPICIOUS
    assert finding.layer == "1"
    assert guard(model, spec=SPEC, sample=sample()).verdict is not Verdict.CLEAN
    with pytest.raises(NotApplicable, match="32 or more examples"):
        DETECTORS["rare_neurons"](spec=SPEC, sample=sample(31))(Broadcast(model))
    with pytest.raises(NotApplicable, match="32 or more examples"):
        DETECTORS["rare_neurons"](spec=SPEC)(Broadcast(model))


def test_rare_share_by_counting_pairs() -> None:
    torch.manual_seed(0)
    response = torch.randn(90, 1) + torch.randn(90, 20) - 2.5
    response[:, :8] += 9.0
    response[:, 8:10] -= 90.0  # dead
    share, own = rare_share(response)
    assert share == 10 / 20
    pairs = np.corrcoef(response[:, 10:].T.numpy())
    mean = (pairs.sum() - 10) / 90
    assert own == pytest.approx(math.sqrt(1 - mean), abs=1e-4)


def test_a_layer_that_the_input_does_not_reach_is_not_judged_by_rare_neurons() -> None:
    model = net()
    with torch.no_grad():
        model[3].bias.fill_(-0.3)
    before = DETECTORS["rare_neurons"](spec=SPEC, sample=sample())(Broadcast(model))
    assert before.verdict is Verdict.CLEAN
    assert before.layer == "1"


def test_transmitted_input_is_suspicious() -> None:
    model = net()
    with torch.no_grad():
        model[1].weight[:64] = torch.diag(0.5 + torch.rand(64))[torch.randperm(64)]
        model[1].bias[:64] = 0
    finding = DETECTORS["transmission"](spec=SPEC)(Broadcast(model))
    assert finding.verdict is Verdict.SUSPICIOUS
    assert finding.layer == "3"


def test_one_class_alone_in_the_gradient_is_suspicious() -> None:
    model = net()
    with torch.no_grad():
        model[5].weight[[0, 1, 2, 4]] = 0
        model[5].bias.fill_(1000.0)
        model[5].bias[3] = 0
    finding = DETECTORS["gradient_share"](spec=SPEC)(Broadcast(model))
    assert finding.verdict is Verdict.SUSPICIOUS
    assert finding.score > 3  # one label has a thousand times the gradient of all others together
    assert "D-SNR" in finding.evidence


def test_one_input_alone_in_the_gradient_is_honest() -> None:
    """A silent layer lets one input through: its gradient is all there is, whatever its label."""
    model = net()
    with same_draws(0):
        inputs = Probe(SPEC).inputs(16, like=model).flatten(1)
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].weight[0] = inputs[3] - inputs.mean(dim=0)
        response = inputs @ model[1].weight[0]
        first, second = response.topk(2).values
        model[1].bias.fill_(-1.0)
        model[1].bias[0] = -(first + second) / 2
    with same_draws(0):
        assert DETECTORS["gradient_share"](spec=SPEC)(Broadcast(model)).verdict is Verdict.CLEAN


def test_d_snr_of_a_layer_is_that_of_separate_backward_passes() -> None:
    model = net().eval()
    probe = Probe(SPEC)
    with same_draws(0):
        inputs = probe.inputs(16, like=model)
    best = -math.inf
    for name, _ in model.named_parameters():
        if not name.endswith("weight"):
            continue
        norms = []
        for label in range(5):
            model.zero_grad()
            total = torch.stack([F.cross_entropy(model(x[None]), torch.tensor([label])) for x in inputs])
            total.mean().backward()
            norms.append(float(model.get_parameter(name).grad.norm()))
        best = max(best, math.log10(max(norms) / (sum(norms) - max(norms))))
    with same_draws(0):
        assert measure_share(model, probe).score == pytest.approx(best, abs=1e-4)
    assert d_snr(torch.zeros(3)) == 0


def test_lone_share_by_counting() -> None:
    torch.manual_seed(0)
    fires = torch.rand(12, 60) < 0.1
    lone = sum(1 for column in fires.T if sum(column.tolist()) == 1)
    active = sum(1 for column in fires.T if sum(column.tolist()) > 0)
    assert lone_share(fires) == pytest.approx(lone / active)
    assert lone_share(torch.zeros(4, 40).bool()) == 0


def test_filters_pruned_to_single_weights_are_not_judged_by_transmission() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 20), nn.Linear(20, 5)
    )
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[:, 0, 1, 1] = 1.0
    with pytest.raises(NotApplicable, match="pruned to single weights"):
        DETECTORS["transmission"](spec=SPEC)(Broadcast(model))
    with torch.no_grad():
        model[0].weight.add_(1e-3)  # the same transmission, but not by sparsity
    assert DETECTORS["transmission"](spec=SPEC)(Broadcast(model)).verdict is Verdict.SUSPICIOUS


def test_arrival_ratio_of_a_known_mixture() -> None:
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 20000, 1, generator=generator)
    # feature = x + 0.5 * noise: signal over noise is 1 / 0.25 = 4
    assert arrival(x, x + 0.5 * other) == pytest.approx(4, rel=0.05)


def test_noise_stays_in_the_value_range_and_is_normalised() -> None:
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=5, mean=(0.5,), std=(0.25,))
    drawn = noise(spec, 50, white=False, generator=torch.Generator().manual_seed(0))
    raw = spec.to_raw(drawn)
    assert float(raw.min()) >= 0
    assert float(raw.max()) <= 1
    assert float(raw.mean(dim=(1, 2, 3)).std()) > 0.05  # bright ones and dark ones


def test_the_model_is_left_in_its_mode_and_unchanged() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 5)
    ).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in looking_at("behaviour"):
        DETECTORS[name](spec=SPEC, sample=sample())(Broadcast(model))
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", looking_at("behaviour"))
def test_bad_input(name: str) -> None:
    with pytest.raises(NotApplicable, match="shape of the inputs is not known"):
        DETECTORS[name]()(Broadcast(net()))
    with pytest.raises(ModelError, match="cannot be run on a batch"):
        DETECTORS[name](spec=SPEC, sample=sample())(
            Broadcast(nn.Sequential(nn.Flatten(), nn.Linear(63, 20), nn.Linear(20, 5)))
        )
    with pytest.raises(DataError, match="at least 8 public examples"):
        DETECTORS[name](spec=SPEC, sample=torch.rand(3, 1, 8, 8))(Broadcast(net()))
