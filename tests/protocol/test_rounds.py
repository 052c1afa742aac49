"""Playing rounds: what the server keeps, what it is not told, and honest training over several rounds."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Batch, Broadcast, Crafted, Exchange, Grant, LocalTraining, Update, UpdateKind
from seepage.protocol import (
    THREATS,
    ThreatModel,
    aggregate,
    apply_update,
    client,
    custom_threat,
    play,
)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()


def clients_with(*sizes: int, seed: int = 1) -> list[Batch]:
    g = torch.Generator().manual_seed(seed)
    return [
        Batch(torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(3, (n,), generator=g))
        for n in sizes
    ]


class CountingStep:
    """A client that sends what it was asked to do: its round in the tensor, its batch in the count."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Batch]] = []

    def __call__(self, broadcast: Broadcast, batch: Batch) -> Update:
        self.calls.append((broadcast.round, batch))
        return Update(
            kind=UpdateKind.GRADIENT,
            tensors={"w": torch.tensor([float(len(batch))])},
            num_examples=len(batch),
            buffers={"b": torch.tensor([1.0])},
        )


def always(model: nn.Module, history: Sequence[Exchange]) -> Crafted:
    return Crafted(model, secret=len(history))


ALL = ThreatModel(name="all", description="", grants=frozenset(Grant))
NONE = ThreatModel(name="none", description="", grants=frozenset())


def test_every_client_works_once_a_round_and_the_bound_holds() -> None:
    step, batches = CountingStep(), clients_with(2, 3)
    played = play(always, net(), lambda _: batches, step=step, threat=ALL, max_rounds=3)
    assert [number for number, _ in step.calls] == [0, 0, 1, 1, 2, 2]
    assert all(batch is batches[i % 2] for i, (_, batch) in enumerate(step.calls))
    assert played.rounds == 3
    assert [(e.broadcast.round, e.clients) for e in played.exchanges] == [
        (r, (c,)) for r in range(3) for c in range(2)
    ]
    assert [e.secret for e in played.exchanges] == [0, 0, 2, 2, 4, 4]  # the history grows


def test_the_server_stops_by_none() -> None:
    step = CountingStep()

    def twice(model: nn.Module, history: Sequence[Exchange]) -> Crafted | None:
        return Crafted(model) if len(history) < 2 else None

    played = play(twice, net(), lambda _: clients_with(2), step=step, threat=ALL, max_rounds=50)
    assert played.rounds == len(step.calls) == 2
    with pytest.raises(DataError, match="no round was played"):
        play(lambda m, h: None, net(), lambda _: clients_with(2), step=step, threat=ALL)
    with pytest.raises(DataError, match="no round was played"):
        play(always, net(), lambda _: clients_with(2), step=step, threat=ALL, max_rounds=0)


@pytest.mark.parametrize(
    ("threat", "aggregation", "single"),
    [
        (ALL, "per_client", True),
        (ALL, "mean", True),
        (ALL, "secure_sum", False),
        (NONE, "mean", False),
        (NONE, "median", False),
        (THREATS["honest_but_curious"], "median", True),
        (THREATS["malicious_server"], "secure_sum", False),
    ],
)
def test_single_updates_or_one_aggregate(threat, aggregation, single) -> None:
    batches = clients_with(2, 6)
    played = play(
        always, net(), lambda _: batches, step=CountingStep(), threat=threat, aggregation=aggregation
    )
    seen = [(e.clients, e.update.tensors["w"].item()) for e in played.exchanges]
    weighted, middle = (2 * 2 + 6 * 6) / 8, (2 + 6) / 2
    expected = [((0, 1), middle if aggregation == "median" else weighted)]
    assert seen == ([((0,), 2.0), ((1,), 6.0)] if single else expected)


@pytest.mark.parametrize("grant", [Grant.LABELS, Grant.BATCH_SIZE, Grant.BUFFERS], ids=str)
@pytest.mark.parametrize("aggregation", ["per_client", "secure_sum"])
def test_labels_sizes_and_buffers_only_where_granted(grant, aggregation) -> None:
    batches = clients_with(2, 3)
    for grants in ({grant}, set(Grant) - {grant}, set()):
        threat = ThreatModel(name="t", description="", grants=frozenset(grants))
        played = play(
            always, net(), lambda _: batches, step=CountingStep(), threat=threat, aggregation=aggregation
        )
        for e in played.exchanges:
            truth = torch.cat([batches[c].labels for c in e.clients])
            if Grant.LABELS in grants:
                assert torch.equal(e.labels, truth)
            else:
                assert e.labels is None
            counted = bool(grants & {Grant.BATCH_SIZE, Grant.LABELS})  # labels can be counted
            assert e.update.num_examples == (len(truth) if counted else None)
            assert (e.update.buffers is not None) == (Grant.BUFFERS in grants)


