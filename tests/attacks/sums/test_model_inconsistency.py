"""One client out of a secure sum, against that client's own update."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from seepage.attacks.base import Attack
from seepage.attacks.fishing.head import find_head
from seepage.attacks.sums.dead import dead_model
from seepage.attacks.sums.model_inconsistency import model_inconsistency
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Grant, InputSpec, Knowledge, LocalTraining, Modality, Verdict
from seepage.guardian import fingerprint, guard
from seepage.models.zoo.resnet import resnet20
from seepage.protocol import THREATS, Played, client, custom_threat, knowledge, local_update, play

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=5)
PICTURES = InputSpec(modality=Modality.IMAGE, shape=(3, 16, 16), num_classes=5)


def dense() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.ReLU(), nn.Linear(60, 5))


def clients_of(*sizes: int, seed: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Batch(torch.rand(n, 1, 6, 6, generator=generator), torch.randint(5, (n,), generator=generator))
        for n in sizes
    ]


def told(local: LocalTraining, aggregation: str = "secure_sum") -> Knowledge:
    return knowledge(
        THREATS["malicious_server"],
        aggregation,
        spec=SPEC,
        loss="cross_entropy",
        local=local,
        auxiliary=None,
        seed=0,
    )


def played(
    attack: Attack,
    batches: Sequence[Batch],
    known: Knowledge,
    *,
    threat: str = "malicious_server",
    deny: Sequence[str] = (),
    aggregation: str = "secure_sum",
    minimum_honest: int = 1,
) -> Played:
    model = dense()
    attack.check(model, known)
    return play(
        lambda current, history: attack.next_model(current, history, known),
        model,
        lambda _: batches,
        step=client(known.local or LocalTraining()),
        threat=custom_threat(threat, deny=deny),
        aggregation=aggregation,
        minimum_honest=minimum_honest,
        max_rounds=20,
    )


def misses(values: torch.Tensor, batches: Sequence[Batch]) -> torch.Tensor:
    """(k, n) largest difference of each candidate from each example."""
    truth = torch.cat([batch.inputs for batch in batches]).flatten(1)
    return (values.flatten(1).unsqueeze(1) - truth).abs().amax(dim=2)


@pytest.mark.parametrize("local", [LocalTraining(), LocalTraining(algorithm="fedavg", lr=0.1)])
def test_every_client_is_read_out_of_the_secure_sum(local: LocalTraining) -> None:
    batches, known, attack = clients_of(4, 4, 4), told(local), model_inconsistency()
    seen = played(attack, batches, known)
    assert seen.rounds == 3 and all(exchange.clients == (0, 1, 2) for exchange in seen.exchanges)
    for victim, exchange in enumerate(seen.exchanges):
        own = local_update(Broadcast(dense()), batches[victim], local).tensors
        for name in ("1.weight", "1.bias", "3.weight"):
            assert torch.allclose(3 * exchange.update.tensors[name], own[name], rtol=1e-5, atol=1e-8)
    found = attack.run(seen.exchanges, known)
    far = misses(found.values, batches)
    # off a grid weight differences are too coarse to be vouched for
    assert found.claimed is not None
    assert int(found.claimed.sum()) == (0 if local.algorithm == "fedavg" else 12)
    assert bool((far.amin(dim=0) < 1e-4).all()) and bool((far.amin(dim=1)[found.claimed] < 1e-4).all())
    assert found.source is not None and "got a dead model" in " ".join(found.notes)
    for row, source in zip(far, found.source.tolist(), strict=True):  # of the victim of its round
        assert int(row.argmin()) // 4 == source or float(row.min()) > 1e-3


def test_clients_of_unequal_size_are_read_and_nothing_false_is_claimed() -> None:
    batches, known, attack = clients_of(2, 5, 4), told(LocalTraining()), model_inconsistency()
    found = attack.run(played(attack, batches, known).exchanges, known)
    far = misses(found.values, batches)
    assert int((far.amin(dim=0) < 1e-3).sum()) >= 10
    assert found.claimed is not None and bool((far.amin(dim=1)[found.claimed] < 1e-3).all())


def test_a_dead_model_says_nothing_in_any_number_of_steps() -> None:
    torch.manual_seed(1)
    nets = {
        "dense": (dense(), SPEC),
        "residual, batch norm": (resnet20(PICTURES, width=4), PICTURES),
        "gelu": (nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.GELU(), nn.Linear(9, 5)), SPEC),
        "sigmoid": (nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.Sigmoid(), nn.Linear(9, 5)), SPEC),
        "layer norm": (nn.Sequential(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 5)), SPEC),
    }
    for local in (LocalTraining(), LocalTraining(algorithm="fedavg", lr=0.5, epochs=5, momentum=0.9)):
        for words, (net, spec) in nets.items():
            head = find_head(net, spec)
            dead = dead_model(net, head, Knowledge(input=spec, local=local))
            batch = Batch(torch.rand(6, *spec.shape), torch.arange(6) % 5)
            sent = local_update(Broadcast(dead), batch, local).tensors
            assert [name for name, t in sent.items() if t.any()] == [head.bias], words
    with pytest.raises(NotApplicable, match="weight decay"):
        decay = LocalTraining(algorithm="fedavg", weight_decay=0.1)
        deep = nn.Sequential(nn.Flatten(), nn.Linear(36, 36), nn.ReLU(), *dense()[1:])
        dead_model(deep, find_head(deep, SPEC), Knowledge(input=SPEC, local=decay))


def test_clients_who_compare_fingerprints_are_safe() -> None:
    attack, known = model_inconsistency(), told(LocalTraining())
    crafted = attack.craft(dense(), [], known)
    assert crafted is not None and crafted.others is not None
    assert fingerprint(crafted.model) == fingerprint(dense()) != fingerprint(crafted.others)
    assert Grant.DIFFERENT_MODELS in attack.requires
    with pytest.raises(NotApplicable, match="different_models"):
        played(attack, clients_of(2, 2, 2), known, deny=["different_models"])
    # the guard sees nothing without an earlier model: a dead model is no trap for whom it was sent to
    assert guard(crafted.model).verdict is Verdict.CLEAN
    assert guard(crafted.others).verdict is Verdict.CLEAN
    assert guard(crafted.others, previous=dense()).verdict is Verdict.SUSPICIOUS


def test_updates_that_are_seen_one_by_one_are_read_too() -> None:
    batches, known, attack = clients_of(3, 3), told(LocalTraining(), "per_client"), model_inconsistency()
    found = attack.run(played(attack, batches, known, aggregation="per_client").exchanges, known)
    assert bool((misses(found.values, batches).amin(dim=0) < 1e-3).all())
