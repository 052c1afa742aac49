"""A small study from end to end; its training against a loop written for this test; resuming."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from seepage.core.errors import LogError, SpecError
from seepage.defenses import epsilon
from seepage.engine.points import Points
from seepage.engine.run import run_grid
from seepage.engine.study import parse_study
from seepage.engine.training import train, train_cell
from seepage.protocol import client, play
from seepage.report import render_html
from seepage.report.study import StudyResult, print_study, study_html

WANTED: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [64]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "seeds": [0],
    "protocol": {"batch_size": 4, "lr": 0.5},
    "defenses": [{"name": "clipping", "norm": [0.5]}, {"name": "dp_sgd", "sigma": [2.0]}],
    "training": {"rounds": 2, "clients": 2, "examples": 8, "test_examples": 100, "tuned": False},
    "device": "cpu",
}


def run_study(wanted: dict[str, Any], out: Path, **settings: Any) -> StudyResult:
    return StudyResult.of(run_grid(parse_study(wanted).grid(), out=out, jobs=1, **settings))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return run_study(WANTED, tmp_path_factory.mktemp("study") / "a")


def test_end_to_end_on_digits(finished: StudyResult) -> None:
    none, clipping, private = finished.rows
    assert finished.missing == 0 and all(row.accuracy is not None for row in finished.rows)
    assert none.exact is not None and none.exact.value > 0
    # One factor for the whole update cancels in every quotient: clipping alone stops nothing.
    assert clipping.exact == none.exact and clipping.leakage is not None and none.leakage is not None
    assert clipping.leakage.value == pytest.approx(none.leakage.value, abs=1e-3)
    assert private.exact is not None and private.leakage is not None
    assert private.exact.value == 0.0 < private.exact.high and private.leakage.value < 0.1
    # Two batches take turns in two rounds, so an example is used once.
    assert private.point.steps == 1
    assert private.point.epsilon == epsilon(sigma=2.0, delta=1e-5, steps=1)
    assert private.bound_seen == pytest.approx(torch.special.ndtr(torch.tensor(-2.3263479 + 0.5)).item())
    assert (none.point.epsilon, clipping.bound_seen, clipping.point.guarantee) == (None, None, "heuristic")
    assert any(row.pareto for row in finished.rows)


def test_each_point_is_a_log_that_every_report_reads(finished: StudyResult) -> None:
    log = finished.log.point(finished.rows[1].point.key)
    assert "clipping" in render_html(log)
    assert log.missing == 0 and log.header.spec["defenses"][0]["options"] == {"norm": 0.5}
    assert json.dumps(finished.to_json(), allow_nan=False)


def test_page_and_terminal_show_every_point(
    finished: StudyResult, capsys: pytest.CaptureFixture[str]
) -> None:
    page = study_html(finished)
    print_study(finished)
    shown = capsys.readouterr().out
    for row in finished.rows:
        assert row.point.defense.name in page and row.point.defense.name in shown
    assert "sampling rate 1" in page and "Pareto front" in page
    assert "knowing the defense" in page and "knows the defense (clipping, dp_sgd)" in shown


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_training_equals_an_independent_loop(algorithm: str) -> None:
    """Without defense: clients with equally many examples, so FedSGD is SGD on all of a round's examples."""
    protocol = {"batch_size": 4, "lr": 0.3, "algorithm": algorithm, "local_epochs": 2}
    study = Points(parse_study({**WANTED, "protocol": protocol}).grid())
    prepared = study.trained(0)
    batches, held_out = prepared.draw(5)
    assert held_out is not None and len(held_out) == 100
    model = prepared.model(5)
    local_steps = 2 if algorithm == "fedavg" else 1
    for number in range(3):
        ends = []
        for batch in batches(number):
            weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
            for _ in range(local_steps):
                logits = torch.func.functional_call(model, weights, (batch.inputs,))
                grads = torch.autograd.grad(F.cross_entropy(logits, batch.labels), list(weights.values()))
                weights = {
                    n: (w - 0.3 * g).detach().requires_grad_()
                    for (n, w), g in zip(weights.items(), grads, strict=True)
                }
            ends.append(weights)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.stack([end[name] for end in ends]).mean(dim=0))
    trained, _ = train(prepared, batches, seed=5, rounds=3)
    for name, parameter in trained.named_parameters():
        assert torch.allclose(parameter, model.get_parameter(name), atol=1e-6)
    expected = (trained(held_out.inputs).argmax(dim=1) == held_out.labels).double().mean().item()
    assert train_cell(prepared, 5, rounds=3).batch_scores["accuracy"] == pytest.approx(expected)
    assert not any(torch.equal(x, y) for b in batches(0) for x in b.inputs for y in held_out.inputs)


