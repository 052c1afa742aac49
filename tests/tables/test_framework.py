"""Section 8.4 through Flower: the row of the real table, in small, in Flower's own classes without Ray."""

from pathlib import Path

import pytest
from tests.tables.small import DIGITS, FCNN

from seepage.engine.run import run_grid
from seepage.engine.written import read_toml
from seepage.names.tables import table_file
from seepage.report.published import Table
from seepage.tables.definition import parse_table
from seepage.tables.grid import table_grid

pytest.importorskip("flwr")


def small_table(**changes: object) -> dict[str, object]:
    table = read_toml(table_file("boenisch2021/section8.4"))
    group = table["groups"][0]
    row, with_ray = [row for row in group["rows"] if "users of Flower" in row["label"]]
    assert row["probes"] == ["seepage.tables.framework:flower_users"]  # in this process
    assert with_ray["probes"] == [{"name": "seepage.tables.framework:flower_users", "backend": "ray"}]
    row["protocol"] = {**row["protocol"], **changes}
    group |= {"data": DIGITS, "rows": [row]}
    return table | {"groups": [group], "protocol": {"batch_size": 12}, "model": FCNN}


def test_users_of_flower_have_the_scores_of_our_loop(tmp_path: Path) -> None:
    grid = table_grid(parse_table(small_table()), name="small", seeds=range(3), device="cpu")
    table = Table.of(run_grid(grid, out=tmp_path / "run", engine="here"))
    (row,) = table.rows
    assert table.not_measured() == ()
    assert list(row.figures["identical"].values) == [1.0]
    assert len(row.figures["R"].values) == 3 and max(row.figures["R"].values) > 0


def test_another_step_than_our_loop_s_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users who take a step of another kind have other scores: the comparison can fail."""
    from seepage.integrations.flower import users

    honest = users.served

    def doubled(model, batches, *, lr, backend):  # type: ignore[no-untyped-def]
        half = [batch.select(slice(0, 6)) for batch in batches]
        return honest(model, half, lr=lr, backend=backend)

    monkeypatch.setattr(users, "served", doubled)
    grid = table_grid(parse_table(small_table()), name="small", seeds=range(2), device="cpu")
    table = Table.of(run_grid(grid, out=tmp_path / "run", engine="here"))
    assert table.rows[0].figures["identical"].values[0] < 1.0
