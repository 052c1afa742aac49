"""attacks = "auto": what is chosen, what is left out and why, and one budget for the whole audit.

Costs are made up and the clock is the test's own, so that the right choice can be reckoned by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import seepage
from seepage.attacks import ATTACKS
from seepage.core.errors import SpecError
from seepage.core.progress import Clock
from seepage.engine.auto import LEAST_SHARE, line_up, line_up_study, searches
from seepage.engine.points import Points
from seepage.engine.prepare import prepare
from seepage.engine.prepared import Prepared
from seepage.engine.run import run_audit
from seepage.engine.spec import parse_spec
from seepage.engine.study import parse_study
from seepage.record import AttackRef, Cell, Header, RunFolder
from seepage.report import left_out, plan_text, render_html

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [30]},
    "data": "digits",
    "seeds": [0, 1],
    "protocol": {"batch_size": 16},
}
PASSIVE_DIRECT = ["analytic_extraction", "exact_extraction"]
PASSIVE_SEARCHES = ["inverting_gradients", "idlg", "deep_leakage"]


class World:
    """Attacks that cost what the test says: direct ones by the batch size, searches by the step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.ran = 0.0, list[str]()
        self.direct: dict[str, Callable[[int], float]] = {"exact_extraction": lambda size: 0.05}
        self.each_step: dict[str, float] = {}
        self.broken: dict[str, str] = {}
        self.load = 1.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.load * self.now)
        monkeypatch.setattr(time, "thread_time", lambda: self.now)

    def run_cell(self, prepared: Prepared, ref: AttackRef, seed: int) -> tuple[Cell, object]:
        assert seed not in prepared.spec.seeds  # a rehearsal has a batch of its own
        self.ran.append(ref.name)
        if ref.name in self.broken:
            reason = self.broken[ref.name]
            return Cell(attack=ref, seed=seed, status="not_applicable", reason=reason), None
        self.now += self.direct.get(ref.name, lambda size: 0.01)(prepared.spec.protocol.batch_size)
        if searches(ref.name):
            for step in range(1000):
                Clock(seconds=None).report(step=step, steps=1000, objective=1.0, inputs=Tensor())
                self.now += self.each_step.get(ref.name, 0.001)
        return Cell(attack=ref, seed=seed, status="done"), None

    def plan(self, tmp_path: Path, **changes: Any) -> Prepared:
        return line_up(prepare(parse_spec({**SMALL, **changes})), RunFolder(tmp_path / "run"), self.run_cell)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def tried(prepared: Prepared) -> list[str]:
    return [ref.name for ref in prepared.refs]


def why(prepared: Prepared) -> dict[str, str]:
    return {one.name: one.why for one in prepared.not_tried}


def test_everything_that_fits_runs_and_everything_else_has_a_reason(world: World, tmp_path: Path) -> None:
    plan = world.plan(tmp_path)
    assert tried(plan) == ["prior_only", *PASSIVE_DIRECT, *PASSIVE_SEARCHES]
    assert set(tried(plan)) | set(why(plan)) | {"adaptive"} == set(ATTACKS)
    crafting = {name for name, build in ATTACKS.items() if build().active}
    public = {"class_representatives"}  # it needs auxiliary data
    assert {name for name, reason in why(plan).items() if reason == "not_granted"} == crafting | public
    assert why(plan)["tag"] == why(plan)["see_through_gradients"] == "does_not_fit"  # no text, no batch norm


def test_a_dishonest_server_crafts_too(world: World, tmp_path: Path) -> None:
    plan = world.plan(tmp_path, threat="malicious_server")
    assert {"trap_weights", "quantile_traps", "imprint", "class_fishing"} <= set(tried(plan))
    assert why(plan)["feature_fishing"] == "not_granted"  # it needs auxiliary data


def test_what_turns_out_not_to_work_in_the_rehearsal_is_left_out(world: World, tmp_path: Path) -> None:
    world.broken = {"exact_extraction": "the layer has no bias."}
    plan = world.plan(tmp_path)
    assert "exact_extraction" not in tried(plan)
    assert ("exact_extraction", "does_not_fit", "the layer has no bias.") in [
        (one.name, one.why, one.reason) for one in plan.not_tried
    ]


