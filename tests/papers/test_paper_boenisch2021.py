"""Tables 2 and 4 in small, against activations counted directly, and what happens without data."""

import sys

import pytest
import torch

from seepage.attacks import ATTACKS
from seepage.errors import DataError, SpecError
from seepage.federation import draw_clients, local_update
from seepage.metrics import extraction_scores
from seepage.papers import PAPERS, boenisch2021_table2, boenisch2021_table4, reproduce
from seepage.papers.extraction import Source, load_present, passive_extraction
from seepage.types import Broadcast, Exchange, Knowledge, LocalTraining
from seepage.workloads.data import load_data
from seepage.workloads.models.loading import build_model

SMALL = {"batch_size": 12, "width": 60, "hidden": (20, 10)}


def example_gradients(dataset, initialiser: str, seed: int):
    """d (examples, neurons): each example's own gradient behind the first layer, and the flat examples."""
    model = build_model(
        "fcnn", dataset.spec, initialiser=initialiser, seed=seed, width=SMALL["width"], hidden=SMALL["hidden"]
    )
    (mine,) = draw_clients(dataset.labels, clients=1, examples_each=SMALL["batch_size"], seed=seed)
    batch = dataset.batch(mine)
    rest = [module for name, module in model.named_children() if name not in ("flatten", "dense0")]
    gradients = []
    for x, y in zip(batch.inputs, batch.labels, strict=True):
        z = model.dense0(x.flatten()).detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(torch.nn.Sequential(*rest)(z)[None], y[None])
        gradients.append(torch.autograd.grad(loss, z)[0])
    return torch.stack(gradients).double(), batch.inputs.flatten(1).double()


def scores_of(shown, active) -> dict[str, float]:
    """`shown` (examples, neurons): the neuron's row shows this example."""
    rows = int(shown.any(dim=0).sum())
    return {
        "A": int(active.sum()) / len(active),
        "P": rows / int(active.sum()),
        "P all": rows / len(active),
        "R": int(shown.any(dim=1).sum()) / len(shown),
    }


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_run_of_table_2_is_what_counting_activations_gives(seed):
    """An example is extractable iff some neuron passes on a gradient for it and for nobody else."""
    digits = load_data("digits")
    reaches = example_gradients(digits, "xavier_uniform", seed)[0] != 0
    users = reaches.sum(dim=0)
    expected = scores_of(reaches & (users == 1), users > 0)
    assert 0 < expected["R"] < 1  # otherwise this would compare nothing
    assert boenisch2021_table2.measure(digits, "xavier_uniform", seed, **SMALL) == pytest.approx(expected)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_a_saturated_softmax_a_dominant_example_counts_as_well(seed):
    """Large weights shrink most examples' gradients, so that some mixtures lie within 1e-3 of one of them."""
    digits = load_data("digits")
    gradients, examples = example_gradients(digits, "gaussian_0.5", seed)
    active = (gradients != 0).any(dim=0)
    shares = gradients / gradients.sum(dim=0).where(active, torch.ones(()))
    mixtures = shares.T @ examples  # (neurons, pixels)
    far = (mixtures[None] - examples[:, None]).abs().amax(dim=2)  # (examples, neurons)
    expected = scores_of((far <= 1e-3) & active, active)
    assert boenisch2021_table2.measure(digits, "gaussian_0.5", seed, **SMALL) == pytest.approx(expected)


def test_the_scores_are_those_of_the_registered_attack():
    digits = load_data("digits")
    model = build_model("fcnn", digits.spec, initialiser="xavier_uniform", width=60, hidden=(20,))
    batch = digits.batch(torch.arange(12))
    seen = Exchange(
        broadcast=Broadcast(model),
        update=local_update(Broadcast(model), batch, LocalTraining()),
        clients=(0,),
    )
    found = ATTACKS["analytic_extraction"]().run([seen], Knowledge(input=digits.spec))
    scores = extraction_scores(found.values, found.support, found.rows, batch.inputs)
    ours = passive_extraction(model, batch, digits.spec)
    assert (ours["P"], ours["R"], ours["A"]) == (scores.precision_active, scores.recall, scores.active)


