"""Updates that are no sums of gradients: said, not read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.engine.cell import run_cell
from seepage.engine.prepare import prepare
from seepage.engine.spec import parse_spec
from seepage.protocol import local_update

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 3, 3), num_classes=3)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"optimizer": "adam"}, "optimizer = 'adam'"),
        ({"optimizer": "adamw", "clip_norm": 1.0}, "optimizer = 'adamw' and clip_norm = 1"),
        ({"schedule": "cosine"}, "schedule = 'cosine'"),
        ({"accumulation": 2}, "accumulation = 2"),
    ],
)
@pytest.mark.parametrize("attack", ["analytic_extraction", "exact_extraction", "inverting_gradients"])
def test_an_attack_says_what_it_cannot_handle(attack: str, other: dict, said: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 30), nn.ReLU(), nn.Linear(30, 3))
    local = LocalTraining(algorithm="fedavg", **other)
    update = local_update(Broadcast(model), Batch(torch.rand(2, 1, 3, 3), torch.tensor([0, 1])), local)
    seen = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    with pytest.raises(NotApplicable, match=said):
        ATTACKS[attack]().run([seen], Knowledge(input=SPEC, local=local))


def test_the_baseline_needs_no_update_and_the_cell_says_why_the_attack_did_not_run() -> None:
    protocol = {"algorithm": "fedavg", "optimizer": "adamw", "lr": 0.01, "batch_size": 2}
    wanted = {"model": "mlp", "data": "digits", "attacks": ["exact_extraction"], "seeds": [0]}
    prepared = prepare(parse_spec({**wanted, "protocol": protocol}))
    cells = {ref.name: run_cell(prepared, ref, 0)[0] for ref in prepared.refs}
    assert cells["prior_only"].status == "done"
    assert cells["exact_extraction"].status == "not_applicable"
    assert "does not mean that nothing leaks" in cells["exact_extraction"].reason


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ({"optimizer": "adam"}, "belong to algorithm = 'fedavg'"),
        ({"algorithm": "fedavg", "optimizer": "adam", "momentum": 0.9}, "momentum belongs to"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(protocol: dict, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse_spec({"model": "mlp", "data": "digits", "protocol": protocol})