def test_training_takes_the_way_of_the_honest_server() -> None:
    """`play` keeps every round's model: the one broadcast in round 4 has three updates behind it."""
    study = Points(parse_study(WANTED).grid())
    prepared = study.trained(1)  # under clipping
    batches, held_out = prepared.draw(0)
    assert held_out is not None
    played = play(
        None,
        prepared.model(0),
        batches,
        step=client(prepared.local, prepared.defenses(0)),
        threat=prepared.threat,
        max_rounds=4,
        server_lr=prepared.local.lr,
    )
    model = played.exchanges[-1].broadcast.model
    expected = (model(held_out.inputs).argmax(dim=1) == held_out.labels).double().mean().item()
    assert train_cell(prepared, 0, rounds=3).batch_scores["accuracy"] == pytest.approx(expected)


def test_a_training_that_cannot_be_is_recorded_with_its_reason() -> None:
    wanted = {
        **WANTED,
        "model": {"name": "convnet", "width": 4},
        "data": {"name": "photos"},
        "attacks": [],
        "protocol": {"batch_size": 2, "batch_norm": "train"},
        "training": {"rounds": 1, "clients": 1, "examples": 2, "test_examples": 4},
    }
    study = Points(parse_study(wanted).grid())
    cell = train_cell(study.trained(2), 0, rounds=1)
    assert cell.status == "failed" and "BatchNorm" in cell.reason and cell.batch_scores == {}


def test_resuming_runs_only_what_is_missing(finished: StudyResult) -> None:
    folder = finished.log.folder
    removed = [
        folder.at(finished.rows[1].point.key).cell_file("training-seed0"),
        folder.at("none").cell_file("analytic_extraction-seed0"),
    ]
    before = [file.read_text() for file in removed]
    for file in removed:
        file.unlink()
    assert StudyResult.read(folder.path).missing == 2
    seen: list[tuple[str, int, int]] = []
    again = run_study(WANTED, folder.path, on_cell=lambda *a: seen.append(a))
    assert seen[0][1:] == (9, 11) and seen[-1] == ("", 11, 11) and len(seen) == 3
    assert removed[0].read_text() == before[0]
    assert json.loads(removed[1].read_text())["examples"] == json.loads(before[1])["examples"]
    assert again.rows == finished.rows


def test_another_studys_folder_is_refused(finished: StudyResult) -> None:
    other = {**WANTED, "training": {**WANTED["training"], "rounds": 3}}
    with pytest.raises(LogError, match="different study"):
        run_study(other, finished.log.folder.path)


def test_what_a_user_could_have_known_is_said_before_anything_runs(tmp_path: Path) -> None:
    for change, said in (
        ({"defenses": [{"name": "clipping", "norn": 1.0}]}, "did you mean 'norm'"),
        ({"defenses": [{"name": "clipping", "norm": [1.0, -1.0]}]}, "must be positive"),
        ({"training": {"test_examples": 5000}}, "held-out"),
    ):
        with pytest.raises(SpecError, match=said):
            run_study({**WANTED, **change}, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(LogError, match=r"no log\.json"):
        StudyResult.read(tmp_path)


def test_killed_in_the_middle_it_resumes_in_processes_to_the_same_figures(
    finished: StudyResult, tmp_path: Path
) -> None:
    script = tmp_path / "study.py"
    script.write_text(
        "import json, sys\nfrom seepage.engine.run import run_grid\n"
        "from seepage.engine.study import parse_study\n"
        "if __name__ == '__main__':\n"
        "    run_grid(parse_study(json.loads(sys.argv[1])).grid(), out=sys.argv[2], jobs=2)\n"
    )
    out = tmp_path / "killed"
    command = [sys.executable, str(script), json.dumps(WANTED), str(out)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while not list(out.glob("cells/*/training-*.json")) and time.monotonic() < deadline:
        assert process.poll() in (None, 0)
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    partial = StudyResult.read(out)  # whatever is there is whole
    assert partial.missing < 11
    resumed = run_study(WANTED, out)
    assert resumed.missing == 0
    for mine, theirs in zip(resumed.rows, finished.rows, strict=True):
        assert mine.accuracy == theirs.accuracy and mine.exact == theirs.exact
        assert mine.leakage is not None and theirs.leakage is not None
        assert math.isclose(mine.leakage.value, theirs.leakage.value, abs_tol=1e-3)


def test_whoever_writes_to_a_model_changes_no_other() -> None:
    prepared = Points(parse_study(WANTED).grid()).trained(0)
    first, before = prepared.model(5), prepared.model(5)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(1.0)
    for parameter, other in zip(prepared.model(5).parameters(), before.parameters(), strict=True):
        assert torch.equal(parameter, other)
