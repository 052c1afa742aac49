"""Each signature on a hand-built positive, on honest nets and on what looks similar but is harmless."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from seepage.core.errors import ModelError, NotApplicable
from seepage.core.types import Broadcast, Verdict
from seepage.guardian.detectors import DETECTORS, looking_at
from seepage.guardian.detectors.fishing_head import others_share
from seepage.guardian.detectors.identical_rows import likeness
from seepage.guardian.detectors.layers import as_module, same_draws, sampled, weight_layers
from seepage.guardian.detectors.pass_through import passed
from seepage.guardian.detectors.quantile_biases import explained
from seepage.guardian.detectors.row_balance import sum_variance
from seepage.guardian.detectors.sign_distribution import distance
from seepage.guardian.detectors.trap_rows import half_spreads


def dense(seed: int = 0, inputs: int = 64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 100), nn.ReLU(), nn.Linear(100, 40), nn.ReLU(), nn.Linear(40, 10))


def conv(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 36, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def set_trap_rows(layer: nn.Linear, scale: float = 0.9) -> None:
    """Algorithm 1 of Boenisch et al., written out here once more."""
    rng = np.random.default_rng(0)
    size = layer.in_features
    for row in layer.weight.data:
        negatives = -np.abs(rng.normal(0, 0.5, size // 2))
        values = np.concatenate([negatives, -scale * negatives])
        row.copy_(torch.from_numpy(rng.permutation(values)).to(row))
    layer.bias.data.zero_()


def pass_through_filters(model: nn.Sequential) -> None:
    for layer, places in ((model[0], [5, 2, 9]), (model[2], [1, 7, 3])):
        sources = [0, 1, 2] if layer is model[0] else [5, 2, 9]
        for place, source, gain in zip(places, sources, (0.7, 1.9, 1.2), strict=True):
            layer.weight.data[place] = 0
            layer.weight.data[place, source, 1, 1] = gain


def quantile_bias(layer: nn.Linear) -> None:
    layer.weight.data.normal_(0, 0.5)
    weight = layer.weight.data
    layer.bias.data = -(0.5 * weight.sum(dim=1) + 2.33 * 0.29 * weight.norm(dim=1))


def ladder(layer: nn.Linear) -> None:
    layer.weight.data.fill_(1 / layer.in_features)
    layer.bias.data = -torch.linspace(0, 1, layer.out_features)


def lone_row(layer: nn.Linear) -> None:
    layer.weight.data[1:] = 0


def huge_bias(layer: nn.Linear) -> None:
    layer.bias.data.fill_(1000.0)
    layer.bias.data[3] = 0


def negative_filters(model: nn.Sequential) -> None:
    for layer in (model[0], model[2]):  # an input has to pass both
        layer.weight.data[3:] = -layer.weight.data[3:].abs()
        layer.weight.data[0, 1, 1, 1] = 2.0  # most of the energy of a filter that is not silent


POSITIVES: dict[str, tuple[Callable[[], nn.Sequential], Callable[[nn.Sequential], None], str]] = {
    "pass_through": (conv, pass_through_filters, "0"),
    "trap_rows": (dense, lambda m: set_trap_rows(m[0]), "0"),
    "row_balance": (dense, lambda m: set_trap_rows(m[0], scale=0.97), "0"),
    "identical_rows": (dense, lambda m: ladder(m[0]), "0"),
    "quantile_biases": (dense, lambda m: quantile_bias(m[0]), "0"),
    "silenced_rows": (conv, negative_filters, "0"),
    "lone_class_row": (dense, lambda m: lone_row(m[4]), "4"),
    "class_bias": (dense, lambda m: huge_bias(m[4]), "4"),
    "sign_distribution": (dense, lambda m: set_trap_rows(m[0], scale=0.03), "0"),
}


STATISTICS = {"row_balance", "silenced_rows", "class_bias", "sign_distribution"}
"""What they measure some honest model has as well: they may raise a suspicion and no more."""


@pytest.mark.parametrize("name", looking_at("weights"))
def test_hand_built_positive_is_found_and_names_its_layer(name: str) -> None:
    build, craft, layer = POSITIVES[name]
    model = build()
    craft(model)
    finding = DETECTORS[name]()(Broadcast(model))
    assert finding.verdict is (Verdict.SUSPICIOUS if name in STATISTICS else Verdict.TRAP)
    assert finding.layer == layer
    assert f"'{layer}'" in finding.evidence


@pytest.mark.parametrize("build", [dense, conv])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", looking_at("weights"))
def test_fresh_honest_nets_are_clean(name: str, build: Callable[[int], nn.Module], seed: int) -> None:
    try:
        assert DETECTORS[name]()(Broadcast(build(seed))).verdict is Verdict.CLEAN
    except NotApplicable as reason:  # convolutions mix the input before any dense layer reads it
        assert (build is conv and "an input reaches" in str(reason)) or "reads the input" in str(reason)


def test_a_depthwise_filter_and_a_few_single_entries_are_no_pass_through() -> None:
    """EfficientNets and MobileNets have them: nothing is carried while other convolutions mix."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 32, 1))
    for row in range(4):
        for layer in (model[1], model[2]):
            layer.weight.data[row] = 0
            layer.weight.data[row, 0, 0, 0] = 1.0
    assert DETECTORS["pass_through"]()(Broadcast(model)).verdict is Verdict.CLEAN
    model[0].weight.data[:3] = 0
    model[0].weight.data[[0, 1, 2], [0, 1, 2], 1, 1] = 1.0  # now the input does pass
    assert DETECTORS["pass_through"]()(Broadcast(model)).verdict is not Verdict.CLEAN


