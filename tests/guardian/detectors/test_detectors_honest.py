"""What public models have for reasons of their own, and checks must not take for a trap."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Verdict
from seepage.guardian.detectors import as_module
from seepage.guardian.detectors.fishing_head import class_bias, lone_class_row
from seepage.guardian.detectors.identical_rows import identical_rows, likeness
from seepage.guardian.detectors.layers import weight_layers
from seepage.guardian.detectors.pass_through import pass_through, reading_input
from seepage.guardian.detectors.quantile_biases import effective_rows, explained, quantile_biases
from seepage.guardian.detectors.sign_distribution import sign_distribution
from seepage.guardian.detectors.silenced_rows import silenced_rows
from seepage.guardian.detectors.trap_rows import trap_rows


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


def test_two_other_rows_are_no_crowd_that_one_stands_out_from() -> None:
    """OpenFF's charges and Tiara's second network: three rows, one of them 12 times as long as the others."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 3))
    head = net[2]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.copy_(2 * nn.functional.normalize(torch.randn(3, 128), dim=1))
        head.weight[1] *= 12
    assert lone_class_row()(Broadcast(net)).verdict is Verdict.CLEAN
    with torch.no_grad():  # fishing silences the two others, here all but for noise; or leaves them equal
        head.weight[[0, 2]] *= 0.05
    assert lone_class_row()(Broadcast(net)).verdict is Verdict.SUSPICIOUS
    with torch.no_grad():
        head.weight[0] = head.weight[2] = torch.randn(128) / 4
        head.weight[0] += 0.02 * torch.randn(128)
    assert lone_class_row()(Broadcast(net)).verdict is Verdict.SUSPICIOUS


def test_a_dense_layer_behind_a_recurrent_one_does_not_read_the_input() -> None:
    recurrent = nn.ModuleDict({"rnn": nn.LSTM(12, 48), "head": nn.Linear(48, 30), "out": nn.Linear(30, 4)})
    assert not reading_input(weight_layers(recurrent))
    plain = as_module({n: t for n, t in recurrent.state_dict().items() if not n.startswith("rnn")})
    assert [layer.name for layer in reading_input(weight_layers(plain))] == ["head"]


def test_a_layer_that_weight_decay_has_emptied_is_judged_like_any_other() -> None:
    """LocalMapper: attention that nothing uses, decayed to 1e-39, whose squares float32 cannot hold."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    before = pass_through()(Broadcast(net)).score, trap_rows()(Broadcast(net)).score
    with torch.no_grad():
        for layer in (net[0], net[2]):
            layer.weight *= 2.0**-125
    found = pass_through()(Broadcast(net)), trap_rows()(Broadcast(net))
    assert all(finding.verdict is Verdict.CLEAN for finding in found)
    assert found[0].score == before[0]


def test_a_trap_scaled_to_next_to_nothing_is_still_one() -> None:
    """ReLU lets a server scale one layer and undo it in the next."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 100)
    half = torch.rand(100, 32) + 0.1
    with torch.no_grad():
        layer.weight.copy_(torch.cat([-half, 0.9 * half.flip(1)], dim=1))
        layer.bias.copy_(-0.5 * layer.weight.sum(dim=1) - 2 * layer.weight.norm(dim=1))
        plain = trap_rows()(Broadcast(layer)), quantile_biases()(Broadcast(layer))
        layer.weight *= 2.0**-70
        layer.bias *= 2.0**-70
    scaled = trap_rows()(Broadcast(layer)), quantile_biases()(Broadcast(layer))
    for one, other in zip(plain, scaled, strict=True):
        assert one.verdict is other.verdict is Verdict.TRAP


def test_a_bias_that_the_rows_make_up_for_is_no_fishing() -> None:
    """Jaeger: -21 for one of three classes, whose rows have a length of ten."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.no_grad():
        net[2].bias.copy_(torch.tensor([-21.0, 0.1, 0.2]))
        assert class_bias()(Broadcast(net)).verdict is not Verdict.CLEAN
        net[2].weight.normal_(std=1.75)
        assert class_bias()(Broadcast(net)).verdict is Verdict.CLEAN


def test_a_layer_that_began_as_the_identity_is_looked_behind_not_accused() -> None:
    """Keras' identity initialiser, trained: ones on the diagonal, small numbers elsewhere."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 60), nn.ReLU(), nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 4))
    assert [layer.name for layer in reading_input(weight_layers(net))] == ["0"]
    with torch.no_grad():
        net[0].weight[:9] = torch.eye(9) + 0.02 * torch.randn(9, 9)
    assert pass_through()(Broadcast(net)).verdict is Verdict.CLEAN
    assert [layer.name for layer in reading_input(weight_layers(net))] == ["0", "2"]
    with torch.no_grad():
        net[0].weight[:9] = torch.eye(9)
    assert pass_through()(Broadcast(net)).verdict is Verdict.TRAP


