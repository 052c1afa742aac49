"""The combined guard, its reading of files and the defense that refuses."""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from research.guard.honest_models import pruned
from safetensors.torch import save_file
from torch import nn

from seepage.attacks.fishing.binary_fishing import binary_fishing
from seepage.attacks.fishing.class_fishing import class_fishing
from seepage.attacks.traps.imprint import imprint
from seepage.attacks.traps.quantile_traps import quantile_traps
from seepage.attacks.traps.trap_weights import trap_weights
from seepage.core.errors import ModelError, NotApplicable, SeepageError, SpecError
from seepage.core.types import Batch, Broadcast, InputSpec, Knowledge, LocalTraining, Modality, Verdict
from seepage.guardian import fingerprint, guard, guard_file, refuse, refuse_traps
from seepage.guardian.detectors import DETECTORS, as_module, looking_at
from seepage.guardian.detectors.layers import same_draws
from seepage.protocol import client, custom_threat, knowledge

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=5)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 5)
    )


def known() -> Knowledge:
    return knowledge(
        custom_threat("malicious_server"),
        "per_client",
        spec=SPEC,
        loss="cross_entropy",
        local=LocalTraining(),
        auxiliary=None,
        seed=3,
    )


@pytest.mark.parametrize(
    ("build", "layer"),
    [
        (trap_weights, "1"),
        (lambda: trap_weights(hidden=True, layer="3"), None),
        (lambda: quantile_traps(batch_size=20), "1"),
        (lambda: imprint(bins=50), "inserted_imprint"),
        (lambda: class_fishing(target_class=1), "5"),
    ],
)
def test_crafted_models_are_found_by_weights_alone(build, layer: str | None) -> None:
    sent = build().craft(net(), [], known())
    report = guard(sent.model)
    # how well biases are predicted by their rows is a statistic, unless they are to the last digits
    assert report.verdict is Verdict.TRAP or report.detector == "quantile_biases"
    assert report.verdict is not Verdict.CLEAN
    assert layer in (None, report.layer)
    assert "does not mean" in report.text()
    assert json.loads(json.dumps(report.to_dict()))["verdict"] == report.verdict.value


@pytest.mark.parametrize("build", [binary_fishing, lambda: class_fishing(target_class=1)])
def test_heads_crafted_for_several_local_steps_are_found_too(build) -> None:
    several = replace(known(), local=LocalTraining(algorithm="fedavg", lr=0.05, epochs=3))
    report = guard(build().craft(net(), [], several).model)
    assert report.verdict is Verdict.TRAP and report.layer == "5"


@pytest.mark.parametrize("seed", range(3))
def test_honest_models_are_clean(seed: int) -> None:
    model = net(seed)
    report = guard(model, previous=model, spec=SPEC)
    assert report.verdict is Verdict.CLEAN
    assert set(report.findings) == set(DETECTORS) - {"step_history", "loss_jump", "rare_neurons"}
    assert report.score is None
    assert guard(pruned(model, 0.9)).verdict is Verdict.CLEAN


def test_what_could_not_be_checked_is_listed() -> None:
    report = guard(nn.BatchNorm2d(4))
    assert report.verdict is Verdict.NOT_CHECKED
    assert set(report.unchecked) == set(DETECTORS)
    assert "Verdict: not checked" in report.text() and "no statement about the model" in report.text()


def test_a_model_that_cannot_be_checked_is_refused() -> None:
    batch = Batch(torch.rand(4, 1, 8, 8), torch.arange(4))
    for strict in (False, True):
        with pytest.raises(NotApplicable, match="could not be checked"):
            refuse_traps(strict=strict)(Broadcast(nn.BatchNorm2d(4), 2), batch, client(LocalTraining()))


def test_public_examples_are_used() -> None:
    sample = torch.rand(40, 1, 8, 8)
    with_noise, with_sample = guard(net(), spec=SPEC), guard(net(), spec=SPEC, sample=sample)
    for name in ("gradient_share", "lone_neurons"):
        assert name in with_sample.findings
    # a continuous score: shares of 96 neurons may agree by chance
    assert with_noise.findings["gradient_share"].score != with_sample.findings["gradient_share"].score


def test_files_of_all_formats_give_the_same_findings(tmp_path: Path) -> None:
    named = nn.Sequential(OrderedDict(zip("zyxwvu", net(), strict=True)))  # safetensors turns the order
    for craft, detector in ((trap_weights(), "trap_rows"), (class_fishing(target_class=1), "lone_class_row")):
        crafted = craft.craft(named, [], known()).model
        state = crafted.state_dict()
        save_file(state, tmp_path / "m.safetensors")
        torch.save(state, tmp_path / "m.pt")
        torch.save({"epoch": 3, "net": {"weights": state}, "optimizer": {"m": state}}, tmp_path / "nested.pt")
        torch.jit.script(crafted).save(str(tmp_path / "script.pt"))
        with same_draws(1):
            wanted = guard(crafted).findings
        for name in ("m.safetensors", "m.pt", "script.pt", "nested.pt"):
            with same_draws(1):
                report = guard_file(tmp_path / name)
            assert report.verdict is Verdict.TRAP
            assert report.findings[detector].score == wanted[detector].score


