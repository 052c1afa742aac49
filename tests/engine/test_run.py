"""Whole audits on small embedded data: known answers, determinism, resuming, kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import seepage
from seepage.core.errors import LogError
from seepage.engine import pairing
from seepage.engine import run as engine_run
from seepage.engine.cell import run_cell
from seepage.engine.grid import Job
from seepage.engine.points import Points
from seepage.engine.run import run_audit
from seepage.engine.shared import Shared
from seepage.engine.spec import parse_spec
from seepage.engine.work import Result
from seepage.record import TIME_UP, AuditLog, RunFolder, RunHeader, RunLog, summarise

SMALL = {
    "model": {"name": "mlp", "hidden": [64, 32]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "seeds": [0, 1],
    "protocol": {"batch_size": 4},
}

PLAIN = {"attacks": ["analytic_extraction"]}


def figures(log: AuditLog) -> list[dict[str, object]]:
    """Everything a cell says except what depends on the clock."""
    return [cell.model_dump(exclude={"cost"}) for cell in log.cells]


def test_one_example_is_recovered_exactly_and_the_baseline_is_not(tmp_path: Path) -> None:
    log = run_audit(parse_spec({**SMALL, "protocol": {"batch_size": 1}}), out=tmp_path / "run")
    baseline, attack = summarise(log)
    assert attack.exact == attack.examples == 2  # Geiping et al., Prop. 3.1: always, for one example
    assert attack.claims == attack.claims_right == 2
    assert baseline.exact == 0
    assert attack.scores["psnr"].value > attack.baseline["psnr"].value + 20
    assert attack.baseline["psnr"].value == pytest.approx(baseline.scores["psnr"].value)


@pytest.mark.parametrize(("budget", "cut"), [(0.3, True), (600.0, False)])
def test_a_search_that_its_budget_cut_says_so(budget: float, cut: bool) -> None:
    """Of a million steps, 0.3 s leave few; of two, 600 s all."""
    from seepage.engine.prepare import prepare

    options = {"steps": 1_000_000 if cut else 2, "restarts": 1, "budget": budget}
    asked = {"name": "inverting_gradients", "options": options}
    prepared = prepare(parse_spec({**SMALL, "seeds": [0], "attacks": [asked]}))
    cell, _ = run_cell(prepared, prepared.refs[1], 0)
    assert cell.status == "done" and (TIME_UP in cell.notes) is cut


def test_recall_equals_counting_lonely_neurons_in_the_forward_pass(tmp_path: Path) -> None:
    """An example comes out iff some neuron fires for it alone (Boenisch et al., Section 5.2)."""
    from seepage.engine.prepare import prepare

    spec = parse_spec({**SMALL, "seeds": [3], "protocol": {"batch_size": 6}})
    prepared = prepare(spec)
    batches, _ = prepared.draw(3)
    batch, model = batches(0)[0], prepared.model(3)
    fires = (model.dense0(batch.inputs.flatten(1)) > 0).float()  # (n, neurons)
    alone = fires.sum(dim=0) == 1
    expected = int((fires[:, alone].sum(dim=1) > 0).sum())
    cell, _ = run_cell(prepared, prepared.refs[1], 3)
    assert sum(e.scores["exact"] for e in cell.examples) == expected
    assert expected > 0
    assert cell.batch_scores["extraction_precision_all"] == pytest.approx(int(alone.sum()) / 64)
    assert cell.batch_scores["active_neurons"] == pytest.approx(int((fires.sum(0) > 0).sum()) / 64)


def test_a_cell_whose_claims_contradict_its_matching_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least total error alone loses exact copies that the attack itself vouches for, and says so."""
    spec = parse_spec(
        {
            "model": "mlp",
            "data": "faces",
            "attacks": [{"name": "trap_weights", "read": "rows"}],
            "seeds": [0],
            "threat": "malicious_server",
            "protocol": {"batch_size": 64},
        }
    )
    _, sound = run_audit(spec, out=tmp_path / "sound").cells
    exact = sum(e.scores["exact"] for e in sound.examples)
    assert exact >= sound.claimed_examples > 0
    best_pairs = pairing.best_pairs
    monkeypatch.setattr(pairing, "best_pairs", lambda errors, exact=None, allowed=None: best_pairs(errors))
    _, cell = run_audit(spec, out=tmp_path / "faulty").cells
    assert cell.status == "failed" and "contradict each other" in cell.reason


def test_same_spec_and_seed_give_the_same_numbers(tmp_path: Path) -> None:
    one = run_audit(parse_spec(SMALL), out=tmp_path / "one")
    two = run_audit(parse_spec(SMALL), out=tmp_path / "two")
    assert figures(one) == figures(two)
    other = run_audit(parse_spec({**SMALL, "seeds": [5, 6]}), out=tmp_path / "other")
    assert [c["examples"] for c in figures(one)] != [c["examples"] for c in figures(other)]


