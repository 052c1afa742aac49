"""The table of stock filters, small: digits, two rows, and a training behind each."""

from __future__ import annotations

import pytest

from seepage.core.errors import SpecError
from seepage.engine.run import run_grid
from seepage.engine.study import parse_study
from seepage.engine.written import read_toml
from seepage.names.tables import table_file
from seepage.report.published import Table
from seepage.tables.definition import parse_table
from seepage.tables.grid import table_grid


def _stock(*labels, **changes):
    table = read_toml(table_file("filters/stock"))
    rows = [row for row in table["rows"] if row["label"] in labels]
    table |= {"data": {"name": "digits"}, "rows": rows, "groups": table["groups"][:1], **changes}
    return parse_table(table)


def test_a_row_shows_what_passes_plain_and_adaptive_and_the_accuracy(tmp_path):
    pytest.importorskip("nvflare")
    training = {
        "rounds": 100,
        "clients": 4,
        "examples": 32,
        "batch_size": 16,
        "test_examples": 200,
        "seeds": 1,
    }
    table = _stock("no filter", "FLARE PercentilePrivacy()", training=training)
    grid = table_grid(table, name="filters/stock", seeds=(7,), device="cpu")
    assert {point.spec.protocol.batch_size for point in grid.points} == {8}
    shown = Table.of(run_grid(grid, out=tmp_path / "run", engine="here"))
    assert shown.not_measured() == ()
    none, percentile = (row.figures for row in shown.rows)
    assert "PSNR, knowing" not in none and none["exact"].mean == percentile["exact, knowing"].mean == 1.0
    assert percentile["PSNR, knowing"].mean >= percentile["PSNR"].mean > percentile["guess"].mean
    assert 0.2 < none["accuracy"].mean < 1 and none["accuracy"].n == 1


def test_at_least_eight_stock_filters_on_three_models():
    rows = read_toml(table_file("filters/stock"))["rows"]
    used = [one if isinstance(one, str) else one["name"] for row in rows for one in row.get("defenses", [])]
    assert len({name for name in used if name.startswith(("nvflare:", "flower:"))}) >= 8
    assert len(read_toml(table_file("filters/stock"))["groups"]) == 3


def test_a_training_that_says_nonsense_gets_one_sentence():
    with pytest.raises(SpecError, match="training: unknown key 'epochs'"):
        table_grid(_stock("no filter", training={"epochs": 3}), seeds=(0,))
    with pytest.raises(SpecError, match=r"training\.batch_size belongs to a table"):
        parse_study({"model": "mlp", "data": "digits", "training": {"batch_size": 4}})