def test_balanced_rows_behind_convolutions_are_training() -> None:
    """A trap has to read the input; what lies behind convolutions is balanced by training."""
    model = conv()
    model[5].weight.data -= model[5].weight.data.mean(dim=1, keepdim=True)
    with pytest.raises(NotApplicable, match="an input reaches"):
        DETECTORS["row_balance"]()(Broadcast(model))
    flat = nn.Sequential(copy.deepcopy(model[5]), nn.ReLU(), nn.Linear(64, 10))
    assert DETECTORS["row_balance"]()(Broadcast(flat)).verdict is not Verdict.CLEAN


def test_the_rows_looked_at_are_drawn_anew() -> None:
    rows = torch.arange(200.0).unsqueeze(1)
    assert not torch.equal(sampled(rows, 64), sampled(rows, 64))
    with same_draws(3):
        once = sampled(rows, 64)
    with same_draws(3):
        assert torch.equal(once, sampled(rows, 64))


def test_pruned_filters_are_no_pass_through() -> None:
    # At 90 % sparsity four in ten 3x3 filters of one channel keep a single weight.
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 64, 3)
    layer.weight.data[torch.rand(layer.weight.shape) < 0.9] = 0
    single = (layer.weight.data != 0).flatten(1).sum(dim=1) == 1
    assert int(single.sum()) > 10
    assert DETECTORS["pass_through"]()(Broadcast(layer)).verdict is Verdict.CLEAN


def test_dense_pass_through_with_random_weights_elsewhere() -> None:
    # Appendix B, measures 1 to 4: 20 values, 30 neurons; 20 of the 50 inputs carry data, the rest is noise.
    torch.manual_seed(0)
    layer = nn.Linear(50, 30)
    data, neurons = torch.randperm(50)[:20], torch.randperm(30)[:20]
    block = layer.weight.data[neurons]
    block[:, data] = torch.diag(0.5 + torch.rand(20))
    layer.weight.data[neurons] = block
    assert DETECTORS["pass_through"]()(Broadcast(nn.Sequential(layer))).verdict is Verdict.TRAP


def test_half_spreads_against_a_plain_loop() -> None:
    torch.manual_seed(1)
    rows = torch.randn(4, 40)
    rows[:, :20] = -rows[:, :20].abs()
    rows[:, 20:] = rows[:, 20:].abs()
    wanted = []
    for row in rows.numpy():
        below, above = np.log(np.sort(-row[row < 0])), np.log(np.sort(row[row > 0]))
        wanted.append((above - below).std(ddof=1) / below.std(ddof=1) * math.sqrt(20))
    assert np.allclose(half_spreads(rows).numpy(), wanted, rtol=1e-4)


def test_balance_sees_through_gains_of_colour_channels() -> None:
    torch.manual_seed(2)
    balanced = torch.randn(200, 3, 20)
    balanced = balanced - balanced.mean(dim=(1, 2), keepdim=True)
    gained = balanced * torch.tensor([0.5, 2.0, 1.3]).view(1, 3, 1)
    assert sum_variance(gained.flatten(1), 1) > 0.1
    assert sum_variance(gained.flatten(1), 3) < 1e-6


def test_ks_distance_is_scipys() -> None:
    torch.manual_seed(3)
    a, b = torch.rand(70), torch.rand(45) ** 2
    assert distance(a, b) == pytest.approx(stats.ks_2samp(a.numpy(), b.numpy()).statistic, abs=1e-6)


def test_likeness_of_random_and_of_half_identical_rows() -> None:
    torch.manual_seed(4)
    rows = torch.randn(60, 400)
    assert likeness(rows) < 0.2
    rows[:30] = rows[0] * torch.linspace(1, 2, 30).unsqueeze(1)
    assert likeness(rows) == pytest.approx(0.5, abs=0.1)


def test_others_share_without_bias_uses_the_median_row() -> None:
    rows = torch.full((10, 6), 3.0)
    rows[4] = torch.arange(6.0)
    assert others_share(rows) == (0.0, 4)
    assert others_share(torch.zeros(3, 4))[0] == 1.0


