"""Kernels of its own for every client: its part of the trapped layer, against what it sends alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.attacks.sums.test_model_inconsistency import SPEC, clients_of, dense, misses
from torch import nn

from seepage.attacks.sums.loki import Loki, loki
from seepage.attacks.sums.own_columns import own_exchange
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Broadcast, InputSpec, Knowledge, LocalTraining, Modality, Verdict
from seepage.gating import gate
from seepage.guardian import fingerprint, guard
from seepage.protocol import Played, client, custom_threat, knowledge, local_update, play

THREAT = custom_threat(
    "malicious_server_secure_aggregation", grant=["different_models", "auxiliary_data", "batch_size"]
)
DELTAS = LocalTraining(algorithm="fedavg", lr=0.1)


def convolution(*, filters: int = 8, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, filters, 3, padding=1),
        nn.BatchNorm2d(filters) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36 * filters, 80),
        nn.ReLU(),
        nn.Linear(80, 5),
    )


def told(local: LocalTraining, spec: InputSpec = SPEC, aggregation: str = "secure_sum") -> Knowledge:
    public = Batch(spec.to_model(torch.rand(64, 1, 6, 6)), torch.arange(64) % 5)
    return knowledge(
        THREAT, aggregation, spec=spec, loss="cross_entropy", local=local, auxiliary=public, seed=0
    )


def sent(
    attack: Loki,
    model: nn.Module,
    batches: Sequence[Batch],
    known: Knowledge,
    aggregation: str = "secure_sum",
) -> Played:
    attack.check(model, known)
    return play(
        lambda current, history: attack.next_model(current, history, known),
        model,
        lambda _: batches,
        step=client(known.local or LocalTraining()),
        threat=THREAT,
        aggregation=aggregation,
        max_rounds=5,
    )


@pytest.mark.parametrize("local", [LocalTraining(), DELTAS])
@pytest.mark.parametrize("insert", [False, True])
def test_each_client_s_part_of_the_sum_is_what_it_sends_alone(local: LocalTraining, insert: bool) -> None:
    batches, known = clients_of(5, 5, 5), told(local)
    played = sent(loki(insert=insert, bins=30), convolution(), batches, known)
    (exchange,) = played.exchanges
    apart = exchange.secret
    assert played.rounds == 1 and exchange.clients == (0, 1, 2)
    for number, batch in enumerate(batches):
        model, columns = apart.models[number], apart.columns[number]
        own = own_exchange(exchange, known, model, apart.layer, columns, [number])
        truth = local_update(Broadcast(model), batch, local).tensors
        for part in ("weight", "bias"):
            name = f"{apart.layer}.{part}"
            assert torch.allclose(own.update.tensors[name], truth[name], rtol=1e-3, atol=1e-6), name
        assert own.update.num_examples == 5 and own.update.tensors[f"{apart.layer}.weight"].any()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("insert", [False, True])
def test_every_client_s_examples_come_out_of_the_sum(insert: bool, norm: bool) -> None:
    batches, known = clients_of(6, 6, 6, 6, seed=3), told(LocalTraining())
    attack = loki(insert=insert, batch_size=6, bins=150)
    found = attack.run(sent(attack, convolution(norm=norm), batches, known).exchanges, known)
    far = misses(found.values, batches)
    assert int((far.amin(dim=0) < 1e-4).sum()) == 24
    assert found.claimed is not None and int(found.claimed.sum()) >= 20
    assert bool((far.amin(dim=1)[found.claimed] < 1e-4).all())
    labels = torch.bincount(torch.cat([batch.labels for batch in batches]), minlength=5)
    assert found.label_counts is not None and torch.equal(found.label_counts, labels)
    assert ("architecture was changed" in " ".join(found.notes)) == insert


def test_more_clients_than_kernels_share_them_and_are_read_together() -> None:
    batches, known = clients_of(3, 3, 3, 3, 3, seed=5), told(LocalTraining())
    attack = loki(groups=2, batch_size=6)
    played = sent(attack, convolution(filters=16), batches, known)
    assert len(played.exchanges[0].secret.models) == 2
    found = attack.run(played.exchanges, known)
    far = misses(found.values, batches)
    assert int((far.amin(dim=0) < 1e-4).sum()) == 15
    assert found.claimed is not None and bool((far.amin(dim=1)[found.claimed] < 1e-4).all())


def test_clients_of_unequal_size_and_normalised_inputs_are_read() -> None:
    spec = replace(SPEC, mean=(0.4,), std=(0.25,))
    batches = [Batch(spec.to_model(b.inputs), b.labels) for b in clients_of(2, 6, 4, seed=6)]
    known, attack = told(LocalTraining(), spec), loki(batch_size=6)
    found = attack.run(sent(attack, convolution(), batches, known).exchanges, known)
    raw = [Batch(spec.to_raw(b.inputs), b.labels) for b in batches]
    far = misses(found.values, raw)
    assert int((far.amin(dim=0) < 1e-3).sum()) >= 11
    assert found.claimed is not None and bool((far.amin(dim=1)[found.claimed] < 1e-3).all())


def test_updates_that_are_seen_one_by_one_are_read_too() -> None:
    batches, known, attack = clients_of(4, 4), told(LocalTraining(), aggregation="per_client"), loki()
    found = attack.run(sent(attack, convolution(), batches, known, aggregation="per_client").exchanges, known)
    far = misses(found.values, batches)
    assert bool((far.amin(dim=0) < 1e-4).all()) and found.source is not None
    for row, source in zip(far, found.source.tolist(), strict=True):
        assert int(row.argmin()) // 4 == source or float(row.min()) > 1e-3


def test_clients_who_compare_fingerprints_are_safe() -> None:
    known, attack = told(LocalTraining()), loki()
    crafted = attack.craft(convolution(), [], known)
    assert crafted is not None and len({fingerprint(model) for model in crafted.turns}) == 4
    denied = custom_threat("malicious_server_secure_aggregation", grant=["auxiliary_data"])
    with pytest.raises(NotApplicable, match="different_models"):
        play(
            lambda current, history: attack.next_model(current, history, known),
            convolution(),
            lambda _: clients_of(2, 2),
            step=client(LocalTraining()),
            threat=denied,
            aggregation="secure_sum",
        )


@pytest.mark.parametrize("insert", [False, True])
def test_guard_and_gate_see_the_models_of_all_clients(insert: bool) -> None:
    crafted = loki(insert=insert, bins=80).craft(convolution(), [], told(LocalTraining()))
    (batch,) = clients_of(6, seed=4)
    assert crafted is not None
    for model in crafted.turns[:3]:
        assert guard(model, spec=SPEC).verdict is not Verdict.CLEAN
        report = gate(model, None, batch, spec=SPEC, advice=False)
        assert report.answer == "block" and len(report.exposed) == 6


def test_what_the_model_s_own_layers_cannot_do_is_said_or_inserted() -> None:
    known = told(LocalTraining())
    for model, why in ((dense(), "reads the input itself"), (convolution(filters=3), "needs 2 of its own")):
        with pytest.raises(NotApplicable, match=why):
            loki(insert=False).check(model, known)
        crafted = loki().craft(model, [], known)
        assert crafted is not None and "inserted_kernels.weight" in crafted.model.state_dict()
    table = replace(
        known, input=InputSpec(modality=Modality.TABULAR, shape=(36,), num_classes=5), auxiliary=None
    )
    with pytest.raises(NotApplicable, match="reads the input itself"):
        loki().check(dense(), table)
    with pytest.raises(SpecError, match="groups"):
        loki(groups=1)
    with pytest.raises(SpecError, match="bins"):
        loki(bins=1)
