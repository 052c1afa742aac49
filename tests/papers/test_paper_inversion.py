"""The tables on gradient inversion: in small, on data that come with the package."""

import pytest
import torch
from torch import nn

from seepage.attacks.base import Attack
from seepage.errors import NotApplicable
from seepage.papers import boenisch2021_section85
from seepage.papers.extraction import Source
from seepage.papers.inversion import VICTIMS, draw_victims, grey, invert, trained_briefly
from seepage.types import Batch, Reconstruction
from seepage.workloads.data import load_data

DIGITS = Source("MNIST", "digits", ({},))


class Says(Attack):
    """Answers what it was told to, or refuses."""

    def __init__(self, values):
        self.values = values

    def reconstruct(self, exchanges, known):
        if self.values is None:
            raise NotApplicable("no.")
        return Reconstruction(values=self.values)


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_candidates_are_assigned_and_what_is_missing_is_grey(digits, model):
    batch = draw_victims(digits, 3, 0)
    found = invert(Says(batch.inputs[[2, 0]].clone()), model, batch, digits.spec, seed=0)
    assert found.exact.tolist() == [True, False, True]
    assert float(found.mse[1]) == pytest.approx(float((batch.inputs[1] - 0.5).square().mean()), rel=1e-5)


def test_a_refusal_counts_as_grey(digits, model):
    batch = draw_victims(digits, 2, 1)
    found = invert(Says(None), model, batch, digits.spec, seed=0)
    assert torch.equal(found.psnr, grey(batch, digits.spec).psnr)


def test_psnr_is_that_of_the_value_range(digits, model):
    batch = Batch(torch.full((1, 1, 8, 8), 0.5), torch.tensor([0]))
    found = invert(Says(torch.full((1, 1, 8, 8), 0.6)), model, batch, digits.spec, seed=0)
    assert float(found.psnr) == pytest.approx(20.0, abs=1e-3)


def test_victims_are_no_training_pictures(digits):
    members = {tuple(row) for row in digits.inputs[: len(digits) - VICTIMS].flatten(1).tolist()}
    drawn = draw_victims(digits, VICTIMS, 3)
    assert len(drawn) == VICTIMS
    assert not any(tuple(row) in members for row in drawn.inputs.flatten(1).tolist())


def test_brief_training_learns_and_happens_once(digits):
    trained = trained_briefly("mlp", digits, steps=60)
    assert trained.accuracy > 0.6  # chance is 0.1
    assert trained_briefly("mlp", digits, steps=60) is trained


def test_extraction_is_exact_where_optimisation_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(boenisch2021_section85, "SOURCES", (DIGITS,))
    table = boenisch2021_section85.run(
        seeds=1, out=tmp_path, quiet=True, batch_sizes=(1, 4), steps=5, lbfgs_steps=2, width=60, hidden=(20,)
    )
    rows = {(row.group, row.label): row.figures for row in table.rows}
    assert len(rows) == 3 + 4
    alone = rows["MNIST, B = 1", "analytic_extraction"]
    assert alone["exact"].mean == 1
    assert alone["error"].paper == 0
    few_steps = rows["MNIST, B = 1", "inverting_gradients"]
    assert few_steps["exact"].mean == 0
    assert few_steps["error"].mean > alone["error"].mean
    assert len({figures["grey"].mean for (group, _), figures in rows.items() if group.endswith("1")}) == 1