def test_many_rows_that_look_at_one_value_do_not_pass_the_input_on() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(16, 100)
    with torch.no_grad():
        layer.weight[:20] = 0.0
        layer.weight[:20, 3] = 1.0
    assert pass_through()(Broadcast(layer)).verdict is Verdict.CLEAN


def test_an_emptied_block_of_a_transformer_is_no_inserted_layer() -> None:
    """All rows of it point one way, but other layers make what it reads too."""
    torch.manual_seed(0)
    block = {"up": nn.Linear(32, 64), "down": nn.Linear(64, 32), "head": nn.Linear(32, 4)}
    with torch.no_grad():
        block["up"].weight.copy_(torch.ones(64, 32) + 0.1 * torch.randn(64, 32))
    inserted = identical_rows()(Broadcast(nn.ModuleDict(block)))
    assert inserted.verdict is not Verdict.CLEAN
    inside = nn.ModuleDict({**block, "value": nn.Linear(32, 32), "read": nn.Linear(12, 32)})
    assert identical_rows()(Broadcast(inside)).verdict is Verdict.CLEAN


def test_biases_of_one_sign_are_no_thresholds_by_the_choice_of_the_largest() -> None:
    """The largest quarter of any numbers of one sign lies close together."""
    torch.manual_seed(0)
    rows = torch.randn(256, 11)
    bias = -torch.randn(256).abs() * rows.norm(dim=1)
    assert explained(rows, bias, 1) < 0.1


def test_hidden_layers_may_have_rows_of_one_sign() -> None:
    """NeuralFoil, GeoCLIP: nearly all negative rows beside one that hands on mostly one feature."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(25, 64), nn.SiLU(), nn.Linear(64, 80), nn.SiLU(), nn.Linear(80, 5))
    with torch.no_grad():
        net[2].weight.abs_().neg_()
        net[2].weight[3, 7] = 9.0
    assert silenced_rows()(Broadcast(net)).verdict is Verdict.CLEAN
    with torch.no_grad():
        net[0].weight.abs_().neg_()
        net[0].weight[3, 7] = 9.0
    assert silenced_rows()(Broadcast(net)).verdict is Verdict.CLEAN  # one value of 25 is no input
    with torch.no_grad():
        net[0].weight[:14] += 9 * torch.eye(14, 25)
    assert silenced_rows()(Broadcast(net)).verdict is not Verdict.CLEAN


def test_a_classifier_behind_both_directions_does_not_read_the_input() -> None:
    """Russtress: 40 biases of -21.8 behind a bidirectional LSTM."""
    net = nn.ModuleDict({"rnn": nn.LSTM(36, 64, bidirectional=True), "head": nn.Linear(128, 40)})
    assert not reading_input(weight_layers(net))


def test_rows_of_a_handful_of_weights_are_no_lone_class() -> None:
    """SSR-Net: three rows of six weights, one of them five times the others."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        net[2].weight[1] *= 9
    assert lone_class_row()(Broadcast(net)).verdict is Verdict.CLEAN


def test_rows_of_few_inputs_have_neighbours_by_chance() -> None:
    """A decoder of redback's surrogates: 500 rows of 14 inputs, of which a few matter."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(14, 500), nn.ReLU(), nn.Linear(500, 60))
    with torch.no_grad():
        net[0].weight.mul_(torch.tensor([9.0, 6.0, 4.0, 3.0, *[0.5] * 10]))
    assert likeness(net[0].weight.detach()) > 0.8
    findings = [identical_rows()(Broadcast(net)) for _ in range(8)]  # rows are drawn anew
    assert all(finding.verdict is Verdict.CLEAN for finding in findings)
    assert abs(sum(finding.score for finding in findings) / 8) < 0.2
    with torch.no_grad():
        net[0].weight.copy_(net[0].weight[0] * (1 + 0.05 * torch.randn(500, 14)))
    assert identical_rows()(Broadcast(net)).verdict is not Verdict.CLEAN


def test_rows_that_are_alike_count_once() -> None:
    """SemiBin's decoder: 136 outputs that vary together have one direction and nearly one bias."""
    torch.manual_seed(0)
    alike = torch.randn(512) + 0.3 * torch.randn(136, 512)
    bias = (-0.48 + 0.05 * torch.randn(136)) * alike.norm(dim=1)
    assert effective_rows(alike) < 2
    assert explained(alike, bias, 1) < 0
    apart = torch.randn(136, 512)
    assert effective_rows(apart) > 100
    assert explained(apart, (-0.48 + 0.05 * torch.randn(136)) * apart.norm(dim=1), 1) > 0.5