def to_second(model: nn.Module, history: Sequence[Exchange]) -> Crafted:
    return Crafted(model, clients=(1,))


def test_a_crafting_server_targets_one_client() -> None:
    step, batches = CountingStep(), clients_with(2, 3, 4)
    played = play(
        to_second, net(), lambda _: batches, step=step, threat=THREATS["malicious_server"], max_rounds=2
    )
    assert all(batch is batches[1] for _, batch in step.calls)
    assert len(step.calls) == 2
    assert [e.clients for e in played.exchanges] == [(1,), (1,)]
    assert played.truth_clients.tolist() == [1, 1, 1]
    assert torch.equal(played.truth.inputs, batches[1].inputs)


@pytest.mark.parametrize(
    ("threat", "aggregation", "sentence"),
    [
        (
            "malicious_server",
            "secure_sum",
            "needs target_client, which aggregation = 'secure_sum' hides: choose another aggregation.",
        ),
        (
            "honest_but_curious",
            "per_client",
            "needs target_client, which the threat model 'honest_but_curious' does not grant: choose another "
            "threat model, or grant = ['target_client'] in a custom one.",
        ),
    ],
)
def test_a_target_that_is_not_granted_is_refused_before_anybody_trains(threat, aggregation, sentence) -> None:
    step = CountingStep()
    with pytest.raises(NotApplicable) as error:
        play(
            to_second,
            net(),
            lambda _: clients_with(2, 3),
            step=step,
            threat=THREATS[threat],
            aggregation=aggregation,
        )
    assert str(error.value) == sentence
    assert step.calls == []


def test_fresh_batches_add_truth_and_a_repeated_one_does_not() -> None:
    rounds = [clients_with(2, 1, seed=s) for s in range(3)]
    options = {"step": CountingStep(), "threat": ALL, "max_rounds": 3}
    fresh = play(always, net(), lambda number: rounds[number], **options)
    assert fresh.truth_clients.tolist() == [0] * 6 + [1] * 3
    assert [rows.tolist() for rows in fresh.behind] == [[0, 1], [6], [2, 3], [7], [4, 5], [8]]
    for exchange, rows in zip(fresh.exchanges, fresh.behind, strict=True):
        (client,) = exchange.clients
        batch = rounds[exchange.broadcast.round][client]
        assert torch.equal(fresh.truth.inputs[rows], batch.inputs)
    expected = [rounds[r][c] for c in (0, 1) for r in range(3)]
    assert torch.equal(fresh.truth.inputs, torch.cat([b.inputs for b in expected]))
    assert torch.equal(fresh.truth.labels, torch.cat([b.labels for b in expected]))
    same = play(always, net(), lambda number: rounds[0], **options)
    assert same.truth_clients.tolist() == [0, 0, 1]
    assert [rows.tolist() for rows in same.behind] == [[0, 1], [2]] * 3
    assert torch.equal(same.truth.inputs, torch.cat([b.inputs for b in rounds[0]]))


def simulated(model: nn.Module, rounds: list[list[Batch]], algorithm: str, lr: float) -> nn.Module:
    """McMahan et al. 2017, Algorithm 1, on state dicts: w <- sum of n_k / n times w_k."""
    server = copy.deepcopy(model).eval()
    for batches in rounds:
        n = sum(len(b) for b in batches)
        new = {name: torch.zeros_like(p) for name, p in server.named_parameters()}
        for batch in batches:
            local = copy.deepcopy(server)
            optimiser = torch.optim.SGD(local.parameters(), lr=lr)
            for _ in range(3 if algorithm == "fedavg" else 1):
                optimiser.zero_grad()
                F.cross_entropy(local(batch.inputs), batch.labels).backward()
                optimiser.step()
            for name, p in local.named_parameters():
                new[name] += len(batch) / n * p.detach()
        server.load_state_dict(new, strict=False)
    return server


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("aggregation", ["per_client", "mean", "secure_sum"])
def test_an_honest_server_trains_as_the_papers_algorithm(algorithm, aggregation) -> None:
    model, lr = net(), 0.2
    rounds = [clients_with(2, 5, 3, seed=s) for s in range(4)]
    played = play(
        None,
        model,
        lambda number: rounds[number],
        step=client(LocalTraining(algorithm=algorithm, lr=lr, epochs=3)),
        threat=THREATS["honest_but_curious"],
        aggregation=aggregation,
        max_rounds=4,
        server_lr=lr,
    )
    assert played.rounds == 4
    assert played.exchanges[0].broadcast.model is model
    for number in (1, 2, 3):  # what is broadcast in round r was trained for r rounds
        sent = next(e.broadcast.model for e in played.exchanges if e.broadcast.round == number)
        expected = dict(simulated(model, rounds[:number], algorithm, lr).named_parameters())
        for name, p in sent.named_parameters():
            assert torch.allclose(p, expected[name], rtol=0, atol=1e-13), name
    assert not torch.allclose(sent[0].weight, model[0].weight)


