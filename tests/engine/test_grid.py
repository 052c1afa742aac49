"""A grid whose points differ in model, data and protocol; one folder format for every kind of run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from seepage.core.errors import LogError, SeepageError
from seepage.engine import points as points_module
from seepage.engine.executors.work import one_thread
from seepage.engine.grid import Grid, Job, Point
from seepage.engine.points import Points
from seepage.engine.run import run_audit, run_grid
from seepage.engine.spec import parse_spec
from seepage.engine.work import work
from seepage.record import AttackRef, AuditLog, Cell, RunLog

BASE: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [16]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "seeds": [0],
    "protocol": {"batch_size": 2},
}
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "wider": {"model": {"name": "mlp", "hidden": [32]}},
    "table": {"data": "breast_cancer"},
    "summed": {"protocol": {"batch_size": 2, "clients": 2, "aggregation": "secure_sum"}},
    "ruled_out": {
        "attacks": [{"name": "trap_weights", "read": "rows"}],
        "threat": "honest_but_curious",
    },
}


def grid(*names: str) -> Grid:
    points = [
        Point(key=n, title=n, spec=parse_spec({**BASE, **CHANGES[n]})) for n in (names or tuple(CHANGES))
    ]
    return Grid(kind="table", title="A table", points=tuple(points), asked={"name": "mine"})


def content(cell: Cell) -> Any:
    """All that must be the same wherever a cell runs: everything but the cost."""
    return cell.model_dump(exclude={"cost", "run_key"})


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return run_grid(grid(), out=tmp_path_factory.mktemp("grid") / "run")


def test_every_point_is_the_audit_that_it_would_be_alone(log: RunLog, tmp_path: Path) -> None:
    for name in ("plain", "wider", "table", "summed"):
        alone = run_audit(parse_spec({**BASE, **CHANGES[name]}), out=tmp_path / name)
        assert [content(c) for c in log.point(name).cells] == [content(c) for c in alone.cells]
    assert log.missing == 0 and log.header.kind == "table" and log.header.cells == 10


def test_a_point_whose_attack_is_not_granted_says_so_in_its_cell(log: RunLog) -> None:
    _, attack = log.point("ruled_out").cells
    assert attack.status == "not_applicable" and "craft_weights" in attack.reason


def test_data_are_read_once_and_a_model_once_for_all_points_that_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    prepared: list[str] = []
    for name, seen in (("read_data", read), ("prepare", prepared)):
        inner = getattr(points_module, name)
        monkeypatch.setattr(
            points_module,
            name,
            lambda spec, *a, inner=inner, seen=seen, **k: (seen.append(spec.data.name), inner(spec, *a, **k))[
                1
            ],
        )
    points = Points(grid("plain", "wider", "table", "summed"))
    points.check()
    assert read == ["digits", "breast_cancer"]
    assert prepared == ["digits", "digits", "breast_cancer"]  # summed has the model and data of plain
    assert points[0].dataset is points[1].dataset and points[0].identity == points[3].identity
    assert len({points[number].run_key for number in range(4)}) == 4


def test_the_key_of_a_point_does_not_depend_on_the_points_before_it() -> None:
    alone = Points(grid("summed"))[0].run_key
    assert Points(grid("plain", "summed"))[1].run_key == alone


def test_the_protocols_loss_is_each_points_own() -> None:
    spec = parse_spec({**BASE, "protocol": {"batch_size": 2, "loss": "cross_entropy_sum"}})
    base = grid("plain")
    both = Grid(kind="table", title="", points=(*base.points, Point(key="sum", spec=spec)))
    points = Points(both)
    assert (points[0].loss, points[1].loss) == ("cross_entropy", "cross_entropy_sum")


def test_keys_of_points_are_distinct() -> None:
    with pytest.raises(ValueError, match="distinct"):
        Grid(kind="table", title="", points=grid("plain").points * 2)


def test_a_resumed_grid_runs_only_what_is_missing(log: RunLog, tmp_path: Path) -> None:
    run_grid(grid(), out=tmp_path / "run")
    lost = log.point("summed").cells[1].id
    (tmp_path / "run" / "cells" / "summed" / f"{lost}.json").unlink()
    seen: list[tuple[str, int, int]] = []
    again = run_grid(grid(), out=tmp_path / "run", on_cell=lambda *a: seen.append(a))
    assert seen == [("summed: analytic_extraction, seed 0", 9, 10), ("", 10, 10)]
    assert content(again.point("summed").cells[1]) == content(log.point("summed").cells[1])


def test_other_seeds_are_another_run(log: RunLog) -> None:
    with pytest.raises(LogError, match="different table"):
        run_grid(grid().with_settings(seeds=(5,)), out=log.folder.path)
    with pytest.raises(LogError, match=r"the log of a table .*--out, or replace it with --fresh"):
        run_audit(parse_spec(BASE), out=log.folder.path)
    with pytest.raises(LogError, match=r"holds a table, not an audit"):
        AuditLog.read(log.folder.path)


def test_the_same_cell_with_one_thread_and_with_two(tmp_path: Path) -> None:
    """In this process, where a user may have set any number of threads."""
    before = torch.get_num_threads()
    spec = {**BASE, "attacks": [{"name": "inverting_gradients", "steps": 20}]}
    try:
        cells = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = run_audit(parse_spec(spec), out=tmp_path / str(threads))
            assert torch.get_num_threads() == threads
            arrays = found.folder.read_arrays(found.cells[1].id)
            cells.append((content(found.cells[1]), {n: a.tobytes() for n, a in arrays.items()}))
        assert cells[0] == cells[1]
    finally:
        torch.set_num_threads(before)


def test_a_worker_with_other_data_refuses_the_job() -> None:
    job = Job(point=0, attack=AttackRef(name="prior_only"), seed=0, run_key="another")
    with one_thread(), pytest.raises(SeepageError, match="another model or other data"):
        work(Points(grid("plain")), job)


OLD_STUDY = {"tradeoff.json": {"study_version": 3, "title": "old"}, "training/none-seed0.json": {}}
OLD_ROWS = {"mnist-100-0123.json": {"checksum": "0", "key": {}, "values": {}}}


@pytest.mark.parametrize(
    ("files", "said"), [(OLD_STUDY, "holds a study"), (OLD_ROWS, "holds the rows of a paper's table")]
)
def test_a_folder_of_an_earlier_format_gets_one_sentence_and_fresh_replaces_it(
    tmp_path: Path, files: dict[str, Any], said: str
) -> None:
    for name, written in files.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(written))
    (tmp_path / "mine.txt").write_text("mine")
    for read in (RunLog.read, lambda path: run_grid(grid("plain"), out=path)):
        with pytest.raises(LogError, match=rf"{said} in the format of an earlier seepage.* --fresh"):
            read(tmp_path)
    assert run_grid(grid("plain"), out=tmp_path, fresh=True).missing == 0
    assert not any((tmp_path / name).exists() for name in files)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_worker_runs_an_attack_that_was_chosen_elsewhere() -> None:
    """With attacks = "auto" only the process that was started knows what was chosen."""
    spec = parse_spec({**BASE, "attacks": "auto"})
    points = Points(Grid.of_audit(spec))
    chosen = AttackRef(name="analytic_extraction")
    assert chosen.key not in points[0].attacks
    job = Job(point=0, attack=chosen, seed=0, run_key=points[0].run_key)
    with one_thread():
        assert work(points, job).cell.status == "done"
