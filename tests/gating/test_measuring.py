"""The gate on updates whose leaks are known: by construction, by the attacks themselves, or absent."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.attacks.fishing.class_fishing import class_fishing
from seepage.attacks.fishing.dying_cuts import dying_cut, dying_everyone
from seepage.attacks.fishing.head import find_head, head_features
from seepage.attacks.traps.trap_weights import trap_weights
from seepage.core.errors import DataError
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Update,
    UpdateKind,
)
from seepage.gating import gate
from seepage.gating.attacked import PICTURE
from seepage.gating.report import Exposure, GateReport
from seepage.gating.shares import layer_shares
from seepage.protocol import client

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=4)


def net(width: int = 60) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.ReLU(), nn.Linear(width, 4))


def private(count: int, seed: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.rand(count, 1, 6, 6, generator=generator), torch.arange(count) % 4)


def one_owner(model: nn.Sequential, batch: Batch, who: int) -> None:
    """Neuron 0 fires for one example alone, all others for everybody: just that one can be read."""
    flat = batch.inputs.flatten(1)
    others = torch.cat([flat[:who], flat[who + 1 :]])
    with torch.no_grad():
        direction = torch.linalg.lstsq(
            torch.cat([flat[who : who + 1], others]),
            torch.cat([torch.ones(1, 1), -torch.ones(len(others), 1)]),
        ).solution.squeeze(1)
        model[1].weight.copy_(0.1 * model[1].weight)
        model[1].bias.fill_(5.0)
        model[1].weight[0] = direction
        model[1].bias[0] = 0.0


def test_the_example_that_owns_a_neuron_is_named_with_its_layer() -> None:
    model, batch = net(), private(10)
    one_owner(model, batch, 7)
    for quick in (True, False):
        report = gate(model, None, batch, spec=SPEC, quick=quick, advice=False, budget=0.05)
        assert 7 in report.exposed and report.answer == "block"
        mine = [e for e in report.exposures if e.example == 7]
        assert {e.layer for e in mine} & {"1"}
    exact = [e for e in report.exposures if e.how == "exact"]
    assert 7 in {e.example for e in exact} and "recovered exactly" in report.text()


def test_a_gradient_that_hides_everybody_passes() -> None:
    """All examples are one picture: they cannot be told apart by rows, and one is not in the batch."""
    model = net(3)
    with torch.no_grad():
        model[1].bias.fill_(9.0)  # every neuron fires for every example
    report = gate(model, None, private(40), spec=SPEC, quick=True)
    assert (report.answer, report.exposed) == ("pass", [])


def test_nothing_that_was_not_measured_passes() -> None:
    class Sealed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :4] * self.scale

    for quick in (True, False):
        report = gate(Sealed(), None, private(4), spec=SPEC, quick=quick)
        assert report.answer == "not measured" and "not measured" in report.text()


def test_a_trap_behind_convolutions_is_named_though_the_gate_has_no_secret() -> None:
    torch.manual_seed(3)
    honest = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(216, 80),
        nn.ReLU(),
        nn.Linear(80, 4),
    )
    sent = trap_weights(hidden=True, read="rows").craft(honest, [], Knowledge(input=SPEC))
    assert sent is not None
    report = gate(sent.model, None, private(8), spec=SPEC, advice=False, budget=0.05)
    exact = {e.example for e in report.exposures if e.how == "exact"}
    assert len(exact) >= 6  # as inputs, not as features alone


def test_an_example_that_is_alone_in_the_gradient_is_isolated() -> None:
    """Class fishing (Wen et al. 2022, Section 3.1): only the target's example sends a gradient back."""
    batch = Batch(private(6).inputs, torch.tensor([1, 3, 0, 3, 2, 1]))
    sent = class_fishing(target_class=0).craft(net(), [], Knowledge(input=SPEC))
    assert sent is not None
    report = gate(sent.model, None, batch, spec=SPEC, quick=True)
    assert [e.example for e in report.exposures if e.how == "isolated"] == [2]
    assert not [e for e in gate(net(), None, batch, spec=SPEC, quick=True).exposures if e.how == "isolated"]