def test_a_diverged_network_is_an_error_and_not_a_leak_of_zero():
    digits = load_data("digits")
    model = build_model("fcnn", digits.spec, initialiser="xavier_uniform", width=10, hidden=(5,))
    torch.nn.init.constant_(model.head.weight, torch.nan)
    with pytest.raises(DataError, match="diverged"):
        passive_extraction(model, digits.batch(torch.arange(4)), digits.spec)


def test_table_2_has_a_row_for_each_initialiser_and_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("SEEPAGE_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)  # no hub either
    sources = (Source("MNIST", "digits", ({},)), Source("CIFAR10", "cifar10"))
    monkeypatch.setattr(boenisch2021_table2, "SOURCES", sources)
    table = boenisch2021_table2.run(seeds=2, out=tmp_path, quiet=True, **SMALL)
    assert [row.label for row in table.rows] == list(boenisch2021_table2.INITIALISERS.values())
    xavier = table.rows[0].figures
    assert (xavier["P"].paper, xavier["R"].paper, xavier["A"].paper) == (0.004, 0.037, None)
    assert xavier["R"].n == 2
    (missing,) = table.missing
    assert missing.startswith("CIFAR10: data not found")


def test_table_4_begins_untrained_and_its_loss_falls(tmp_path, monkeypatch):
    monkeypatch.setattr(boenisch2021_table4, "SOURCES", (Source("MNIST", "digits", ({},)),))
    small = {"images": 600, "batches": 3, "batch_size": 10, "width": 40, "hidden": (20,), "lr": 0.002}
    table = boenisch2021_table4.run(seeds=1, out=tmp_path / "a", quiet=True, epochs=(0, 1, 3), **small)
    assert [row.label for row in table.rows] == ["epoch 0", "epoch 1", "epoch 3"]
    losses = [row.figures["loss"].mean for row in table.rows]
    assert losses == sorted(losses, reverse=True)
    # epoch 0 is the untrained network
    digits = load_data("digits")
    fresh = boenisch2021_table4.Training(digits, seed=0, images=600, lr=0.1, width=40, hidden=(20,))
    scores = fresh.extraction(batches=3, batch_size=10)
    assert {name: table.rows[0].figures[name].mean for name in scores} == pytest.approx(scores)


def test_table_4_resumes_to_the_same_weights(tmp_path, monkeypatch):
    """The last row alone, computed by a second run, equals that of an uninterrupted one."""
    monkeypatch.setattr(boenisch2021_table4, "SOURCES", (Source("MNIST", "digits", ({},)),))
    small = {"images": 300, "batches": 2, "batch_size": 10, "width": 30, "hidden": (20,), "lr": 0.001}
    whole = boenisch2021_table4.run(seeds=2, out=tmp_path / "a", quiet=True, epochs=(0, 1, 3), **small)
    boenisch2021_table4.run(seeds=2, out=tmp_path / "b", quiet=True, epochs=(0, 1), **small)
    resumed = boenisch2021_table4.run(seeds=2, out=tmp_path / "b", quiet=True, epochs=(0, 1, 3), **small)
    assert resumed.rows == whole.rows


def test_published_values_are_complete():
    for values in boenisch2021_table2.PUBLISHED.values():
        assert len(values) == len(boenisch2021_table2.INITIALISERS)
    assert {s.title for s in boenisch2021_table2.SOURCES} == set(boenisch2021_table2.PUBLISHED)
    assert {s.title for s in boenisch2021_table4.SOURCES} == set(boenisch2021_table4.PUBLISHED)


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_no_data_at_all_is_one_clear_error(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"none of the table's datasets was found.*SEEPAGE_DATA"):
        reproduce(name, out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_the_first_split_that_can_be_loaded_is_taken(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    present, missing = load_present([Source("A", "digits", ({},)), Source("B", "mnist")])
    assert list(present) == ["A"]
    assert len(missing) == 1


def test_an_unknown_name_gets_the_nearest_valid_one():
    with pytest.raises(SpecError, match="did you mean 'boenisch2021/table2'"):
        reproduce("boenisch2021/tabel2")


def test_fewer_than_one_seed_is_refused():
    with pytest.raises(SpecError, match="at least one"):
        reproduce("boenisch2021/table2", seeds=0)