def test_resume_redoes_nothing_and_ends_with_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_audit(parse_spec(SMALL), out=tmp_path / "whole")
    resumed = run_audit(parse_spec(SMALL), out=tmp_path / "resumed")
    lost = resumed.folder.cell_file(resumed.cells[2].id)
    lost.unlink()
    kept = {
        c.id: resumed.folder.cell_file(c.id).stat().st_mtime_ns for c in resumed.cells if c.id != lost.stem
    }
    ran: list[str] = []

    def counting(prepared: object, ref: object, seed: int, shared: object) -> object:
        ran.append(f"{ref.key}-seed{seed}")  # type: ignore[attr-defined]
        return run_cell(prepared, ref, seed, shared)  # type: ignore[arg-type]

    monkeypatch.setattr("seepage.engine.work.run_cell", counting)
    again = run_audit(parse_spec(SMALL), out=tmp_path / "resumed")
    assert ran == [lost.stem]
    assert figures(again) == figures(whole)
    assert kept == {c: resumed.folder.cell_file(c).stat().st_mtime_ns for c in kept}


def test_a_resumed_run_draws_as_if_nothing_had_run_before(tmp_path: Path) -> None:
    """Dropout in training mode and a defense with noise: neither depends on the cells before."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.last = nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.drop(self.first(x.flatten(1)).relu()))

    protocol = {"batch_size": 2, "batch_norm": "train"}
    spec = parse_spec({**SMALL, "model": "mine", "protocol": protocol, "defenses": ["gaussian_noise"]})
    model = Dropping()
    whole = run_audit(spec, model=model, out=tmp_path / "whole")
    resumed = run_audit(spec, model=model, out=tmp_path / "resumed")
    for cell in resumed.cells[::2]:
        resumed.folder.cell_file(cell.id).unlink()
    torch.rand(11)
    again = run_audit(spec, model=model, out=tmp_path / "resumed")
    assert figures(again) == figures(resumed) == figures(whole)


def test_kill_9_leaves_a_readable_partial_log_that_resumes(tmp_path: Path) -> None:
    """The audit is killed as soon as its first cell is on disk, in the middle of the following ones."""
    spec = {**SMALL, "seeds": list(range(40))}
    script = f"""
import json, os
from seepage.engine import pairing
from seepage.engine.run import run_audit
from seepage.engine.spec import parse_spec
run_audit(parse_spec(json.loads({json.dumps(json.dumps(spec))})), out="run")
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=environment)
    cells = tmp_path / "run" / "cells"
    deadline = time.monotonic() + 300
    while not list(cells.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    partial = AuditLog.read(tmp_path / "run")
    assert 0 < len(partial.cells) < 80
    assert partial.missing == 80 - len(partial.cells)
    before = {c.id: figures_of(c) for c in partial.cells}
    finished = run_audit(parse_spec(spec), out=tmp_path / "run")
    assert finished.missing == 0
    assert {c.id: figures_of(c) for c in finished.cells if c.id in before} == before


def figures_of(cell: object) -> object:
    return cell.model_dump(exclude={"cost"})  # type: ignore[attr-defined]


def test_a_folder_of_another_audit_is_refused(tmp_path: Path) -> None:
    run_audit(parse_spec(SMALL), out=tmp_path / "run")
    with pytest.raises(LogError, match="different audit"):
        run_audit(parse_spec({**SMALL, "seeds": [9]}), out=tmp_path / "run")


def test_changed_data_do_not_resume_an_old_run(tmp_path: Path) -> None:
    x, y = torch.rand(30, 5), torch.arange(30) % 3
    net = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 3))
    seepage.audit(model=net, data=(x, y), batch_size=2, seeds=[0], out=tmp_path / "run", **PLAIN)
    with pytest.raises(LogError, match="different audit"):
        seepage.audit(model=net, data=(x + 1e-3, y), batch_size=2, seeds=[0], out=tmp_path / "run", **PLAIN)


def test_an_attack_that_cannot_work_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    class Convolutional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).mean(dim=(2, 3))

    log = seepage.audit(
        model=Convolutional(), data="digits", batch_size=2, seeds=[0], out=tmp_path / "run", **PLAIN
    )
    baseline, attack = summarise(log)
    assert baseline.status == "done"
    assert attack.status == "not_applicable"
    assert "begins with Conv2d" in attack.reason and "try" in attack.reason