def test_cheapest_first_as_long_as_there_is_time(world: World, tmp_path: Path) -> None:
    world.direct = {"exact_extraction": lambda n: 0.1, "analytic_extraction": lambda n: 2.0 * n}
    plan = world.plan(tmp_path, budget=60)
    assert tried(plan)[1] == "exact_extraction"
    assert why(plan)["analytic_extraction"] == "over_budget"
    (reason,) = (one.reason for one in plan.not_tried if one.name == "analytic_extraction")
    assert "about 64 s" in reason and "--budget" in reason  # two seeds


@pytest.mark.parametrize("named", [False, True])
def test_what_reads_first_gets_the_time_that_is_left(world: World, tmp_path: Path, named: bool) -> None:
    world.direct = {"exact_extraction": lambda n: 20.0 * n}
    plan = world.plan(tmp_path, budget=60, **({"attacks": ["exact_extraction"]} if named else {}))
    (chosen,) = (ref for ref in plan.refs if ref.plain.name == "exact_extraction")
    assert 0 < chosen.plain.params["budget"] <= 30  # two seeds


def test_slow_attacks_are_reckoned_from_small_batches_not_tried_in_full(world: World, tmp_path: Path) -> None:
    """Cost n ** 2: 1 s at n = 4 makes 16 s at 16, known from n = 1 and 4 alone."""
    sizes: list[int] = []

    def squares(size: int) -> float:
        sizes.append(size)
        return size**2 / 16

    world.direct = {"exact_extraction": squares}
    plan = world.plan(tmp_path, budget=100)
    assert max(sizes) == 4
    assert plan.expected_seconds["exact_extraction"] == pytest.approx(16.0)


def test_what_is_slow_the_first_time_only_is_not_taken_for_slow(world: World, tmp_path: Path) -> None:
    """A library that is loaded at the second size must not look like growth."""
    sizes: list[int] = []

    def loads_once(size: int) -> float:
        sizes.append(size)
        return 5.0 if sizes.count(4) == 1 and size == 4 else 0.01

    world.direct = {"exact_extraction": loads_once}
    assert world.plan(tmp_path, budget=100).expected_seconds["exact_extraction"] == pytest.approx(0.01)


@pytest.mark.parametrize(("each_step", "limited"), [(0.02, False), (0.1, True), (0.5, True)])
def test_a_search_gets_what_is_left_over_the_seeds(
    world: World, tmp_path: Path, each_step: float, limited: bool
) -> None:
    """1000 steps on two seeds in 200 s: 20 s a seed fit twice over, 100 s just so, 500 s in part."""
    world.each_step = {"inverting_gradients": each_step}
    plan = world.plan(tmp_path, budget=200)
    (ref,) = (ref for ref in plan.refs if ref.name == "inverting_gradients")
    assert ("budget" in ref.params) is limited
    if limited:
        assert 2 * ref.params["budget"] <= 200 and ref.params["budget"] > 50
    assert plan.expected_seconds[ref.key] == pytest.approx(min(1000 * each_step, 95), rel=0.1)


def test_a_search_with_hardly_any_steps_is_left_out_with_the_command_that_tries_it(
    world: World, tmp_path: Path
) -> None:
    most = 200 / 2 / 1000 / LEAST_SHARE
    world.each_step = {"inverting_gradients": 1.2 * most, "idlg": 0.5 * most}
    plan = world.plan(tmp_path, budget=200)
    assert why(plan)["inverting_gradients"] == "over_budget" and "idlg" in tried(plan)
    (reason,) = (one.reason for one in plan.not_tried if one.name == "inverting_gradients")
    assert "seepage audit --budget" in reason


def test_other_programs_make_everything_take_longer(world: World, tmp_path: Path) -> None:
    world.direct = {"exact_extraction": lambda n: n / 16}
    world.load = 3.0
    assert world.plan(tmp_path).expected_seconds["exact_extraction"] == pytest.approx(3.0)


def test_a_run_that_was_begun_keeps_its_attacks(world: World, tmp_path: Path) -> None:
    log = run_audit(
        parse_spec({**SMALL, "seeds": [0], "budget": 0.2, "protocol": {"batch_size": 1}}),
        out=tmp_path / "run",
    )
    again = prepare(parse_spec({**SMALL, "seeds": [0], "budget": 0.2, "protocol": {"batch_size": 1}}))
    world.direct = {"analytic_extraction": lambda n: 1e6}
    plan = line_up(again, RunFolder(tmp_path / "run"), world.run_cell)
    assert world.ran == []  # nothing is timed again
    assert plan.refs == log.header.attacks and plan.not_tried == log.header.not_tried


