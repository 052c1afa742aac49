"""The options that audit, tradeoff and reproduce have in common."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.test_cli import run, spec, user

from seepage import options
from seepage.cli import app

__all__ = ["user"]
SHARED = {
    "--jobs",
    "--engine",
    "--scheduler",
    "--budget",
    "--device",
    "--seeds",
    "--out",
    "--fresh",
    "--json",
}
STUDY = "[training]\nrounds = 2\nclients = 1\nexamples = 4\ntest_examples = 8\n"


@pytest.mark.parametrize("command", ["audit", "tradeoff", "reproduce"])
def test_every_command_with_a_grid_has_the_same_options(command: str) -> None:
    group = typer.main.get_command(app)
    found = group.commands[command].params  # type: ignore[attr-defined]
    assert {name for parameter in found for name in parameter.opts} >= SHARED
    helps = {parameter.name: parameter.help for parameter in found if parameter.name in ("jobs", "engine")}
    defined = inspect.signature(options.Run, eval_str=True).parameters
    assert helps == {name: defined[name].annotation.__metadata__[0].help for name in ("jobs", "engine")}


def test_reading_the_options_needs_no_torch() -> None:
    code = "import sys, seepage.options, seepage.core.amounts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_replace_those_of_the_file(user: Path) -> None:
    assert run("audit", spec(user), "--seeds", "2", "--device", "cpu", "--out", "counted") == 0
    assert run("audit", spec(user), "--seeds", "5,", "--out", "named") == 0
    counted, named = (json.loads((user / name / "log.json").read_text()) for name in ("counted", "named"))
    assert counted["spec"]["seeds"] == [0, 1] and counted["spec"]["device"] == "cpu"
    assert named["spec"]["seeds"] == [5]


def test_a_file_may_say_how_many_seeds(user: Path) -> None:
    assert run("audit", spec(user, seeds="2"), "--out", "run") == 0
    assert json.loads((user / "run" / "log.json").read_text())["spec"]["seeds"] == [0, 1]


@pytest.mark.parametrize("command", ["audit", "tradeoff"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "many"], "--seeds: 'many' names no seeds"),
        (["--budget", "soon"], "--budget: 'soon' is no time"),
        (["--engine", "pol"], "unknown engine 'pol': did you mean 'pool'"),
        (["--engine", "ray", "--scheduler", "tcp://here:1"], "set RAY_ADDRESS=tcp://here:1 instead"),
        (["--engine", "here", "--jobs", "2"], "leave --jobs 2 out"),
        (["--scheduler", "tcp://here:1"], "add --engine dask to use tcp://here:1"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_written(
    user: Path, capsys: pytest.CaptureFixture[str], command: str, arguments: list[str], said: str
) -> None:
    assert run(command, spec(user, STUDY if command == "tradeoff" else ""), *arguments, "--out", "run") == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("seepage:")]
    assert len(told) == 1 and said in told[0]
    assert not (user / "run").exists()


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_without_the_extra_one_sentence_says_what_to_install(
    user: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert run("audit", spec(user), "--engine", engine, "--out", "run") == 2
    assert f"pip install 'seepage[{engine}]'" in capsys.readouterr().err
    assert not (user / "run").exists()


def test_a_study_out_of_time_names_what_it_did_not_run_and_goes_on(
    user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = spec(user, STUDY, defenses='[{name = "clipping", norm = [1.0, 0.1]}]')
    assert run("tradeoff", study, "--out", "study", "--budget", "0.001s") == 3
    told = capsys.readouterr().err
    assert "11 of 11 cells were not run; the same command goes on with them" in told
    assert "clipping(norm=0.1): not run: training, seed 0; prior_only, seed 0; analytic_extraction" in told
    assert run("tradeoff", study, "--out", "study", "--budget", "1h") == 0
    assert "not run" not in capsys.readouterr().err


def test_where_names_what_a_run_takes(tmp_path: Path) -> None:
    from seepage.engine.run import run_grid

    found = options.Run(out=tmp_path).where()
    assert set(found) <= set(inspect.signature(run_grid).parameters)