def test_files_with_a_builder_are_also_run(tmp_path: Path) -> None:
    torch.save(net(0).state_dict(), tmp_path / "now.pt")
    torch.save(net(1).state_dict(), tmp_path / "before.pt")
    report = guard_file(tmp_path / "now.pt", previous=tmp_path / "before.pt", builder=net, spec=SPEC)
    assert "transmission" in report.findings
    assert report.findings["round_jump"].score > -0.5  # another random net: moved by its own size


def test_files_of_several_rounds_are_compared(tmp_path: Path) -> None:
    model, files = net(), []
    for number in range(4):
        torch.save(model.state_dict(), tmp_path / f"{number}.pt")
        files.append(tmp_path / f"{number}.pt")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.001 * torch.randn_like(parameter))
    digits = (torch.rand(20, 1, 8, 8), torch.arange(20) % 5)
    assert "step_history" in guard_file(files[-1], previous=files[:-1]).findings
    report = guard_file(files[-1], previous=files[:-1], builder=net, sample=digits)
    assert set(looking_at("rounds")) <= set(report.findings)
    assert report.verdict is Verdict.CLEAN
    grown = nn.Sequential(nn.Linear(64, 64), *net()).state_dict()
    torch.save(grown, tmp_path / "other.pt")
    report = guard_file(files[-1], previous=[*files[:2], tmp_path / "other.pt"], builder=net, sample=digits)
    assert report.detector == "round_jump"
    assert "architecture" in report.evidence


def test_a_sample_tells_the_shape_and_needs_a_model(tmp_path: Path) -> None:
    torch.save(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).state_dict(),
        tmp_path / "m.pt",
    )
    digits = (torch.rand(20, 1, 8, 8), torch.arange(20) % 10)
    with pytest.raises(SpecError, match="name the model"):
        guard_file(tmp_path / "m.pt", sample=digits)
    with pytest.raises(SpecError, match="what its inputs are"):
        guard_file(tmp_path / "m.pt", builder=net)

    def built() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    assert "lone_neurons" in guard_file(tmp_path / "m.pt", builder=built, sample=digits).findings


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no weights file"):
        guard_file(tmp_path / "nothing.pt")
    (tmp_path / "hostile.pt").write_bytes(pickle.dumps({"a.weight": _Hostile(tmp_path / "executed")}))
    with pytest.raises(ModelError, match="none was executed"):
        guard_file(tmp_path / "hostile.pt")
    assert not (tmp_path / "executed").exists()
    torch.save({"a.weight": torch.full((3, 3), float("nan"))}, tmp_path / "nan.pt")
    with pytest.raises(ModelError, match="NaN"):
        guard_file(tmp_path / "nan.pt")
    torch.save({}, tmp_path / "empty.pt")
    with pytest.raises(ModelError, match="does not hold a state dict"):
        guard_file(tmp_path / "empty.pt")
    torch.save({"a": torch.ones(2), "a.weight": torch.ones(2, 2)}, tmp_path / "names.pt")
    with pytest.raises(ModelError, match="no usable name"):
        guard_file(tmp_path / "names.pt")


def test_refusal_comes_before_the_data_is_touched() -> None:
    touched = []

    def train(broadcast, batch):
        touched.append(batch)
        return client(LocalTraining())(broadcast, batch)

    batch = Batch(torch.rand(4, 1, 8, 8), torch.arange(4))
    crafted = trap_weights().craft(net(), [], known()).model
    with pytest.raises(NotApplicable, match="refused to train in round 2"):
        refuse_traps(spec=SPEC)(Broadcast(crafted, 2), batch, train)
    assert not touched
    update = refuse_traps(spec=SPEC)(Broadcast(net(), 2), batch, train)
    assert update.num_examples == 4


def test_fingerprints_differ_by_one_bit_and_not_by_the_container() -> None:
    model = net()
    same = net()
    assert fingerprint(model) == fingerprint(same) == fingerprint(as_module(model.state_dict()))
    with torch.no_grad():
        weight = same[1].weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(10.0))
    assert fingerprint(model) != fingerprint(same)


def test_clients_of_one_round_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[nn.Module] = []
    monkeypatch.setattr(refuse, "guard", lambda model, **given: looked.append(model) or guard(model, **given))
    model, train = net(), client(LocalTraining())
    batch = Batch(torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))
    defense = refuse_traps()
    for _ in range(3):
        defense(Broadcast(model, 0), batch, train)
    assert len(looked) == 1
    with torch.no_grad():
        next(model.parameters()).mul_(1.001)  # the same object with other weights is another model
    defense(Broadcast(model, 0), batch, train)
    defense(Broadcast(net(), 1), batch, train)
    assert len(looked) == 3


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (None, {}, "no model"),
        ({"0.weight": torch.zeros(3, 3)}, {}, "a torch module, not at a dict"),
        ("received.pt", {}, "a torch module, not at a str"),
        (nn.Linear(40, 40, device="meta"), {}, "meta device"),
        (nn.Linear(40, 40), {"previous": "earlier.pt"}, "not at a str"),
        (nn.Linear(40, 40), {"sample": torch.zeros(0, 40)}, "empty"),
        (nn.Linear(40, 40), {"sample": torch.full((40, 40), float("nan"))}, "NaN"),
        (nn.Linear(40, 40), {"sample": [1.0]}, "a tensor or a Batch"),
    ],
)
def test_what_cannot_be_checked_is_not_called_clean(model, given, said):
    with pytest.raises(SeepageError, match=said):
        guard(model, **given)