@pytest.mark.parametrize(
    ("data", "model", "space", "metric"),
    [
        ("breast_cancer", "mlp", "input", "rmse"),
        ("photos", "mlp", "input", "psnr"),
        ("digits", {"name": "vgg_like", "filters": [4, 4], "width": 64}, "dense0", "cosine"),
    ],
)
def test_tables_colour_images_and_features(
    tmp_path: Path, data: str, model: object, space: str, metric: str
) -> None:
    log = seepage.audit(model=model, data=data, batch_size=1, seeds=[0], out=tmp_path / "run", **PLAIN)
    _, attack = summarise(log)
    assert (attack.status, attack.space, attack.exact) == ("done", space, 1)
    assert metric in attack.scores and metric in attack.baseline


def test_text_comes_out_as_the_sequence_of_words(tmp_path: Path) -> None:
    tokens = torch.randint(1, 50, (40, 12), generator=torch.Generator().manual_seed(0))
    data = (tokens, torch.arange(40) % 2)
    log = seepage.audit(
        model="text_classifier", data=data, batch_size=1, seeds=[0], out=tmp_path / "run", **PLAIN
    )
    cell = log.cells[1]
    assert cell.examples[0].scores["token_accuracy"] == 1.0
    assert cell.examples[0].reconstruction_text == cell.examples[0].truth_text


def test_normalised_inputs_come_back_in_the_original_range(tmp_path: Path) -> None:
    x, y = torch.rand(40, 3, 6, 6), torch.arange(40) % 4
    given = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3]}
    log = seepage.audit(
        model="mlp", data=(x, y), batch_size=1, seeds=[0], out=tmp_path / "run", data_options=given, **PLAIN
    )
    assert summarise(log)[1].exact == 1
    assert "How inputs are normalised." in summarise(log)[1].knowledge
    arrays = log.folder.read_arrays(log.cells[1].id)
    assert arrays["truth"].min() >= 0 and arrays["truth"].max() <= 1
    hidden = seepage.audit(
        model="mlp",
        data=(x, y),
        batch_size=1,
        seeds=[0],
        out=tmp_path / "hidden",
        **PLAIN,
        data_options=given,
        threat={"base": "honest_but_curious", "deny": ["normalisation", "value_range"]},
    )
    assert any("model's units" in sentence for sentence in summarise(hidden)[1].knowledge)


def test_secure_sum_is_attacked_as_one_large_batch(tmp_path: Path) -> None:
    protocol = {"batch_size": 2, "clients": 3, "aggregation": "secure_sum"}
    log = run_audit(parse_spec({**SMALL, "seeds": [0], "protocol": protocol}), out=tmp_path / "run")
    cell = log.cells[1]
    assert len(cell.examples) == 6
    assert {e.client for e in cell.examples} == {0, 1, 2}
    assert cell.batch_scores["active_neurons"] <= 1  # one update of 64 rows, not three
    assert "secure sum of 3" in log.header.threat.server_sees


def test_one_fedavg_step_leaks_like_a_gradient_and_several_steps_claim_nothing(tmp_path: Path) -> None:
    local = {"batch_size": 4, "algorithm": "fedavg", "lr": 0.05, "weight_decay": 0.01}
    gradient = run_audit(parse_spec({**SMALL, "seeds": [0]}), out=tmp_path / "gradient")
    one = run_audit(parse_spec({**SMALL, "seeds": [0], "protocol": local}), out=tmp_path / "one")
    assert summarise(one)[1].exact == summarise(gradient)[1].exact > 0
    steps = {**SMALL, "seeds": [0], "protocol": {**local, "local_batch_size": 1}}
    several = run_audit(parse_spec(steps), out=tmp_path / "several")
    assert summarise(several)[1].claims == 0
    assert any("several" in note for note in summarise(several)[1].notes)


def test_what_is_written_is_held_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many examples the record of one cell is as large as their pictures: beside the next cell, or while
    the log is read, it would cost that again."""
    cells: list[weakref.ref[Result]] = []
    sources: list[weakref.ref[Shared]] = []
    alive: list[int] = []
    plain, reading = engine_run.work, engine_run.RunLog.of

    def counted(points: Points, job: Job, **settings: Any) -> Result:
        alive.append(sum(one() is not None for one in cells))
        result = plain(points, job, **settings)
        cells.append(weakref.ref(result))
        sources.append(weakref.ref(points.shared.of(job.point, points[job.point], job.seed)))
        return result

    def read(folder: RunFolder, header: RunHeader) -> RunLog:
        alive.append(sum(one() is not None for one in [*cells, *sources]))
        return reading(folder, header)

    monkeypatch.setattr(engine_run, "work", counted)
    monkeypatch.setattr(engine_run.RunLog, "of", read)
    log = run_audit(parse_spec(SMALL), out=tmp_path / "run", engine="here")
    assert alive == [0] * (len(log.cells) + 1) and len(log.cells) == 4