def test_an_honest_server_that_sees_single_updates_keeps_to_the_median() -> None:
    model, batches = net(), clients_with(2, 5, 3)
    models = []
    for threat in ("honest_but_curious", "honest_but_curious_aggregate"):
        played = play(
            None,
            model,
            lambda _: batches,
            step=client(LocalTraining()),
            threat=THREATS[threat],
            aggregation="median",
            max_rounds=2,
            server_lr=1.0,
        )
        models.append(played.exchanges[-1].broadcast.model)
    singles = [client(LocalTraining())(Broadcast(model), b) for b in batches]
    middle = torch.stack([u.tensors["0.weight"] for u in singles]).median(dim=0).values
    for trained in models:
        assert torch.allclose(trained[0].weight, model[0].weight - middle, rtol=0, atol=1e-14)


def test_apply_update_moves_a_copy_by_delta_or_gradient_and_takes_the_buffers() -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    ones = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    buffers = {"1.running_mean": torch.full((5,), 3.0, dtype=torch.float64)}
    for kind, shift in ((UpdateKind.DELTA, 1.0), (UpdateKind.GRADIENT, -0.5)):
        moved = apply_update(model, Update(kind=kind, tensors=ones, buffers=buffers), lr=0.5)
        for name, p in moved.named_parameters():
            assert torch.equal(p, before[name] + shift), name
        assert moved[1].running_mean.tolist() == [3.0] * 5
        assert torch.equal(moved[1].running_var, before["1.running_var"])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_train_mode_statistics_reach_the_next_round_averaged() -> None:
    model, batches = net(), clients_with(4, 6)
    step = client(LocalTraining(batch_norm="train", send_buffers=True))
    played = play(
        None,
        model,
        lambda _: batches,
        step=step,
        threat=custom_threat("outsider"),  # who never sees the buffers: the protocol uses them all the same
        max_rounds=2,
    )
    expected = aggregate([step(Broadcast(model), b) for b in batches], "mean").buffers
    sent = dict(played.exchanges[-1].broadcast.model.named_buffers())
    assert all(torch.equal(sent[name], expected[name]) for name in expected)
    assert not torch.equal(sent["1.running_mean"], model[1].running_mean)


def test_a_client_that_does_not_take_part_cannot_be_addressed() -> None:
    with pytest.raises(DataError, match="addresses client 7, but only 2 take part"):
        play(
            lambda model, history: Crafted(model, clients=(7,)),
            net(),
            lambda _: clients_with(2, 3),
            step=client(LocalTraining()),
            threat=ALL,
        )


@pytest.mark.parametrize("aggregation", ["mean", "sum", "secure_sum"])
def test_a_sum_keeps_no_update_and_has_the_same_bits(aggregation: str) -> None:
    model, batches = net(), clients_with(*range(1, 40))
    train = client(LocalTraining())
    sent: list[weakref.ref[Update]] = []
    most = 0

    def step(broadcast: Broadcast, batch: Batch) -> Update:
        nonlocal most
        most = max(most, sum(one() is not None for one in sent))
        update = train(broadcast, batch)
        sent.append(weakref.ref(update))
        return update

    played = play(
        None, model, lambda _: batches, step=step, threat=NONE, aggregation=aggregation, max_rounds=1
    )
    assert most <= 2  # the first, for its names, and the last
    expected = aggregate([train(Broadcast(model), b) for b in batches], aggregation).tensors
    (exchange,) = played.exchanges
    assert all(torch.equal(exchange.update.tensors[name], t) for name, t in expected.items())


def test_updates_that_name_other_sizes_than_they_have_weigh_by_what_they_name() -> None:
    """A defense may name another number, or none at all."""
    batches = clients_with(2, 3, 5)

    def named(*numbers: int | None) -> Exchange:
        left = list(numbers)

        def step(broadcast: Broadcast, batch: Batch) -> Update:
            value = torch.tensor([float(len(batch))], dtype=torch.float64)
            return Update(kind=UpdateKind.GRADIENT, tensors={"w": value}, num_examples=left.pop(0))

        threat = ThreatModel(name="some", description="", grants=frozenset({Grant.BATCH_SIZE}))
        return play(None, net(), lambda _: batches, step=step, threat=threat, aggregation="mean").exchanges[0]

    assert named(1, 1, 2).update.tensors["w"].item() == pytest.approx((2 + 3 + 2 * 5) / 4)
    assert named(1, 1, 2).update.num_examples == 4
    assert named(None, None, None).update.tensors["w"].item() == pytest.approx(10 / 3)
    with pytest.raises(DataError, match="name it, or none"):
        named(2, 3, None)
