"""Batches kept over all runs: counted R is the attack's R, and the percentiles are those of the means."""

from dataclasses import replace

import pytest
import torch

from seepage.papers import boenisch2021_table6
from seepage.papers.extraction import Source, scores_of
from seepage.papers.kept_batch import BATCHES, activations, kept_recalls, luck, recall, with_kept_batches
from seepage.papers.table import Figure, Row, Table
from seepage.papers.trapping import answer, fresh_model, read_traps, set_traps
from seepage.types import Batch
from seepage.workloads.data import load_data

SMALL = {"width": 60, "hidden": (20,)}


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


def trapped(dataset, seed):
    model = fresh_model(dataset.spec, seed=seed, **SMALL)
    return set_traps(model, dataset.spec, scale=0.7, seed=seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_counted_recall_is_that_of_the_attack_itself(digits, seed):
    """The whole way: gradient, division by the bias gradient, comparison with the truth."""
    crafted = trapped(digits, seed)
    batch = Batch(digits.inputs[:15], digits.labels[:15])
    attacked = scores_of(read_traps(answer(crafted, batch), digits.spec), batch, digits.spec)["R"]
    assert 0 < attacked < 1
    assert recall(activations(crafted.model, batch.inputs)) == pytest.approx(attacked)
    assert kept_recalls(crafted.model, digits, batch_size=15, first=True)["R first"] == pytest.approx(
        attacked
    )


def test_activations_are_those_of_the_first_dense_layer(digits):
    crafted = trapped(digits, 0)
    inputs = digits.inputs[:600]  # more than one chunk
    with torch.no_grad():
        expected = inputs.flatten(1).double() @ crafted.model.dense0.weight.double().T > 0
    fires = activations(crafted.model, inputs)
    assert fires.shape == expected.shape
    assert float((fires == expected).double().mean()) > 0.9999  # a sum of zero may round to either side


def test_every_run_counts_the_same_batches(digits):
    """Otherwise the mean over runs would not be that of a kept batch: shuffled labels and seeds change
    nothing, another model does."""
    crafted = trapped(digits, 0)
    torch.manual_seed(1)
    before = kept_recalls(crafted.model, digits, batch_size=10)
    torch.manual_seed(2)
    assert kept_recalls(crafted.model, digits, batch_size=10) == before
    assert len(before) == BATCHES and len(set(before.values())) > 1
    assert kept_recalls(trapped(digits, 1).model, digits, batch_size=10) != before


def test_a_dataset_of_one_batch_has_no_luck(digits):
    """All kept batches are then the whole set, in some order."""
    few = replace(digits, inputs=digits.inputs[:12], labels=digits.labels[:12])
    recalls = kept_recalls(trapped(digits, 0).model, few, batch_size=12, first=True)
    assert len(set(recalls.values())) == 1


def table(figures):
    row = Row("MNIST", "B = 20", {"R": Figure.over([0.3, 0.5], paper=0.45), **figures})
    return Table(name="t", title="t", columns=(), rows=(row,))


def test_percentiles_are_over_batches_of_the_mean_over_runs():
    """101 batches whose two runs average to 0, .01, ..., 1: the 5th percentile is .05."""
    batches = {f"R of batch {k}": Figure.over([k / 100 - 0.1, k / 100 + 0.1]) for k in range(101)}
    found = with_kept_batches(table(batches))
    figures = found.rows[0].figures
    assert sorted(figures) == ["R", "R 5 %", "R 95 %"]
    assert figures["R 5 %"].mean == pytest.approx(0.05) and figures["R 95 %"].mean == pytest.approx(0.95)
    assert [column.name for column in found.columns] == ["R 5 %", "R 95 %"]
    assert "1 of 1" in found.notes[-1]


@pytest.mark.parametrize(("paper", "inside"), [(0.399, 0), (0.4, 1), (0.6, 1), (0.601, 0)])
def test_a_published_value_at_the_rounded_edge_is_inside(paper, inside):
    figures = {"R": Figure.over([0.5], paper=paper)}
    figures |= {"R 5 %": Figure.over([0.4004]), "R 95 %": Figure.over([0.5996])}
    assert luck([Row("G", "r", figures)])[0].startswith(f"G: {inside} of 1 ")


def test_rows_without_a_published_value_are_not_judged():
    figures = {name: Figure.over([0.5]) for name in ("R", "R 5 %", "R 95 %")}
    assert luck([Row("G", "r", figures)]) == ()


def test_table_6_shows_the_first_examples_only_where_their_order_is_published(tmp_path, monkeypatch):
    sources = (Source("MNIST", "digits", ({},)), Source("ImageNet", "photos", ({"size": 64},)))
    monkeypatch.setattr(boenisch2021_table6, "SOURCES", sources)
    found = boenisch2021_table6.run(
        seeds=2, out=tmp_path, quiet=True, neurons=(20,), batch_sizes=(5,), hidden=(5,)
    )
    digits_row, photos_row = found.rows
    assert "R first" in digits_row.figures and "R first" not in photos_row.figures
    assert digits_row.figures["R 5 %"].mean < digits_row.figures["R 95 %"].mean
    assert not any(name.startswith("R of batch") for row in found.rows for name in row.figures)
