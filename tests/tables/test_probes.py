"""What the tables measure, against counting and numbers made by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from seepage.attacks import ATTACKS
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.data import load_data
from seepage.models.loading import build_model
from seepage.protocol import local_update
from seepage.tables import probes
from seepage.tables.probes import activations, counted_recall, kept_batches, peeled, pictures


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


def trapped(data, seed):
    model = build_model("fcnn", data.spec, seed=seed, width=60, hidden=(20,), initialiser="xavier_uniform")
    attack = ATTACKS["trap_weights"](scale=0.7, read="bare")
    crafted = attack.craft(model, (), Knowledge(input=data.spec, seed=seed))
    return attack, crafted


def attacked(data, seed, index):
    """What a probe sees of traps and one client's answer to them."""
    attack, crafted = trapped(data, seed)
    batch, sent = data.batch(index), Broadcast(crafted.model)
    update = local_update(sent, batch, LocalTraining())
    exchange = Exchange(broadcast=sent, update=update, clients=(0,), secret=crafted.secret)
    result = attack.run([exchange], Knowledge(input=data.spec))
    played = SimpleNamespace(exchanges=(exchange,), truth=batch, truth_clients=torch.zeros(len(batch)).long())
    return SimpleNamespace(data=data, played=played, result=result)


def says(values, truth, **more):
    """What a probe sees of an attack that answers `values`."""
    spec = InputSpec(modality=Modality.IMAGE, shape=tuple(truth.shape[1:]), num_classes=2)
    result = Reconstruction(values=values, **more)
    played = SimpleNamespace(truth=Batch(truth, torch.zeros(len(truth)).long()), exchanges=())
    return SimpleNamespace(data=SimpleNamespace(spec=spec), played=played, result=result)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_counted_recall_is_that_of_the_attack_itself(digits, seed):
    """The whole way: gradient, division by the bias gradient, comparison with the truth."""
    seen = attacked(digits, seed, torch.arange(15))
    found = probes.each_user(seen)["R of user 0"]
    assert 0 < found < 1
    model = seen.played.exchanges[0].broadcast.model
    assert counted_recall(activations(model, digits, torch.arange(15))) == pytest.approx(found)
    assert kept_batches(seen, first=True)["R first"] == pytest.approx(found)


def test_activations_are_those_of_the_first_dense_layer(digits):
    model = trapped(digits, 0)[1].model
    index = torch.arange(600)  # more than one chunk
    with torch.no_grad():
        expected = digits.inputs[index].flatten(1).double() @ model.dense0.weight.double().T > 0
    fires = activations(model, digits, index)
    assert fires.shape == expected.shape
    assert float((fires == expected).double().mean()) > 0.9999  # a sum of zero may round to either side


def test_every_run_counts_the_same_batches(digits):
    """Otherwise the mean over runs would not be that of a kept batch: the run's own batch and the global
    seed change nothing, another model does."""
    torch.manual_seed(1)
    before = kept_batches(attacked(digits, 0, torch.arange(10)))
    torch.manual_seed(2)
    assert kept_batches(attacked(digits, 0, torch.arange(10, 20))) == before
    assert len(before) == probes.KEPT_BATCHES and len(set(before.values())) > 1
    assert kept_batches(attacked(digits, 1, torch.arange(10))) != before


def test_a_dataset_of_one_batch_has_no_luck(digits):
    """All kept batches are then the whole set, in some order."""
    few = replace(digits, inputs=digits.inputs[:12], labels=digits.labels[:12])
    assert len(set(kept_batches(attacked(few, 0, torch.arange(12)), first=True).values())) == 1


def test_each_users_recall_is_of_its_own_examples(digits):
    seen = attacked(digits, 0, torch.arange(12))
    seen.played.truth_clients = torch.arange(12) // 6
    alone = [probes.each_user(seen)[f"R of user {user}"] for user in (0, 1)]
    seen.played.truth_clients = torch.zeros(12).long()
    assert sum(alone) / 2 == pytest.approx(probes.each_user(seen)["R of user 0"])


def test_candidates_are_assigned_and_what_is_missing_is_grey():
    truth = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    found = pictures(says(truth[[2, 0]].clone(), truth))
    assert found["exact"] == pytest.approx(2 / 3)
    assert found["error"] == pytest.approx(float((truth[1] - 0.5).square().mean()) / 3, rel=1e-5)
    assert (found["recovered"], found["above grey"]) == (2, pytest.approx(2 / 3))
    assert found["best"] == 100.0  # the cap


def test_psnr_is_that_of_the_value_range_and_is_ranked():
    truth = torch.full((3, 3, 8, 8), 0.3)  # grey is off by 0.2: 14 dB
    values = torch.stack([truth[0] + 0.1, truth[1] + 0.19, truth[2] + 0.3])  # 20, 14.4 and 10.5 dB
    found = pictures(says(values, truth))
    assert found["best"] == pytest.approx(20.0, abs=1e-3)
    assert found["worst"] == pytest.approx(10.4576, abs=1e-3)
    assert found["above grey"] == pytest.approx(1 / 3)
    assert found["PSNR"] == pytest.approx((20.0 + 14.4249 + 10.4576) / 3, abs=1e-3)


def test_only_claims_count(monkeypatch):
    """Right and claimed, right but not claimed, claimed but no example, and one example claimed twice."""
    monkeypatch.setattr(probes, "leaves_trace", lambda seen: torch.tensor([True, True, False]))
    truth = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    values = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.2, 0.2], [0.0, 1.0003]])
    scores = peeled(says(values, truth, claimed=torch.tensor([True, False, True, True])))
    assert scores["R peel"] == pytest.approx(1 / 3) and scores["R traced"] == pytest.approx(1 / 2)
    assert (scores["false"], scores["complete"], scores["no trace"]) == (1, 0, 1)
    # errors 0 and 3e-4: the lower of the two middle values is torch's median
    assert scores["L2 error"] == 0
    off = torch.tensor([[3e-4, 1.0 - 4e-4]])
    assert peeled(says(off, truth, claimed=torch.tensor([True])))["L2 error"] == pytest.approx(5e-4, rel=1e-3)
    nothing = peeled(says(values[:1], truth, claimed=torch.tensor([False])))
    assert nothing == {"R peel": 0, "R traced": 0, "false": 0, "complete": 0, "no trace": 1}
    assert peeled(says(values, truth)) == {}  # an attack that vouches for nothing


def test_the_mean_picture_is_that_of_the_data(digits):
    truth = digits.inputs.mean(dim=0, keepdim=True)
    played = SimpleNamespace(truth=Batch(truth, torch.tensor([0])))
    assert probes.mean_picture(SimpleNamespace(data=digits, played=played)) == {"PSNR of the mean": 100.0}


def test_recall_against_several_batches():
    seen = SimpleNamespace(scored=SimpleNamespace(batch_scores={"extraction_recall": 0.6}))
    assert probes.against_all(seen, batches=3) == {"R against all": pytest.approx(0.2)}
