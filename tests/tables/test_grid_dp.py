"""The table of private trainings, small: digits, two rows, and canaries in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seepage.engine.run import run_grid
from seepage.engine.written import read_toml
from seepage.names.tables import table_file
from seepage.report.published import Table
from seepage.tables.definition import parse_table
from seepage.tables.grid import table_grid


def small() -> dict[str, Any]:
    table = read_toml(table_file("dp/mnist"))
    rows = [row for row in table["rows"] if row["label"] in ("no defense (epsilon infinite)", "epsilon 3")]
    training = {**table["training"], "rounds": 20, "rate": 0.2, "test_examples": 300, "canaries": 200}
    group = {**table["groups"][0], "attacks": [{"name": "inverting_gradients", "steps": 3}]}
    return {
        **table,
        "data": {"name": "digits"},
        "rows": rows,
        "groups": [group],
        "training": training,
        "public_examples": 64,
    }


def test_a_row_has_accuracy_both_epsilons_and_both_servers(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    grid = table_grid(parse_table(small()), name="dp/mnist", seeds=(7,), device="cpu")
    shown = Table.of(run_grid(grid, out=tmp_path / "run", engine="here"))
    assert shown.not_measured() == ()
    plain, private = (row.figures for row in shown.rows)
    assert plain["accuracy"].mean > 0.5 and "epsilon" not in plain and "canaries" not in plain
    assert 2.9 < private["epsilon"].mean <= 3.0 and private["accuracy"].mean > 0.3
    # 200 canaries: a standard error of a tenth of the distance
    assert 1.5 < private["canaries"].mean < 4.5 and private["at least"].mean < 3.0
    assert {"PSNR", "PSNR, knowing", "guess"} <= set(private)


def test_every_epsilon_that_is_asked_for_is_attacked_by_a_server_that_knows() -> None:
    table = read_toml(table_file("dp/mnist"))
    asked = [row["defenses"][0]["epsilon"] for row in table["rows"] if "defenses" in row]
    assert asked == [8.0, 3.0, 2.0, 1.0, 0.5] and table["adaptive"] is True
    assert table["training"]["rate"] * table["training"]["rounds"] == 12  # passes, as its notes say
