"""Settings of an audit that say who holds what, what the server draws, and what else is measured."""

import pytest
import torch

from seepage.attacks import ATTACKS
from seepage.core.errors import DataError, ModelError, SpecError
from seepage.core.types import Broadcast, LocalTraining
from seepage.data import load_data
from seepage.engine.cell import run_cell
from seepage.engine.prepare import prepare
from seepage.engine.probes import Seen
from seepage.engine.spec import parse_spec
from seepage.models.loading import build_model
from seepage.protocol import draw_clients, local_update
from seepage.record import AttackRef

SMALL = {"model": {"name": "mlp", "hidden": [20]}, "data": "digits", "attacks": ["analytic_extraction"]}


def prepared(**changes):
    return prepare(parse_spec({**SMALL, **changes}))


def run(audit, seed=0):
    (ref,) = [ref for ref in audit.refs if ref.name != "prior_only"]
    return run_cell(audit, ref, seed)


def last_ones(labels, *, clients, examples_each, seed):
    """Every client the same: the last examples, from `seed` on."""
    mine = torch.arange(len(labels))[-examples_each - seed :][:examples_each]
    return [mine] * clients


def too_few(labels, *, clients, examples_each, seed):
    return [torch.arange(1)] * clients


def double_recall(seen: Seen, *, times: float = 2.0) -> dict[str, float]:
    return {"twice": times * seen.scored.batch_scores["extraction_recall"], "seed": seen.seed}


def test_published_seeding_draws_what_anybody_draws_and_private_does_not():
    digits = load_data("digits")
    (anybodys,) = draw_clients(digits.labels, clients=1, examples_each=8, seed=3)
    for seeding, same in (("published", True), ("private", False)):
        (batch,) = prepared(seeding=seeding, seeds=[3]).draw(3)[0](0)
        assert torch.equal(batch.inputs, digits.batch(anybodys).inputs) is same


def test_a_server_seed_keeps_the_model_and_the_attacks_seed_and_varies_the_clients():
    audit = prepared(server_seed=7)
    assert audit.state(0) == audit.state(1) != prepared().state(0)
    first, second = (audit.draw(seed)[0](0)[0].inputs for seed in (0, 1))
    assert not torch.equal(first, second)
    crafted = prepared(
        server_seed=7,
        threat="malicious_server",
        attacks=[{"name": "trap_weights", "scale": 0.8}],
        probes=["tests.engine.test_prepare_options:first_weight"],
    )
    weights = {run(crafted, seed)[0].batch_scores["weight"] for seed in (0, 1)}
    assert len(weights) == 1


def first_weight(seen: Seen) -> dict[str, float]:
    return {"weight": next(seen.played.exchanges[0].broadcast.model.parameters()).flatten()[0].item()}


def test_a_partition_of_ones_own_says_who_holds_what():
    audit = prepared(
        seeding="published",
        protocol={"batch_size": 3, "partition": "tests.engine.test_prepare_options:last_ones"},
    )
    digits = load_data("digits")
    (batch,) = audit.draw(0)[0](0)
    assert torch.equal(batch.inputs, digits.inputs[-3:])
    with pytest.raises(DataError, match="must give 3 to each of 2"):
        prepared(
            protocol={
                "batch_size": 3,
                "clients": 2,
                "partition": "tests.engine.test_prepare_options:too_few",
            }
        )
    with pytest.raises(SpecError, match="partition"):
        prepared(protocol={"partition": "uniform"})


def test_distinct_clients_hold_no_class_twice_and_no_example_is_held_twice():
    labels = torch.arange(40) % 4
    held = draw_clients(labels, clients=3, examples_each=4, scheme="distinct", seed=5)
    assert all(sorted(labels[mine].tolist()) == [0, 1, 2, 3] for mine in held)
    assert len(set(torch.cat(held).tolist())) == 12
    with pytest.raises(DataError, match="only 4 classes for 5 examples"):
        draw_clients(labels, clients=1, examples_each=5, scheme="distinct")


def test_the_first_of_each_class_in_the_order_of_an_iid_draw_are_taken():
    labels = load_data("digits").labels
    (order,) = draw_clients(labels, clients=1, examples_each=len(labels), seed=2)
    first = {}
    for index in order.tolist():
        first.setdefault(int(labels[index]), index)
    (mine,) = draw_clients(labels, clients=1, examples_each=6, scheme="distinct", seed=2)
    assert mine.tolist() == list(first.values())[:6]


