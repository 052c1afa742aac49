"""From a table to its grid: points, seeds, what is missing; then the run, its folder and what it shows."""

import json
import sys

import pytest
import torch
from tests.tables.small import small
from tests.tables.test_definition import SMALL

from seepage.core.errors import DataError, LogError, SpecError
from seepage.engine.run import run_grid
from seepage.models.loading import build_model
from seepage.names.tables import own_tables
from seepage.report.published import Table
from seepage.tables.definition import parse_table
from seepage.tables.grid import table_grid


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)  # no hub either


def grid_of(seeds=(0, 1), **changes):
    return table_grid(parse_table({**SMALL, **changes}), name="mine", seeds=seeds, device="cpu")


def test_a_row_is_a_point_with_the_tables_the_groups_and_its_own_settings():
    grid = grid_of(attacks=[{"name": "analytic_extraction"}])
    assert [point.title for point in grid.points] == ["digits, B = 1", "digits, B = 2"]
    first, second = (point.spec for point in grid.points)
    assert (first.protocol.batch_size, second.protocol.batch_size) == (1, 2)
    assert first.seeding == "published" and first.public_examples == 0 and first.seeds == (0, 1)
    assert grid.kind == "table" and grid.asked["table"] == "mine"
    assert [row["paper"] for row in grid.asked["layout"]["rows"]] == [{"R": 0.5}, {"R": 0.4}]


def test_rows_may_have_seeds_of_their_own():
    rows = [
        {"label": "all"},
        {"label": "few", "most_seeds": 2},
        {"label": "later", "first_seed": 100, "most_seeds": 1},
        {"label": "users", "users": True},
        {"label": "targets", "by_seed": {"target_class": 2}},
    ]
    attacks = [{"name": "class_fishing"}]
    grid = grid_of(seeds=(3, 4, 5), rows=rows, vary={}, attacks=attacks, groups=[{"title": "digits"}])
    specs = [point.spec for point in grid.points]
    assert [spec.seeds for spec in specs] == [(3, 4, 5), (3, 4), (103,), (0,), (3,), (4,), (5,)]
    assert specs[3].protocol.clients == 3
    assert [spec.attacks[0].options.get("target_class") for spec in specs[-3:]] == [1, 0, 1]
    assert [len(row["points"]) for row in grid.asked["layout"]["rows"]] == [1, 1, 1, 1, 3]


def test_the_first_data_that_can_be_loaded_are_taken_and_others_are_named(no_data):
    several = [{"name": "mnist"}, {"name": "digits"}]
    grid = grid_of(groups=[{"title": "A", "data": several}, {"title": "B", "data": {"name": "mnist"}}])
    assert {point.spec.data.name for point in grid.points} == {"digits"}
    (missing,) = grid.asked["layout"]["missing"]
    assert missing.startswith("B: data not found")


@pytest.mark.parametrize("name", sorted(set(own_tables()) - {"filters/stock"}))  # that one has digits
def test_no_data_at_all_is_one_clear_error(name, no_data):
    from seepage.tables.definition import TABLES

    with pytest.raises(DataError, match=r"none of the table's datasets was found.*SEEPAGE_DATA"):
        table_grid(TABLES[name], name=name)


def test_weights_that_are_not_there_leave_out_their_rows(no_data):
    table = small("geiping2020/single-image")
    grid = table_grid(parse_table(table), seeds=(0,))
    assert [point.title for point in grid.points][-1] == "ResNet-20, untrained"
    assert [said.partition(":")[0] for said in grid.asked["layout"]["missing"]] == [
        "ResNet-20, trained",
        "ResNet-20, trained, the longest of 30",
    ]


def test_a_setting_that_no_audit_has_is_refused_with_the_row():
    with pytest.raises(SpecError, match=r"row 'B = 1'.*unknown key 'protokol'"):
        grid_of(protokol={"batch_size": 1})


def test_the_run_is_kept_goes_on_and_is_shown_from_its_folder(tmp_path):
    attacks = [{"name": "analytic_extraction"}]
    grid, out = grid_of(attacks=attacks), tmp_path / "run"
    first = Table.of(run_grid(grid, out=out, engine="here"))
    assert first.rows[0].figures["R"].values == (1.0, 1.0) and first.rows[0].figures["R"].paper == 0.5
    assert first.not_measured() == ()
    (out / "cells/002-digits-b-2").joinpath("analytic_extraction-seed1.json").unlink()
    again: list[str] = []
    log = run_grid(grid, out=out, engine="here", on_cell=lambda cell, *_: again.append(cell))
    assert again == ["digits, B = 2: analytic_extraction, seed 1", ""]
    assert [row.figures for row in Table.of(log).rows] == [row.figures for row in first.rows]
    # other words about the same figures go on with the same cells, and replace the old ones
    reworded = grid_of(attacks=attacks, notes=["in other words"])
    assert "in other words" in Table.of(run_grid(reworded, out=out, engine="here")).notes
    with pytest.raises(LogError, match="different table"):
        run_grid(grid_of(attacks=attacks, seeds=(5,)), out=out, engine="here")


