"""The registry: every entry declares itself, builds, and leaves a sendable update."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.attacks.base import check_update
from seepage.catalogue import catalogue
from seepage.core.errors import SpecError
from seepage.core.types import Batch, Broadcast, Exchange, LocalTraining
from seepage.defenses import DEFENSES, DefenseEntry, Deployment, MeasureEntry
from seepage.engine.prepare import prepare
from seepage.engine.spec import parse_spec
from seepage.protocol import client

MEASURES = ["larger_batches", "local_averaging", "secure_sum", "median", "same_model"]
WRAPPERS = [name for name in DEFENSES if name not in MEASURES]
SMALL = {"model": "mlp", "data": "digits", "seeds": [0], "protocol": {"batch_size": 4}}


def batch() -> Batch:
    g = torch.Generator().manual_seed(0)
    return Batch(torch.rand(4, 1, 6, 6, generator=g), torch.tensor([0, 1, 2, 1]))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3)
    )


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("name", [name for name in WRAPPERS if name not in {"refuse_traps", "gate"}])
def test_every_defense_with_its_defaults_sends_a_whole_update_that_differs(name, algorithm) -> None:
    training = LocalTraining(algorithm=algorithm, batch_size=2, lr=30.0 if name == "central_dp" else 0.5)
    entry = DEFENSES[name]
    settings = {"norm": 0.01} if "norm" in entry.settings else {}
    defense = entry.build(**entry.bound(seed=0, deployment=Deployment(training=training)), **settings)
    received = Broadcast(net())
    sent = client(training, [defense])(received, batch())
    check_update(Exchange(broadcast=received, update=sent, clients=(0,)))
    plain = client(training)(received, batch())
    assert sent.kind is plain.kind
    assert sent.num_examples == 4
    assert any(not torch.equal(sent.tensors[k], plain.tensors[k]) for k in plain.tensors)
    assert all(not t.requires_grad for t in sent.tensors.values())


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_entry_declares_itself(name) -> None:
    entry = DEFENSES[name]
    assert isinstance(entry, DefenseEntry)
    assert entry.runs_at in {"client", "server"}
    assert entry.guarantee in {"formal (DP)", "heuristic"}
    assert entry.trusts
    for text in (entry.description, entry.adaptive):
        assert text.endswith(".")
    assert "deployment" not in entry.settings


def test_only_what_is_differentially_private_says_so() -> None:
    formal = {name for name, entry in DEFENSES.items() if entry.guarantee == "formal (DP)"}
    assert formal == {"dp_sgd", "user_dp", "central_dp"}
    assert DEFENSES["central_dp"].trusts != "nobody"
    assert DEFENSES["dp_sgd"].trusts == "nobody"


def test_the_catalogue_lists_place_trust_and_guarantee() -> None:
    entries = {entry["name"]: entry for entry in catalogue()["defenses"]}
    own = {name for name in entries if ":" not in name}
    assert own == set(DEFENSES) and len(own) == 19
    assert entries["nvflare:PercentilePrivacy"]["settings"].startswith("percentile=10, gamma=0.01")
    assert all(isinstance(DEFENSES[name], MeasureEntry) for name in MEASURES)
    assert all(
        e.get("settings", "").count("=") == len(DEFENSES[n].settings) for n, e in entries.items() if n in own
    )
    assert "Runs at the client, trusts nobody; formal (DP)." in entries["dp_sgd"]["description"]
    assert entries["dp_sgd"]["settings"].startswith("clip=1.0, sigma=1.0, epsilon=None")


def test_an_audit_passes_its_own_training_on() -> None:
    protocol = {"batch_size": 4, "algorithm": "fedavg", "local_batch_size": 2, "lr": 0.7}
    defense = {"name": "dp_sgd", "clip": 1e9, "sigma": 0.0}
    prepared = prepare(parse_spec({**SMALL, "protocol": protocol, "defenses": [defense]}))
    batches, _ = prepared.draw(0)
    received = Broadcast(prepared.model(0))
    sent = client(prepared.local, prepared.defenses(0))(received, batches(0)[0])
    plain = client(prepared.local)(received, batches(0)[0])
    assert all(torch.allclose(sent.tensors[k], t, atol=1e-6) for k, t in plain.tensors.items())


@pytest.mark.parametrize(
    ("defenses", "sentence"),
    [
        (["dp_sgd", "clipping"], "'dp_sgd' does the local training itself.*list it last"),
        (["dp_sgd", "dp_sgd"], "list it last"),
        (["soteria", "dp_sgd"], "'soteria' uses the private examples outside of 'dp_sgd'"),
        (["oasis", "pruning", "dp_sgd"], "epsilon would no longer hold"),
        (["clipping", "sotera"], "did you mean 'soteria'"),
        ([{"name": "dp_sgd", "deployment": 1}], "unknown setting of defense 'dp_sgd' 'deployment'"),
        ([{"name": "dp_sgd", "sigm": 1}], "did you mean 'sigma'"),
        ([{"name": "pruning", "share": 2.0}], "cannot be built with {'share': 2.0}: share must be zero"),
        (["soterio"], "did you mean 'soteria'"),
    ],
)
def test_an_audit_refuses_before_anything_runs(defenses, sentence) -> None:
    with pytest.raises(SpecError, match=sentence):
        prepare(parse_spec({**SMALL, "defenses": defenses}))


@pytest.mark.parametrize("defenses", [["pruning", "sign", "dp_sgd"], ["soteria", "oasis", "clipping"]])
def test_what_keeps_a_guarantee_or_has_none_may_be_combined(defenses) -> None:
    assert len(prepare(parse_spec({**SMALL, "defenses": defenses})).defenses(0)) == len(defenses)


def test_honest_noise_is_refused_where_single_updates_are_seen() -> None:
    honest = [{"name": "central_dp", "server_honest": True}]
    protocol = {"batch_size": 4, "clients": 3}
    with pytest.raises(SpecError, match="somebody sees each client's update"):
        prepare(parse_spec({**SMALL, "defenses": honest, "protocol": protocol}))
    aggregated = {
        **SMALL,
        "defenses": honest,
        "protocol": {**protocol, "aggregation": "mean"},
        "threat": "honest_but_curious_aggregate",
    }
    assert len(prepare(parse_spec(aggregated)).defenses(0)) == 1