def test_probes_are_recorded_beside_the_batchs_scores():
    name = "tests.engine.test_prepare_options:double_recall"
    cell, _ = run(prepared(probes=[{"name": name, "times": 3.0}]), seed=1)
    scores = cell.batch_scores
    assert scores["twice"] == 3 * scores["extraction_recall"] and scores["seed"] == 1
    with pytest.raises(SpecError, match="did you mean 'times'"):
        prepared(probes=[{"name": name, "time": 3.0}])


def test_only_the_longest_updates_are_attacked():
    audit = prepared(protocol={"batch_size": 1, "clients": 6, "attacked": 2})
    cell, _ = run(audit)
    model, batches = audit.model(0), audit.draw(0)[0](0)
    lengths = [
        sum(
            float(t.square().sum())
            for t in local_update(Broadcast(model), b, LocalTraining()).tensors.values()
        )
        for b in batches
    ]
    longest = sorted(sorted(range(6), key=lengths.__getitem__)[-2:])
    assert [example.client for example in cell.examples] == longest
    assert all(example.scores["exact"] == 1.0 for example in cell.examples)


def test_a_layer_may_have_an_initialiser_of_its_own():
    digits = load_data("digits").spec
    both = build_model("mlp", digits, hidden=(20,), initialiser={"": "xavier_uniform", "head": "gaussian_2"})
    plain = build_model("mlp", digits, hidden=(20,), initialiser="xavier_uniform")
    assert torch.equal(both.dense0.weight, plain.dense0.weight)
    assert float(both.head.weight.detach().std()) == pytest.approx(2, rel=0.2)
    with pytest.raises(ModelError, match="did you mean 'head'"):
        build_model("mlp", digits, initialiser={"heads": "gaussian_2"})


def test_clients_compute_in_the_type_that_is_asked_for():
    audit = prepared(model={"name": "mlp", "hidden": [20], "dtype": "float64"})
    assert audit.dtype is torch.float64
    assert audit.draw(0)[0](0)[0].inputs.dtype is torch.float64


def test_some_classes_or_the_last_examples_can_be_taken():
    digits = load_data("digits")
    threes = load_data("digits", classes=["3"])
    assert set(threes.labels.tolist()) == {3} and len(threes) == int((digits.labels == 3).sum())
    assert threes.spec == digits.spec
    assert torch.equal(load_data("digits", last=5).inputs, digits.inputs[-5:])
    with pytest.raises(DataError, match="unknown class 'dog'"):
        load_data("digits", classes=["dog"])
    with pytest.raises(SpecError, match="at least 1"):
        load_data("digits", last=0)


def test_positive_embeddings_leave_the_other_weights_alone():
    from seepage.core.types import InputSpec, Modality

    spec = InputSpec(modality=Modality.TEXT, shape=(5,), num_classes=2, vocabulary=50)
    plain, positive = (
        build_model("imdb_net", spec, dim=8, width=6, seed=3, positive=p) for p in (False, True)
    )
    assert torch.equal(plain.dense0.weight, positive.dense0.weight)
    weight = positive.embedding.weight.detach()
    assert 0 <= float(weight.min()) < 0.05 and 0.95 < float(weight.max()) <= 1
    assert torch.equal(weight, torch.rand(50, 8, generator=torch.Generator().manual_seed(3)))


def test_bare_reading_has_the_same_scores_and_claims_nothing():
    plain, bare = (
        run(prepared(attacks=[{"name": "analytic_extraction", "bare": bare}]))[0] for bare in (False, True)
    )
    scores = {name: value for name, value in plain.batch_scores.items() if name != "label_accuracy"}
    assert bare.batch_scores == scores and scores["extraction_recall"] > 0
    assert plain.claims > 0 == bare.claims
    traps = [
        run(
            prepared(
                threat="malicious_server", attacks=[{"name": "trap_weights", "scale": 0.8, "read": read}]
            )
        )[0]
        for read in ("rows", "bare")
    ]
    assert traps[0].batch_scores["extraction_recall"] == traps[1].batch_scores["extraction_recall"] > 0
    assert AttackRef(name="trap_weights").name in ATTACKS


def test_so_many_local_steps_are_taken_however_few_the_epochs_lead_to():
    def steps(**protocol):
        return prepared(protocol={"algorithm": "fedavg", "batch_size": 4, **protocol}).local.num_steps(4)

    assert steps(local_steps=5) == 5
    assert steps(local_batch_size=2, local_epochs=3, local_steps=2) == 2
    assert steps(local_batch_size=2, local_epochs=3) == 6
