"""Peeling beside single rows, and the picture grids: in small, on data that come with the package."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from seepage.errors import DataError, SpecError
from seepage.papers import boenisch2021_beyond, boenisch2021_figures
from seepage.papers.boenisch2021_beyond import Case, claim_scores
from seepage.papers.boenisch2021_figures import Picture
from seepage.papers.extraction import Source
from seepage.papers.trapping import draw_batch, fresh_model, set_traps
from seepage.types import Batch, InputSpec, Modality, Reconstruction
from seepage.workloads.data import load_data

DIGITS = Source("MNIST", "digits", ({},))
SMALL = {"width": 60, "hidden": (20,)}
CASE = Case(data="MNIST", label="traps", batch_size=12, scale=0.8, paper=0.5)


def test_peeling_finds_what_rows_find_and_more(tmp_path, monkeypatch):
    monkeypatch.setattr(boenisch2021_beyond, "SOURCES", (DIGITS,))
    passive = Case(data="MNIST", label="passive", batch_size=6)
    table = boenisch2021_beyond.run(seeds=3, out=tmp_path, quiet=True, cases=(CASE, passive), dim=4, **SMALL)
    assert [row.label for row in table.rows] == ["traps", "passive"]
    traps = table.rows[0].figures
    assert traps["R rows"].paper == 0.5
    assert traps["R peel"].paper is None
    assert traps["R peel"].mean > traps["R rows"].mean > 0
    assert all(row.figures["false"].mean == 0 for row in table.rows)
    again = boenisch2021_beyond.run(seeds=3, out=tmp_path, quiet=True, cases=(CASE, passive), dim=4, **SMALL)
    assert again.rows == table.rows  # seconds and all: they were kept


def test_single_rows_give_what_counting_gives():
    digits = load_data("digits")
    batch = draw_batch(digits, 12, 1)
    layer = set_traps(fresh_model(digits.spec, seed=1, **SMALL), digits.spec, scale=0.8, seed=1).model.dense0
    with torch.no_grad():
        fires = layer(batch.inputs.flatten(1)) > 0
    alone = fires[:, fires.sum(dim=0) == 1].any(dim=1)
    scores = boenisch2021_beyond.measure(digits, CASE, 1, dim=4, **SMALL)
    assert scores["R rows"] == pytest.approx(float(alone.double().mean()))


def test_a_case_may_have_another_width_and_another_initialiser():
    digits = load_data("digits")
    case = Case(data="MNIST", label="wide", batch_size=3, width=90, initialiser="gaussian_0.1")
    crafted = boenisch2021_beyond._model(digits.spec, case, 0, dim=4, **SMALL)
    assert crafted.model.dense0.out_features == 90
    text = InputSpec(modality=Modality.TEXT, shape=(25,), num_classes=2, vocabulary=50)
    model = boenisch2021_beyond._model(text, case, 0, dim=4, **SMALL).model
    assert float(model.dense0.weight.detach().std()) == pytest.approx(0.1, rel=0.05)
    assert float(model.embedding.weight.detach().min()) >= 0  # still U(0, 1)
    assert float(model.embedding.weight.detach().max()) > 0.9


def claims(values, claimed, notes=()) -> Reconstruction:
    return Reconstruction(values=torch.tensor(values), claimed=torch.tensor(claimed), notes=notes)


SPEC = InputSpec(modality=Modality.TABULAR, shape=(2,), num_classes=2)
TRUTH = Batch(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1, 0]))


def test_only_claims_count():
    """Right and claimed, right but not claimed, claimed but no example, and one example claimed twice."""
    found = claims(
        [[0.0, 1.0], [1.0, 0.0], [0.2, 0.2], [0.0, 1.0003]], [True, False, True, True], ("Something else.",)
    )
    scores = claim_scores(found, TRUTH, SPEC)
    assert scores["R peel"] == pytest.approx(1 / 3)
    assert (scores["false"], scores["complete"]) == (1, 0)
    # errors 0 and 300 millionths: the lower of the two middle values is torch's median
    assert scores["L2 error"] == 0


def test_the_error_is_in_millionths():
    found = claims([[3e-4, 1.0 - 4e-4]], [True])
    assert claim_scores(found, TRUTH, SPEC)["L2 error"] == pytest.approx(500, rel=1e-3)


def test_without_claims_nothing_is_found_and_no_error_is_made_up():
    scores = claim_scores(claims([[0.0, 1.0]], [False]), TRUTH, SPEC)
    assert scores == {"R peel": 0, "false": 0, "complete": 0}


def test_completeness_is_what_the_attack_says():
    """The words are those of the attack itself: a whole batch read from a wide layer."""
    digits = load_data("digits")
    case = Case(data="MNIST", label="few", batch_size=3, scale=None)
    scores = boenisch2021_beyond.measure(digits, case, 0, width=200, hidden=(20,), dim=4)
    assert (scores["R peel"], scores["complete"]) == (1.0, 1.0)


@pytest.mark.parametrize("one_class", [None, "3"])
def test_a_figure_shows_what_was_recovered_and_grey_elsewhere(tmp_path, monkeypatch, one_class):
    monkeypatch.setattr(boenisch2021_figures, "SOURCES", (DIGITS,))
    picture = Picture(name="figure 9, small", data="MNIST", scale=0.7, shown=8, one_class=one_class)
    table = boenisch2021_figures.run(
        seeds=2, out=tmp_path, quiet=True, pictures=(picture,), batch_size=12, **SMALL
    )
    path = tmp_path / "figure-9-small.png"
    assert table.notes[0] == f"figure 9, small: {path}"
    (row,) = table.rows
    assert row.figures["best R"].mean >= row.figures["R"].mean > 0
    runs = [
        boenisch2021_figures.recover(load_data("digits"), picture, seed, batch_size=12, **SMALL)
        for seed in (0, 1)
    ]
    best = max(runs, key=lambda found: found.recall)
    pixels = np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB"))
    for i, (original, exact) in enumerate(zip(best.truth[:8], best.exact[:8].tolist(), strict=True)):
        x = 6 + i * (64 + 6)
        upper, lower = pixels[6:70, x : x + 64], pixels[73:137, x : x + 64]
        shown = np.floor(np.kron(original[0].numpy(), np.ones((8, 8))) * 255 + 0.5)
        assert np.array_equal(upper[..., 0], shown)
        # rounding in the gradient may move a value by one step of 255
        assert (np.abs(lower[..., 0] - shown).max() <= 1) == exact


def test_a_batch_of_one_class_has_one_class():
    digits = load_data("digits")
    members = boenisch2021_figures._members(digits, "3")
    assert set(digits.labels[members].tolist()) == {3}
    assert len(members) == int((digits.labels == 3).sum())
    with pytest.raises(DataError, match="no class named 'dog'"):
        boenisch2021_figures._members(digits, "dog")


def test_nothing_recovered_is_a_grid_of_grey(tmp_path, monkeypatch):
    monkeypatch.setattr(boenisch2021_figures, "SOURCES", (DIGITS,))
    picture = Picture(name="none", data="MNIST", scale=0.001, shown=4)
    table = boenisch2021_figures.run(
        seeds=1, out=tmp_path, quiet=True, pictures=(picture,), batch_size=4, **SMALL
    )
    assert table.rows[0].figures["R"].mean == 0
    assert (tmp_path / "none.png").is_file()


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(boenisch2021_figures, "SOURCES", (DIGITS,))
    (tmp_path / "file").write_text("")
    picture = Picture(name="x", data="MNIST", scale=0.7, shown=4)
    with pytest.raises(SpecError, match="choose a folder with --out"):
        boenisch2021_figures.run(
            seeds=1, out=tmp_path / "file", quiet=True, pictures=(picture,), batch_size=4, **SMALL
        )


def test_every_case_and_figure_names_data_that_are_loaded():
    assert {c.data for c in boenisch2021_beyond.CASES} == {s.title for s in boenisch2021_beyond.SOURCES}
    titles = {s.title for s in boenisch2021_figures.SOURCES}
    assert {p.data for p in boenisch2021_figures.PICTURES} == titles
