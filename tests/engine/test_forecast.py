"""What a run is going to take, against costs that are made up and so known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seepage.engine import forecast as module
from seepage.engine.forecast import expected, in_words, with_forecast
from seepage.engine.grid import Grid, Point
from seepage.engine.header import make_header
from seepage.engine.points import Points
from seepage.engine.prepared import Prepared
from seepage.engine.rehearsal import Forecast
from seepage.engine.run import run_grid, unfinished
from seepage.engine.spec import parse_spec
from seepage.engine.study import parse_study
from seepage.record import TRAINING, AttackRef, Cell, RunFolder

BASE: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [16]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "seeds": [0, 1, 2, 3],
    "protocol": {"batch_size": 2},
}


class Made:
    """In the place of a rehearsal: a direct attack takes 0.5 s for each example, a search 100 s."""

    tried: list[tuple[str, int]]

    def __init__(self, prepared: Prepared, run_cell: object, *, limit: float) -> None:
        self.protocol = prepared.spec.protocol

    def whole(self, ref: AttackRef) -> Forecast:
        Made.tried.append((ref.name, self.protocol.batch_size))
        return Forecast(seconds=0.5 * self.protocol.batch_size * self.protocol.clients)

    def search(self, ref: AttackRef, *, around: float) -> Forecast:
        Made.tried.append((ref.name, self.protocol.batch_size))
        return Forecast(seconds=100.0)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    Made.tried = []
    monkeypatch.setattr(module, "Rehearsal", Made)


def table(**points: dict[str, Any]) -> Grid:
    found = [Point(key=key, title=key, spec=parse_spec({**BASE, **change})) for key, change in points.items()]
    return Grid(kind="table", title="A table", points=tuple(found))


def seen(grid: Grid, folder: Path, *, longest: float = 10.0) -> tuple[Any, Any]:
    points = Points(grid)
    header = make_header(points)
    todo, _ = unfinished(points, header, RunFolder(folder))
    return with_forecast(points, header, todo, longest=longest), todo


def test_one_rehearsal_for_each_attack_and_model_on_the_most_examples(tmp_path: Path) -> None:
    grid = table(
        small={},
        large={"protocol": {"batch_size": 8}},
        summed={"protocol": {"batch_size": 2, "clients": 2}},
        wider={"model": {"name": "mlp", "hidden": [32]}},
    )
    header, todo = seen(grid, tmp_path)
    attack = [point.expected_seconds["analytic_extraction"] for point in header.points]
    assert attack == [1.0, 4.0, 2.0, 1.0]
    assert sorted(Made.tried) == [
        ("analytic_extraction", 2),
        ("analytic_extraction", 8),
        ("prior_only", 2),
        ("prior_only", 8),
    ]
    known = expected(header, todo)
    assert known is not None and sum(known) == 4 * 2 * (1.0 + 4.0 + 2.0 + 1.0)


def test_few_cells_are_not_worth_a_rehearsal_unless_they_search(tmp_path: Path) -> None:
    attacks = ["analytic_extraction", "inverting_gradients", {"name": "deep_leakage", "budget": 7.0}]
    header, todo = seen(table(one={"seeds": [0], "attacks": attacks}), tmp_path)
    (point,) = header.points
    assert sorted(point.expected_seconds.values()) == [7.0, 100.0] and len(Made.tried) == 1
    assert expected(header, todo) is None
    assert in_words(header, todo, 1) == "at least about 2 min for 4 cells on 1 process."


def test_an_adaptive_twin_takes_as_long_as_its_attack_and_a_training_what_its_rounds_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])

    def training(prepared: Prepared, seed: int, rounds: int) -> Cell:
        assert seed not in BASE["seeds"]
        clock[0] += 5.0 + 0.5 * rounds  # what happens once, and a round
        return Cell(attack=AttackRef(name=TRAINING), seed=seed, status="done")

    monkeypatch.setattr(module, "train_cell", training)
    study = {"defenses": ["sign"], "training": {"rounds": 100, "clients": 1, "examples": 2, "tuned": False}}
    header, todo = seen(parse_study({**BASE, **study}).grid(), tmp_path)
    for point in header.points:
        assert point.expected_seconds[TRAINING] == pytest.approx(55.0)
    twin = next(ref for ref in header.points[1].attacks if ref.name == "adaptive")
    assert header.points[1].expected_seconds[twin.key] == 1.0
    assert in_words(header, todo, 2) == "about 4 min for 28 cells on 2 processes."


def test_what_is_known_is_not_rehearsed_again_and_no_time_is_no_rehearsal(tmp_path: Path) -> None:
    points = Points(table(one={}))
    header = make_header(points)
    todo, _ = unfinished(points, header, RunFolder(tmp_path))
    assert with_forecast(points, header, todo, longest=0.0) == header and not Made.tried
    once = with_forecast(points, header, todo, longest=10.0)
    tried = list(Made.tried)
    assert tried and with_forecast(points, once, todo, longest=10.0) == once and Made.tried == tried


def test_short_work_is_not_announced(tmp_path: Path) -> None:
    header, todo = seen(table(one={}), tmp_path)
    assert in_words(header, todo, 1) == "" and expected(header, todo) is not None


def test_a_run_says_it_before_its_first_cell_and_again_when_it_goes_on(tmp_path: Path) -> None:
    grid = table(one={"seeds": [0, 1, 2, 3], "protocol": {"batch_size": 32}})
    said: list[str] = []
    run = {"out": tmp_path, "engine": "here", "on_note": said.append}
    run_grid(replace(grid, budget=1e-6), **run)  # type: ignore[arg-type]
    assert [note.partition(":")[0] for note in said] == ["the budget of 1e-06 s is used up"]
    said.clear()
    run_grid(grid, on_cell=lambda *cell: said.append(cell[0]), **run)  # type: ignore[arg-type]
    assert said.index("about 2 min for 8 cells on 1 process.") <= 1 and len(said) == 10
    assert RunFolder(tmp_path).read_header().points[0].expected_seconds["analytic_extraction"] == 16.0
