"""Advice is measured on the audited deployment, listed only if it was, and on the page with its command."""

from __future__ import annotations

import pytest

import seepage
from seepage.engine.grid import Grid
from seepage.engine.spec import parse_spec
from seepage.record import AuditLog, RunLog
from seepage.report import render_html
from seepage.report.actions import Actions, read_actions
from seepage.report.actions.measure import left

DEPLOYMENT = {
    "model": {"name": "mlp", "hidden": [100]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "batch_size": 2,
    "seeds": [0],
}


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("advised") / "run"
    seepage.audit(
        **DEPLOYMENT, budget=60, advice=True, engine="here", out=folder, on_plan=lambda header: None
    )
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


def test_the_page_says_what_to_do_with_the_command(advised):
    html = render_html(advised)
    assert "What to do" in html and "--with share_layers" in html


def test_what_was_not_measured_is_not_called_without_effect(advised, monkeypatch):
    for found, said in (
        (Actions(listed=(), not_measured=("Larger batches",)), "No change of this deployment was measured"),
        (Actions(listed=(), without_effect=("Larger batches",)), "None of the changes that were measured"),
    ):
        monkeypatch.setattr("seepage.report.front.read_actions", lambda log, found=found: found)
        assert said in render_html(advised)


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
