"""Every table gives, on equal seeds, the figures that it gave when each was a program of its own.

`figures.json` was written by that code on the settings of `small`: for each row, by column, a value a seed.
A table that came later has figures that are known without running it.
"""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.tables.small import CHANGES, SEEDS, small

from seepage.engine.run import run_grid
from seepage.metrics import registered_psnr, registered_psnr_available
from seepage.names.tables import own_tables
from seepage.report.published import Table
from seepage.tables import fished
from seepage.tables.definition import parse_table
from seepage.tables.grid import table_grid

BEFORE = json.loads((Path(__file__).parent / "figures.json").read_text())
DECIBELS = {"PSNR", "PSNR pooled", "above flat", "above grey", "max", "mean"}
REGISTERS = {"wen2022/table2", "wen2022/table3"}


@pytest.fixture(autouse=True)
def short_registration(monkeypatch):
    """Two steps a level instead of a hundred: how well pictures are registered is tested elsewhere."""
    monkeypatch.setattr(fished, "registered_psnr", partial(registered_psnr, iterations=2))


def alike(column: str, own: float, before: float) -> bool:
    """Equal to 1e-5. Decibels of a search that came near: the errors behind them, to half of "exact".

    Another processor rounds differently, and a search that has nearly arrived goes on from there: at 56 dB an
    error of .00168 became .00148.
    """
    if own == pytest.approx(before, rel=1e-5, abs=1e-9):
        return True
    return column in DECIBELS and abs(10 ** (-own / 20) - 10 ** (-before / 20)) <= 5e-4


@pytest.mark.parametrize("name", sorted(BEFORE))
def test_the_figures_are_those_of_the_code_before(name, tmp_path, monkeypatch):
    if name in REGISTERS and not registered_psnr_available()[0]:
        pytest.skip("registered PSNR needs kornia, which is not installed")
    monkeypatch.delenv("SEEPAGE_DATA", raising=False)
    seeds = range(SEEDS.get(name, 2))
    grid = table_grid(parse_table(small(name)), name=name, seeds=seeds, device="cpu")
    table = Table.of(run_grid(grid, out=tmp_path / "run", engine="here"))
    assert table.not_measured() == ()
    assert [row.label for row in table.rows] == [label for _, label, _ in BEFORE[name]]
    for row, (_, label, columns) in zip(table.rows, BEFORE[name], strict=True):
        for column, values in columns.items():
            for own, before in zip(row.figures[column].values, values, strict=True):
                assert alike(column, own, before), (label, column, own, before)


def test_every_table_is_compared():
    ours = {"filters/stock", "dp/mnist"}  # no paper's, and never were programs
    assert set(BEFORE) == set(CHANGES) == set(own_tables()) - ours
