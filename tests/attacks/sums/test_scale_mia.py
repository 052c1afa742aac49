"""Features out of a sum, against those of the examples; and the decoder against leaving examples out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.sums.test_loki import THREAT, sent, told
from tests.attacks.sums.test_model_inconsistency import SPEC, clients_of, dense, misses
from torch import nn

from seepage.attacks.sums.decoder import train_decoder
from seepage.attacks.sums.scale_mia import scale_mia
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Knowledge, LocalTraining, Reconstruction, Verdict
from seepage.gating import gate
from seepage.guardian import guard
from seepage.guardian.detectors.identical_rows import ladder
from seepage.models.hooks import layer_input


def pooled() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(108, 100),
        nn.ReLU(),
        nn.Linear(100, 5),
    )


def attacked(known: Knowledge, batches: list[Batch], **settings: int) -> Reconstruction:
    attack = scale_mia(batch_size=sum(map(len, batches)), **settings)
    return attack.run(sent(attack, pooled(), batches, known).exchanges, known)  # type: ignore[arg-type]


@pytest.mark.parametrize("local", [LocalTraining(), LocalTraining(algorithm="fedavg", lr=0.1)])
def test_the_features_of_every_example_come_out_of_the_sum(local: LocalTraining) -> None:
    batches, known = clients_of(6, 6, 6, seed=2), told(local)
    attack = scale_mia(batch_size=18)
    (exchange,) = sent(attack, pooled(), batches, known).exchanges  # type: ignore[arg-type]
    truth = layer_input(exchange.broadcast.model, "4", torch.cat([b.inputs for b in batches]))
    seen: list[torch.Tensor] = []

    def reading(*given: object, **more: object) -> Reconstruction:
        found = reader(*given, **more)  # type: ignore[arg-type]
        seen.append(found.values)
        return found

    reader, attack.read = attack.read, reading  # type: ignore[assignment]
    attack.run([exchange], known)
    far = (seen[0].unsqueeze(1) - truth).abs().amax(dim=2).amin(dim=0)
    assert int((far < 1e-3 * truth.max()).sum()) >= 17


def test_pictures_are_near_and_none_is_claimed() -> None:
    batches, known = clients_of(6, 6, 6, seed=2), told(LocalTraining())
    searched, decoded = attacked(known, batches), attacked(known, batches, steps=0)
    truth = torch.cat([batch.inputs for batch in batches])
    flat = float((truth - 0.5).square().mean())

    def error(found: Reconstruction) -> float:
        apart = (found.values.unsqueeze(1) - truth).square().flatten(2).mean(dim=2)
        return float(apart.amin(dim=0).mean())

    assert error(searched) < error(decoded) / 2 < flat / 2
    assert searched.claimed is None and "none is claimed" in searched.notes[-1]
    assert int((misses(searched.values, batches).amin(dim=0) < 0.1).sum()) >= 9


def test_the_layers_before_are_as_they_were_and_everybody_gets_the_same() -> None:
    known, model = told(LocalTraining()), pooled()
    crafted = scale_mia().craft(model, [], known)
    assert crafted is not None and not crafted.turns and crafted.others is None
    changed = [
        name for name, p in crafted.model.named_parameters() if not torch.equal(p, model.get_parameter(name))
    ]
    assert changed == ["4.weight", "4.bias"]
    # no row is there twice and biases follow no sum of a row (score .24; 1.5 is exact), so the guard calls it
    # clean; the gate measures the update itself
    layer = crafted.model.get_submodule("4")
    assert ladder(layer.weight.detach(), layer.bias.detach()) == 0.0  # type: ignore[union-attr,operator]
    assert guard(crafted.model, previous=model).verdict is Verdict.CLEAN
    report = gate(crafted.model, None, clients_of(6, seed=4)[0], spec=SPEC, advice=False)
    assert report.answer == "block" and len(report.exposed) >= 5


def test_leaving_out_in_closed_form_is_leaving_out() -> None:
    torch.manual_seed(0)
    features = torch.randn(12, 30)
    pictures = torch.tanh(features @ torch.randn(30, 4)) + 0.1 * torch.randn(12, 4)
    decoder = train_decoder(features, pictures)
    f = features.double() - features.double().mean(dim=0)
    x = pictures.double() - pictures.double().mean(dim=0)
    errors = {}
    for ridge in (10.0**k for k in range(-8, 3)):
        missed = []
        for one in range(12):
            rest = torch.arange(12) != one
            inner = f @ f.T + decoder.offset
            size = float((f @ f.T).diagonal().mean())
            solved = torch.linalg.solve(
                inner[rest][:, rest] + ridge * size * torch.eye(11, dtype=torch.float64), x[rest]
            )
            missed.append(x[one] - inner[one][rest] @ solved)
        errors[ridge] = float(torch.stack(missed).square().mean().sqrt())
    assert decoder.error == pytest.approx(min(errors.values()), rel=1e-4)


def test_what_it_cannot_do_is_said() -> None:
    known = told(LocalTraining())
    with pytest.raises(NotApplicable, match="reads the model's input itself"):
        scale_mia().check(dense(), known)
    with pytest.raises(NotApplicable, match="auxiliary_data"):
        scale_mia().check(pooled(), replace(known, auxiliary=None))
    smooth = nn.Sequential(*pooled()[:5], nn.Tanh(), nn.Linear(100, 5))
    with pytest.raises(NotApplicable, match="not followed by a ReLU"):
        scale_mia().check(smooth, known)
    assert not scale_mia().requires - THREAT.grants
