"""Advice is measured on the audited deployment, listed only if it was, and on the page with its command."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import seepage
from seepage.engine import remedies
from seepage.engine.grid import Grid
from seepage.engine.header import make_header
from seepage.engine.points import Points
from seepage.engine.remedies import advice_grid
from seepage.engine.run import run_grid, unfinished
from seepage.engine.spec import parse_spec
from seepage.record import TRAINING, AuditLog, RunLog, summarise
from seepage.report import print_summary, render_html
from seepage.report.actions import Actions, measure, read_actions
from seepage.report.actions.listing import listed
from seepage.report.actions.measure import left, measure_actions
from seepage.report.evidence import Evidence
from seepage.report.evidence.annex import annex_text
from seepage.report.judgement import strongest
from seepage.report.study.result import StudyResult

DEPLOYMENT = {
    "model": {"name": "mlp", "hidden": [100]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "batch_size": 2,
    "seeds": [0],
}


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    """With an hour for a short study, so that how fast the machine is decides nothing."""
    folder = tmp_path_factory.mktemp("advised") / "run"
    settings = {name: value for name, value in DEPLOYMENT.items() if name != "batch_size"}
    audit = Grid.of_audit(parse_spec({**settings, "protocol": {"batch_size": DEPLOYMENT["batch_size"]}}))
    log = run_grid(audit, out=folder, engine="here").point()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remedies, "_MOST_ROUNDS", 8)
        patch.setattr(remedies, "_TRAININGS", 1)
        measure_actions(audit, log, seconds=3600.0, engine="here", command="seepage audit audit.toml")
    return AuditLog.read(folder)


def test_every_listed_change_was_measured_and_stops_what_it_says(advised):
    found = read_actions(advised)
    study = RunLog.read(advised.folder.path / "advice")
    shares = {}
    for point in study.points:
        cells = point.cells_where(lambda cell: cell.attack.name != "prior_only" and cell.status == "done")
        exact = [e.scores["exact"] for cell in cells for e in cell.examples]
        shares[point.header.title] = sum(exact) / len(exact) if exact else 0.0
    assert shares["none"] > 0.5  # a batch of two is read off the update
    assert found.listed and len(found.listed) <= 5
    scores = [action.score for action in found.listed]
    assert scores == sorted(scores, reverse=True)
    frozen = next(action for action in found.listed if "first layer" in action.title)
    assert frozen.stopped == 1.0 and shares["share_layers"] == 0.0
    titles = {action.title for action in found.listed}
    assert not titles & {*found.without_effect, *found.not_measured}


def test_the_gate_is_measured_with_its_price(advised):
    """Both examples of a batch of two are exposed, so that all are held back and nothing is learnt."""
    gate = next(p for p in RunLog.read(advised.folder.path / "advice").points if p.header.title == "gate")
    (training,) = gate.trainings
    assert training.batch_scores["held_back"] == 1.0
    assert not any(e.scores["exact"] for cell in gate.cells for e in cell.examples)
    found = read_actions(advised)
    said = [*(f"{one.title} {one.price}" for one in found.listed), *found.below]
    (said,) = [one for one in said if one.startswith("Let clients measure each update")]
    assert "100 % of the examples of that training were left out of the updates" in said


def test_changes_that_are_not_listed_are_named(advised, monkeypatch):
    monkeypatch.setattr("seepage.report.actions.listing.MOST", 3)
    found = read_actions(advised)
    named = len(found.listed) + len(found.below) + len(found.without_effect) + len(found.not_measured)
    assert named == len(RunLog.read(advised.folder.path / "advice").points) - 1
    assert len(found.listed) == 3 and len(found.below) >= 2
    assert "Measured too, and ranked below these" in render_html(advised)


def test_the_page_says_what_to_do_with_the_command(advised):
    html = render_html(advised)
    assert "What to do" in html and "--with share_layers" in html


def test_the_annex_files_what_was_measured_against_the_leak(advised):
    text = annex_text(Evidence.of(advised))
    assert "## 6. Further safeguards" in text and "not in place when the results above were taken" in text
    for one in read_actions(advised).listed:
        assert one.title in text and one.proof[:20] in text


def test_what_was_not_measured_is_not_called_without_effect(advised, monkeypatch, capsys):
    for found, said in (
        (Actions(listed=(), not_measured=("Larger batches",)), "a busy machine gets less done in it"),
        (Actions(listed=(), without_effect=("Larger batches",)), "None of the changes that were measured"),
        (
            Actions(listed=(), without_effect=("A",), not_measured=("B", "C")),
            "1 of 3 changes could be measured",
        ),
        (Actions(listed=(), below=("Larger batches",)), "No measured change both stops a tenth of the leak"),
    ):
        monkeypatch.setattr("seepage.report.front.read_actions", lambda log, found=found: found)
        assert said in render_html(advised)
        monkeypatch.setattr("seepage.report.terminal.read_actions", lambda log, found=found: found)
        capsys.readouterr()
        print_summary(advised)
        assert said in " ".join(capsys.readouterr().out.split())


def test_what_lets_nothing_be_learnt_is_not_advised(advised, monkeypatch):
    kept = {"share_layers": 0.5, "gate": 0.0}
    monkeypatch.setattr(
        "seepage.report.actions.listing._kept",
        lambda result, plain, row: kept.get(row.point.defense.name, 0.8),
    )
    found = read_actions(advised)
    assert any("first layer" in one.title for one in found.listed)
    assert not any("measure each update" in one.title for one in found.listed)
    assert any("measure each update" in said for said in found.below)


def test_where_time_runs_out_prices_are_missing_and_no_leak_is(advised):
    """The attacks of every change come before the first training; what costs most to measure is the last."""
    audit = Grid.of_audit(parse_spec({**{k: v for k, v in DEPLOYMENT.items() if k != "batch_size"}}))
    (found,) = strongest(advised, summarise(advised))
    grid = advice_grid(audit, attacks=[(found.attack.plain, 0.1)], crafted=True, seconds=3600.0)
    points = Points(grid)
    header = make_header(points)
    todo, _ = unfinished(points, header, advised.folder)
    trains = [job.attack.name == TRAINING for job in todo]
    assert any(trains) and trains == sorted(trains)
    names = [point.defense.name for point in grid.points]
    assert names[1] == "refuse_traps" and names[-1] == "local_averaging"


def test_the_time_of_advice_begins_with_its_first_cell(advised, tmp_path, monkeypatch):
    """On a busy machine preparing took longer than all the time there was, and nothing was measured."""
    audit = Grid.of_audit(parse_spec({**{k: v for k, v in DEPLOYMENT.items() if k != "batch_size"}}))
    (found,) = strongest(advised, summarise(advised))
    grid = advice_grid(audit, attacks=[(found.attack.plain, 0.1)], crafted=False, seconds=5.0)
    began = []

    def slow(points, header, todo, *, longest):
        began.append(time.monotonic())
        return header

    untils = []

    def seen(executor, cells, todo, *, until, on_note=None):
        untils.append(until)
        return iter(())

    monkeypatch.setattr("seepage.engine.run.with_forecast", slow)
    monkeypatch.setattr("seepage.engine.run.finished", seen)
    run_grid(grid, out=tmp_path / "run", engine="here")
    run_grid(replace(grid, advice=False), out=tmp_path / "other", engine="here")
    assert untils[0] >= began[0] + 5.0 and untils[1] < began[1] + 5.0


def test_advice_without_a_training_names_none(advised, monkeypatch):
    result = StudyResult.of(RunLog.read(advised.folder.path / "advice", kind="study"))
    assert "trained for 8 rounds" in listed(result).basis
    untrained = replace(result, rows=tuple(row.model_copy(update={"accuracy": None}) for row in result.rows))
    assert "trained" not in listed(untrained).basis and "for a training" in listed(untrained).basis


@pytest.mark.parametrize(
    ("factor", "said"), [(1.0, "(5 s; "), (2.5, "(5 s, on this busy machine up to 12 s; ")]
)
def test_a_busy_machine_gets_more_clock_time(advised, monkeypatch, factor, said):
    """Budgets are clock time; what advice may take goes by how much of it this process got to work."""
    asked, notes = {}, []
    monkeypatch.setattr(measure, "_slowed", lambda clock, worked: factor)
    monkeypatch.setattr(measure, "_finished", lambda log: None)
    monkeypatch.setattr(measure, "run_grid", lambda grid, **where: asked.update(budget=grid.budget, **where))
    audit = Grid.of_audit(parse_spec({**{k: v for k, v in DEPLOYMENT.items() if k != "batch_size"}}))
    measure_actions(audit, advised, seconds=5.0, on_note=notes.append, engine="auto")
    assert asked["budget"] == 5.0 * factor and any(said in note for note in notes)
    assert asked["engine"] == "here"  # starting processes would take most of these seconds


def test_advice_of_another_audit_is_not_shown(advised):
    other = AuditLog(advised.folder, advised.header.model_copy(update={"run_key": "0"}), advised.cells)
    assert read_actions(other) is None


def test_nothing_leaked_nothing_is_advised(tmp_path):
    seepage.audit(
        **{**DEPLOYMENT, "defenses": [{"name": "gaussian_noise", "sigma": 10.0}], "adaptive": False},
        advice=True,
        engine="here",
        out=tmp_path / "run",
        on_plan=lambda header: None,
    )
    assert not (tmp_path / "run" / "advice").exists()


def test_time_is_what_the_budget_leaves():
    named = {"model": "mlp", "data": "digits", "attacks": ["tag"]}
    assert left(Grid.of_audit(parse_spec({**named, "budget": 60})), 30.0) == 30.0
    assert left(Grid.of_audit(parse_spec({**named, "budget": 60})), 50.0) == 15.0  # the quarter that was kept
    assert left(Grid.of_audit(parse_spec(named)), 1000.0) == 180.0
    assert left(Grid.of_audit(parse_spec(named)), 1.0) == 20.0