def test_whom_a_cut_in_several_local_steps_catches_alone_is_exposed() -> None:
    """The network dies after the step that catches the example with the highest score, and nobody else."""
    local = LocalTraining(algorithm="fedavg", lr=0.05, epochs=3)
    known = Knowledge(input=SPEC, local=local, loss="cross_entropy")
    batch = Batch(private(6).inputs, torch.tensor([1, 3, 0, 3, 2, 1]) % 3)  # nobody is of class 3
    head = find_head(net(), SPEC)
    everyone, dying = dying_everyone(net(), head, 3, known)
    order = (head_features(everyone, head, batch.inputs) @ dying.u).sort(descending=True)
    crafted = dying_cut(everyone, head, 3, dying, float(order.values[:2].mean()))
    report = gate(crafted, None, batch, spec=SPEC, local=local, quick=True)
    assert {e.example for e in report.exposures} == {int(order.indices[0])}


def test_advice_was_measured_and_holds() -> None:
    model, batch = net(), private(4)
    report = gate(model, None, batch, spec=SPEC, budget=0.05)
    noise = next(a for a in report.advice if "noise" in a.change)
    assert noise.exposed == 0 and "measured on this update" in noise.text()
    assert report.to_dict()["answer"] == "block" and "4 of 4" in report.log_line()


def test_tensors_alone_are_taken_for_what_local_training_sends() -> None:
    model, batch = net(), private(3)
    sent = client(LocalTraining())(Broadcast(model), batch)
    same = Update(kind=UpdateKind.GRADIENT, tensors=sent.tensors, num_examples=3)
    options = {"spec": SPEC, "advice": False, "budget": 0.05}
    assert (
        gate(model, dict(sent.tensors), batch, **options).exposed
        == gate(model, same, batch, **options).exposed
    )
    nothing = {name: torch.zeros_like(t) for name, t in sent.tensors.items()}
    assert gate(model, nothing, batch, **options).exposed == []
    with pytest.raises(DataError, match="no example"):
        gate(model, None, Batch(torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.long)))


def test_pictures_are_judged_by_a_plateau() -> None:
    """Noise on an update makes pictures worse gradually; whom the gate names hardly depends on the limit."""
    model, batch = net(200), private(6)
    sent = client(LocalTraining())(Broadcast(model), batch)
    generator = torch.Generator().manual_seed(0)
    noisy = {n: t + 1e-7 * torch.randn(t.shape, generator=generator) for n, t in sent.tensors.items()}
    report = gate(model, noisy, batch, spec=SPEC, advice=False, budget=0.05)
    levels = [e.psnr for e in report.exposures if e.psnr is not None]
    assert levels and all(abs(level - PICTURE) > 3 for level in levels)


def test_whom_a_patient_server_tells_apart_is_named_by_a_gate_in_a_hurry() -> None:
    """No neuron is alone, so peeling finds nobody; thirty neurons an example are enough for a search."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 300), nn.ReLU(), nn.Linear(300, 4))
    batch = private(10)
    flat = batch.inputs.flatten(1)
    with torch.no_grad():
        response = flat @ model[1].weight.T + model[1].bias  # (n, N)
        third = response.sort(dim=0).values[-4]
        model[1].bias -= third - 1e-4  # four of ten fire each neuron
    shares = layer_shares(model, batch, "cross_entropy")[0]
    assert not bool(shares.peelable().any())
    report = gate(model, None, batch, spec=SPEC, advice=False, budget=0.01)
    sent = client(LocalTraining())(Broadcast(model), batch)
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    found = ATTACKS["exact_extraction"](budget=30.0).run([seen], Knowledge(input=SPEC))
    near = torch.cdist(found.values.flatten(1), flat).amin(dim=0) < 1e-2
    assert int(near.sum()) >= 8
    assert set(near.nonzero().flatten().tolist()) <= set(report.exposed)
    assert {"unmixed"} <= {e.how for e in report.exposures}


def test_a_large_batch_is_told_in_a_few_lines() -> None:
    each = [Exposure(example=i, how="exact", by="exact_extraction", layer="1") for i in range(32)]
    lines = GateReport(examples=32, exposures=each, threshold=0.0, measured=True).text().splitlines()
    assert [line[:4] for line in lines].count("- ex") == 8
    assert "- and 24 more (--json has all of them)." in lines


def test_whom_dropout_masks_in_part_does_not_pass() -> None:
    """Rows show pictures with holes, which no 25 dB are reached by, and which anybody recognises."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(36, 60), nn.ReLU(), nn.Linear(60, 4))
    batch = private(4)
    value = nn.functional.cross_entropy(model.train()(batch.inputs), batch.labels)
    sent = torch.autograd.grad(value, list(model.parameters()))
    update = dict(zip(dict(model.named_parameters()), sent, strict=True))
    report = gate(model.eval(), update, batch, advice=False, budget=0.2)
    assert report.answer == "block"
    assert {one.by for one in report.exposures} >= {"peeling"}
