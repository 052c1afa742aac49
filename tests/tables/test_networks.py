"""Networks that are trained before they are attacked."""

from types import SimpleNamespace

import torch

from seepage.data import load_data
from seepage.models.loading import build_model
from seepage.tables import networks
from seepage.tables.networks import VICTIMS, train_epoch

DIGITS = {"name": "digits"}


def test_brief_training_learns_from_others_pictures_and_happens_once():
    digits = load_data("digits")
    options = {"network": "mlp", "data": DIGITS, "steps": 60}
    name = "seepage.tables.networks:trained_briefly"
    first, second = (build_model(name, digits.spec, seed=seed, **options) for seed in (0, 7))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert first is not second and not first.training
    assert networks._trained_briefly.cache_info().currsize == 1
    unseen = digits.batch(torch.arange(len(digits) - VICTIMS, len(digits)))
    with torch.no_grad():
        right = (first(unseen.inputs).argmax(1) == unseen.labels).double().mean()
    assert right > 0.6  # chance is 0.1


def test_epochs_go_on_from_each_other_and_each_seed_has_its_own_network():
    digits = load_data("digits")
    small = {"data": DIGITS, "lr": 0.1, "width": 30, "hidden": (20,)}
    name = "seepage.tables.networks:trained_by_epochs"
    untrained, once, twice = (build_model(name, digits.spec, seed=4, epochs=n, **small) for n in (0, 1, 2))
    fresh = build_model("fcnn", digits.spec, initialiser="xavier_uniform", seed=4, width=30, hidden=(20,))
    assert torch.equal(untrained.dense0.weight, fresh.dense0.weight)
    first = train_epoch(untrained, digits, epoch=0, lr=0.1, seed=4)
    assert torch.equal(untrained.dense0.weight, once.dense0.weight)  # `untrained` is a copy of its own
    second = train_epoch(once, digits, epoch=1, lr=0.1, seed=4)
    assert torch.equal(once.dense0.weight, twice.dense0.weight)
    assert first > second  # it learns
    other = build_model(name, digits.spec, seed=5, epochs=1, **small)
    assert not torch.equal(other.dense0.weight, twice.dense0.weight)


def test_measuring_an_epoch_leaves_the_attacked_model_alone():
    digits = load_data("digits")
    model = build_model("fcnn", digits.spec, width=30, hidden=(20,))
    before = model.dense0.weight.detach().clone()
    exchange = SimpleNamespace(broadcast=SimpleNamespace(model=model))
    rows = torch.arange(2)
    held = SimpleNamespace(total=4, active=2)
    found = SimpleNamespace(values=digits.inputs[:1], support=torch.tensor([2]), rows=held)
    # two of four rows hold the first of two examples
    seen = SimpleNamespace(
        played=SimpleNamespace(exchanges=(exchange,), behind=(rows,), truth=digits.batch(rows)),
        attack=SimpleNamespace(run=lambda exchanges, known: found),
        known=None,
        data=digits,
        seed=0,
    )
    scores = networks.at_epoch(seen, epoch=0, lr=0.1)
    assert torch.equal(model.dense0.weight, before)
    assert (scores["R"], scores["P all"]) == (0.5, 0.5) and 0 < scores["loss"] < 3
