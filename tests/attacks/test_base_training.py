"""Updates that are no sums of gradients: said, not read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.engine.cell import run_cell
from seepage.engine.prepare import prepare
from seepage.engine.spec import parse_spec
from seepage.protocol import THREATS, knowledge, local_batches, local_update
from seepage.protocol.plainly import plainly

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 3, 3), num_classes=3)


READERS = ["analytic_extraction", "exact_extraction"]


def _seen(
    local: LocalTraining, *, double: bool = False, examples: int = 2
) -> tuple[Exchange, dict[str, torch.Tensor]]:
    """An exchange under this training, and the gradient behind its first step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 30), nn.ReLU(), nn.Linear(30, 3))
    inputs = torch.rand(examples, 1, 3, 3)
    model, inputs = (model.double(), inputs.double()) if double else (model, inputs)
    batch, sent = Batch(inputs, torch.arange(examples) % 3), Broadcast(model)
    update = local_update(sent, batch, local)
    return Exchange(broadcast=sent, update=update, clients=(0,)), dict(
        local_update(sent, batch, LocalTraining()).tensors
    )


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"optimizer": "adam"}, "optimizer = 'adam'.*by their sign alone"),
        ({"optimizer": "adamw", "clip_norm": 1.0}, "optimizer = 'adamw' and clip_norm = 1, and clips"),
        ({"optimizer": "adam", "epochs": 2}, "for several steps"),
        ({"schedule": "cosine", "epochs": 2}, "schedule = 'cosine', for several steps"),
        ({"accumulation": 2, "batch_size": 2}, "accumulates mini-batches of different sizes"),
        ({"clip_norm": 0.01, "weight_decay": 0.1}, "has weight decay on top"),
    ],
)
@pytest.mark.parametrize("attack", READERS)
def test_an_attack_says_what_it_cannot_handle(attack: str, other: dict, said: str) -> None:
    local = LocalTraining(algorithm="fedavg", **other)
    seen, _ = _seen(local, examples=3)
    with pytest.raises(NotApplicable, match=said):
        ATTACKS[attack]().run([seen], Knowledge(input=SPEC, local=local))


@pytest.mark.parametrize("attack", READERS)
@pytest.mark.parametrize(
    "other",
    [
        {"accumulation": 2, "batch_size": 1},
        {"accumulation": 5},
        {"schedule": "linear"},
        {"schedule": "cosine", "clip_norm": 1e3, "weight_decay": 0.1},
        {"momentum": 0.9, "clip_norm": 1e3},
    ],
)
def test_one_step_of_sgd_is_read_as_plain_sgd_is(attack: str, other: dict) -> None:
    plain = LocalTraining(algorithm="fedavg")
    local = replace(plain, **other)
    wanted = ATTACKS[attack]().run([_seen(plain)[0]], Knowledge(input=SPEC, local=plain))
    found = ATTACKS[attack]().run([_seen(local)[0]], Knowledge(input=SPEC, local=local))
    assert len(found) == len(wanted) > 0
    # each is as far from an example as rounding carries it
    assert torch.allclose(
        torch.cdist(wanted.values.flatten(1), found.values.flatten(1)).amin(0), torch.zeros(1), atol=1e-3
    )


def test_a_clipped_gradient_is_read_up_to_its_factor() -> None:
    local = LocalTraining(algorithm="fedavg", clip_norm=0.01)
    seen, _ = _seen(local)
    found = ATTACKS["analytic_extraction"]().run([seen], Knowledge(input=SPEC, local=local))
    torch.manual_seed(0)
    nn.Sequential(nn.Linear(9, 30), nn.Linear(30, 3))  # draws what the model drew
    truth = torch.rand(2, 1, 3, 3).flatten(1)
    assert bool((torch.cdist(truth, found.values.flatten(1).float()).amin(1) < 1e-2).any())
    assert "taken to be unknown" in found.notes[-1]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adams_first_step_tells_the_gradient_in_double_precision(optimizer: str, decay: float) -> None:
    local = LocalTraining(algorithm="fedavg", optimizer=optimizer, lr=1e-3, weight_decay=decay)
    seen, gradient = _seen(local, double=True)
    (read,), known, _ = plainly([seen], Knowledge(input=SPEC, local=local))
    assert known.local is not None and known.local.algorithm == "fedsgd"
    for name, true in gradient.items():
        assert torch.allclose(read.update.tensors[name], true, rtol=1e-3, atol=1e-8), name
    found = ATTACKS["analytic_extraction"]().run([seen], Knowledge(input=SPEC, local=local))
    assert f"first step of {optimizer}" in found.notes[-1]


def test_mixed_precision_leaves_rough_gradients_and_no_false_claim() -> None:
    full, mixed = (LocalTraining(mixed_precision=one) for one in (False, True))
    (exact, _), (rough, _) = _seen(full), _seen(mixed)
    for name, sent in exact.update.tensors.items():
        other = rough.update.tensors[name]
        assert other.dtype is sent.dtype and not torch.equal(other, sent)
        assert float((other - sent).norm()) < 0.05 * float(sent.norm())
    found = ATTACKS["exact_extraction"]().run([rough], Knowledge(input=SPEC, local=mixed))
    assert found.claimed is None or not bool(found.claimed.any())
    assert "mixed precision" in found.notes[-1]


def test_a_server_does_not_know_in_which_order_clients_go_through_their_data() -> None:
    theirs = LocalTraining(algorithm="fedavg", batch_size=1, epochs=2, shuffle_seed=0)
    known = knowledge(
        THREATS["honest_but_curious"], "per_client", spec=SPEC, loss="cross_entropy", local=theirs,
        auxiliary=None, seed=0,
    )  # fmt: skip
    assert known.local is not None and known.local != theirs
    orders = [torch.cat(local_batches(8, one)).tolist() for one in (theirs, known.local)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])


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