def test_the_baseline_runs_only_where_the_table_shows_it(tmp_path):
    attacks = [{"name": "analytic_extraction"}]
    plain = run_grid(grid_of(seeds=(0,), attacks=attacks), out=tmp_path / "a", engine="here")
    assert {cell.attack.name for point in plain.points for cell in point.cells} == {"analytic_extraction"}
    columns = [*SMALL["columns"], {"name": "guess", "meaning": "x", "score": "mse", "attack": "prior_only"}]
    beside = run_grid(
        grid_of(seeds=(0,), attacks=attacks, columns=columns), out=tmp_path / "b", engine="here"
    )
    for row, point in zip(Table.of(beside).rows, beside.points, strict=True):
        (cell,) = [cell for cell in point.cells if cell.attack.name == "analytic_extraction"]
        errors = [example.baseline["mse"] for example in cell.examples]
        assert row.figures["guess"].mean == pytest.approx(sum(errors) / len(errors))


def test_a_refusal_counts_as_the_guess_where_the_table_says_so_and_as_nothing_elsewhere(tmp_path):
    columns = [{"name": "error", "meaning": "x", "score": "mse"}]
    changes = {"columns": columns, "published": [], "groups": [{"title": "digits"}]}
    changes |= {
        "vary": {},
        "rows": [{"label": "r"}],
        "attacks": [{"name": "april"}],
    }
    guess = Table.of(run_grid(grid_of(**changes, refused="guess"), out=tmp_path / "a", engine="here"))
    assert guess.rows[0].figures["error"].n == 2 and guess.rows[0].figures["error"].mean > 0
    nothing = Table.of(run_grid(grid_of(**changes), out=tmp_path / "b", engine="here"))
    assert nothing.rows[0].figures == {} and nothing.not_measured() != ()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_with_traps_is_what_counting_activations_gives(seed, tmp_path):
    """An example is found iff some neuron fires for it and for nobody else; so is the average's of three
    batches, and the network behind the traps does not matter."""
    table = small("boenisch2021/table9")
    table["groups"][1]["rows"] = [
        {**table["groups"][1]["rows"][1], "label": "deep", "model": {"hidden": [30, 20, 10]}}
    ]
    log = run_grid(table_grid(parse_table(table), seeds=(seed,)), out=tmp_path / "run", engine="here")
    from seepage.attacks import ATTACKS
    from seepage.core.types import Knowledge
    from seepage.data import load_data
    from seepage.protocol import draw_clients

    digits = load_data("digits")
    model = build_model("fcnn", digits.spec, seed=seed, width=60, hidden=(20,), initialiser="xavier_uniform")
    known = Knowledge(input=digits.spec, seed=seed)
    layer = ATTACKS["trap_weights"](scale=0.7, read="bare").craft(model, (), known).model.dense0
    drawn = draw_clients(digits.labels, clients=3, examples_each=5, seed=seed)
    with torch.no_grad():
        fires = layer(digits.inputs[torch.cat(drawn)].flatten(1)) > 0
    _, average, one = Table.of(log).rows
    for row, mine in ((average, fires), (one, fires[-5:])):
        alone = mine.sum(dim=0) == 1
        found = int(mine[:, alone].any(dim=1).sum())
        assert row.figures["A"].mean == pytest.approx(float(mine.any(dim=0).double().mean()))
        assert row.figures["P all"].mean == pytest.approx(float(alone.double().mean()))
        assert row.figures["R"].mean == pytest.approx(found / 15)
    assert 0 < one.figures["R"].mean < average.figures["R"].mean < 1


def test_the_layout_in_the_log_is_plain_json(tmp_path):
    run_grid(grid_of(attacks=[{"name": "analytic_extraction"}]), out=tmp_path / "run", engine="here")
    header = json.loads((tmp_path / "run/log.json").read_text())
    assert header["kind"] == "table" and header["spec"]["layout"]["columns"][0]["name"] == "R"