def test_named_attacks_all_run_and_searches_share_what_the_others_leave(world: World, tmp_path: Path) -> None:
    world.direct = {"exact_extraction": lambda n: 10.0}
    world.each_step = {"inverting_gradients": 1.0, "tag": 1.0}
    named = ["inverting_gradients", "exact_extraction", "tag", {"name": "idlg", "budget": 5}]
    plan = world.plan(tmp_path, attacks=named, budget=100)
    assert [ref.name for ref in plan.refs[1:]] == ["inverting_gradients", "exact_extraction", "tag", "idlg"]
    first, _, second, own = plan.refs[1:]
    # 50 s a seed, less 10 for exact_extraction, 5 for idlg and what the rehearsals took
    shares = [first.params["budget"], second.params["budget"]]
    assert min(shares) > 5 and sum(shares) <= 50 - 10 - 5
    assert own.params == {"budget": 5}
    assert why(plan)["analytic_extraction"] == "not_listed"


def test_named_attacks_without_a_budget_are_not_rehearsed(world: World, tmp_path: Path) -> None:
    plan = world.plan(tmp_path, attacks=["inverting_gradients"])
    assert world.ran == [] and plan.refs[1].params == {}


class Convolutional(nn.Module):
    """A CNN whose dense layer shows features only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(144, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.conv(x)).flatten(1))


def test_a_cnn_gets_the_inversion_or_the_hint_that_there_is_one(tmp_path: Path) -> None:
    shown: list[Header] = []
    wanted: dict[str, Any] = {"data": "digits", "batch_size": 1, "seeds": [0], "on_plan": shown.append}
    wanted["engine"] = "here"  # a pool's workers import this file without pytest's rewriting: other code
    log = seepage.audit(model=Convolutional(), out=tmp_path / "auto", budget="10s", **wanted)
    found = {cell.attack.name: cell for cell in log.cells}
    assert found["inverting_gradients"].space == "input" and found["analytic_extraction"].space == "out"
    assert "inverting_gradients" in plan_text(shown[0]) and "a seed" in plan_text(shown[0])
    log = seepage.audit(
        model=Convolutional(), out=tmp_path / "named", attacks=["analytic_extraction"], **wanted
    )
    (hint,) = (said for said in left_out(log.header) if 'attacks = "auto"' in said)
    assert "Not tried" in hint and "inverting_gradients" in hint
    assert "inverting_<wbr>gradients" in render_html(log)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"attacks": ["auto", "tag"]}, "by itself"),
        ({"budget": "soon"}, "is no time"),
        ({"budget": 0}, "is no time"),
        ({"budget": True}, "is no time"),
        ({"budget": 1e308}, "is no time"),
        ({"attacks": "autos"}, "unknown attack"),
    ],
)
def test_bad_settings_get_one_sentence(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        prepare(parse_spec({**SMALL, **values}))


def test_auto_in_a_list_is_auto_and_times_have_units() -> None:
    spec = parse_spec({**SMALL, "attacks": ["auto"], "budget": "5m"})
    assert (spec.attacks, spec.budget) == ("auto", 300.0)


def test_every_point_of_a_study_faces_what_auto_chose_for_the_plain_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = {**SMALL, "defenses": ["clipping", "pruning"], "training": {"examples": 16}, "budget": 60}
    points, world = Points(parse_study(study).grid()), World(monkeypatch)
    line_up_study(points, RunFolder(tmp_path / "run"), world.run_cell)
    plain, *defended = ([ref for ref in points[n].refs if ref.name != "prior_only"] for n in range(3))
    assert set(PASSIVE_DIRECT) <= {ref.name for ref in plain}
    for refs in defended:  # each as it is, and once more by a server that knows the defense
        assert [ref for ref in refs if ref.name != "adaptive"] == plain
        assert [ref.plain for ref in refs if ref.name == "adaptive"] == plain


def test_a_studys_budget_is_no_attacks() -> None:
    study = {**SMALL, "defenses": ["clipping"], "training": {"examples": 16}}
    grid = parse_study({**study, "budget": 60}).grid()
    assert grid.budget == 60 and all(point.spec.budget is None for point in grid.points)