def test_biases_that_follow_their_rows_upwards_are_training() -> None:
    torch.manual_seed(5)
    rows = torch.randn(100, 30)
    sums, norm = rows.sum(dim=1), rows.norm(dim=1)
    noise = 0.1 * torch.randn(100)
    assert explained(rows, 0.5 * sums + noise, 1) < 0
    assert explained(rows, -0.5 * sums - norm + noise, 1) > 1
    # Fitted without any rest, but upwards: no division by a rest of zero.
    assert explained(torch.eye(40), torch.ones(40), 1) == -3


def test_explained_by_hand() -> None:
    """A quarter of the rows are thresholds, b = -.5 |w| up to .05: level over scatter, less what chance has
    and what the choice of the largest quarter shows of any numbers."""
    generator = torch.Generator().manual_seed(6)
    rows = torch.randn(80, 50, generator=generator)
    rows = rows / rows.norm(dim=1, keepdim=True)
    crafted = -0.5 + 0.05 * torch.randn(20, generator=generator)
    bias = torch.cat([crafted, 0.01 * torch.randn(60, generator=generator)])
    design = np.stack([np.ones(20), rows[:20].sum(dim=1).numpy()], axis=1)
    fit, rest, *_ = np.linalg.lstsq(design, crafted.numpy(), rcond=None)
    left = float(rest[0]) / 18
    made = float(np.mean((design @ np.minimum(fit, 0)) ** 2)) - 2 / 20 * left
    wanted = 0.5 * math.log10(made / left) + 0.25 * math.log10(made) - 1.5 / math.sqrt(20)
    largest = np.sort(np.abs(np.random.default_rng(0).standard_normal(400_000)))[-100_000:]
    by_choice = math.log10(largest.mean() / largest.std())
    assert explained(rows, bias, 1) == pytest.approx(wanted - by_choice, abs=0.01)
    assert wanted > 0.4


@pytest.mark.parametrize("every", [2, 3])  # a quarter is no longer seen: honest regressions look like that
def test_some_quantile_rows_among_honest_ones(every: int) -> None:
    model = dense()
    kept = copy.deepcopy(model[0])
    quantile_bias(model[0])
    honest = torch.arange(100) % every != 1
    model[0].weight.data[honest] = kept.weight.data[honest]
    model[0].bias.data[honest] = kept.bias.data[honest]
    assert DETECTORS["quantile_biases"]()(Broadcast(model)).verdict is not Verdict.CLEAN


def test_lone_weights_that_just_escaped_pruning_are_no_pass_through() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 10)
    layer.weight.data[:3] *= 0.3  # classes that hardly count lose nearly all of their weights
    limit = layer.weight.data[:3].abs().flatten(1).amax(dim=1).min() * 0.999
    layer.weight.data[layer.weight.data.abs() < limit] = 0
    single = (layer.weight.data != 0).sum(dim=1) == 1
    assert bool(single.any())
    layers = weight_layers(nn.Sequential(layer))
    assert passed(layers[0]).count == 0
    layer.weight.data[single] *= 10  # made, not left over
    assert passed(weight_layers(nn.Sequential(layer))[0]).count == 1


def test_layers_of_a_state_dict_are_those_of_the_model() -> None:
    model = conv()
    from_model, from_tensors = weight_layers(model), weight_layers(as_module(model.state_dict()))
    assert [(a.name, a.kind, a.maps) for a in from_model] == [(b.name, b.kind, b.maps) for b in from_tensors]
    assert [a.maps for a in from_model] == [1, 1, 16, 1]
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(from_model, from_tensors, strict=True))


def test_another_architecture_is_a_trap_and_the_same_weights_are_not() -> None:
    model = dense()
    inserted = nn.Sequential(nn.Linear(64, 64), *copy.deepcopy(model))
    assert DETECTORS["round_jump"](previous=model)(Broadcast(model)).verdict is Verdict.CLEAN
    finding = DETECTORS["round_jump"](previous=model)(Broadcast(inserted))
    assert finding.verdict is Verdict.TRAP
    assert "architecture" in finding.evidence


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", looking_at("weights"))
def test_broken_weights_are_refused_in_one_sentence(name: str, value: float) -> None:
    model = dense()
    model[2].weight.data[3, 3] = value
    with pytest.raises(ModelError, match=r"'2\.weight' hold NaN or infinite"):
        DETECTORS[name]()(Broadcast(model))


@pytest.mark.parametrize("name", looking_at("weights"))
def test_nothing_to_check_is_said(name: str) -> None:
    with pytest.raises(ModelError, match="no floating-point weights"):
        DETECTORS[name]()(Broadcast(nn.ReLU()))
    with pytest.raises(NotApplicable, match=r"could not be checked|no classifier to check"):
        DETECTORS[name]()(Broadcast(nn.BatchNorm1d(4)))


def test_float16_and_bfloat16_are_read() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        model = dense().to(dtype)
        set_trap_rows(model[0])
        assert DETECTORS["row_balance"]()(Broadcast(model)).verdict is Verdict.SUSPICIOUS
