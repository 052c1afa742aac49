"""Terminal and machine form."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from seepage.record import AttackRef, summarise
from seepage.report import print_summary, to_json
from seepage.report.actions import Action, Actions


def printed(log, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_summary(log, console)
    return console.file.getvalue()


@pytest.fixture
def log(new_log):
    builder = new_log(seeds=(0, 1)).add_images("prior_only", [10.0] * 3)
    builder.add_images(
        "analytic",
        [100.0, 22.0, 10.0],
        claims=2,
        claims_right=1,
        claimed_examples=1,
        batch_scores={"label_accuracy": 0.5},
    )
    builder.add_status("trap_weights", "not_applicable", "no linear layer")
    long = AttackRef(name="inverting_gradients_with_a_long_name", params={"steps": 4800, "tv": 0.1})
    builder.attacks.append(long)
    return builder.build()


def test_verdict_first_then_aligned_figures_with_the_baseline(log):
    lines = printed(log).splitlines()
    assert max(len(line) for line in lines) <= 100
    assert lines[0] == "Leak shown: A curious server recovers 1 of 3 images exactly from one update."
    head = next(line for line in lines if line.startswith("Attack"))
    row = next(line for line in lines if line.startswith("analytic"))
    interval = summarise(log)[1].scores["psnr"]
    assert row.split()[2:] == ["1", "of", "3", "44.0", "10.0", "0.60", "1", "of", "2", "50", "%", "1.50", "s"]
    assert f"({interval.low:.1f} to {interval.high:.1f})" in lines[lines.index(row) + 1]
    assert row.index("44.0") + 4 == head.index("interval)") + len("interval)")  # right edges meet
    assert "trap_weights (not applicable): No linear layer." in lines


def test_an_example_that_is_claimed_twice_is_said_to_be_one(new_log):
    builder = new_log().add_images("prior_only", [10.0] * 2)
    log = builder.add_images("peel", [100.0, 22.0], claims=5, claims_right=4, claimed_examples=1).build()
    lines = printed(log).splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("peel"))
    assert "4 of 5" in lines[row] and "(1 different)" in lines[row + 1]


def test_one_line_names_the_columns_that_came_out_and_the_scale_they_were_fed_on(new_log, columns):
    builder = new_log(modality="tabular", input_changes={"fed": "Columns are fed as they are."})
    scores = [{"rmse": 0.9, "exact": 0.0}] * 2
    builder.add("rows", scores, guess={"rmse": 1.0, "exact": 0.0}, columns=columns)
    log = builder.build()
    lines = printed(log).splitlines()
    line = "Columns that rows has right: income 1 of 2 (the baseline 0); 2 more columns in the report."
    assert line in lines and "Columns are fed as they are." in lines
    found = next(attack for attack in to_json(log)["attacks"] if attack["key"] == "rows")["columns"]
    assert found[0] == {"name": "income", "kind": "integer", "right": 1, "guessed": 0, "examples": 2}
    nothing = [column.model_copy(update={"right": 0}) for column in columns]
    log = new_log(modality="tabular").add("rows", scores, guess=scores[0], columns=nothing).build()
    assert "No column came out more often than the baseline guesses it." in printed(log)


def test_texts_are_shown_as_the_server_reads_them(new_log):
    builder = new_log(modality="text")
    scores = [{"token_accuracy": 0.33, "rouge_l": 0.67, "exact": 0.0}] * 2
    pairs = [("nobody knows", None), ("the cat sat", "sat cat on")]
    builder.add("tag", scores, guess={"token_accuracy": 0.0}, texts=pairs)
    assert "tag: ___ cat ~sat" in printed(builder.build())
    assert "nobody" not in printed(builder.build())


def test_narrow_terminals_still_work(log):
    assert "1 of 3" in printed(log, width=80)


def test_log_texts_are_neither_markup_nor_escape_codes(new_log):
    evil = "[bold red]x[/bold red] \x1b[31m [/nonsense]"
    builder = new_log().add_status("trap", "failed", evil)
    builder.attacks.append(AttackRef(name="other", params={"a": "[red]y[/red]"}))
    text = printed(builder.build())
    assert "[bold red]x[/bold red] [31m [/nonsense]" in text
    assert "[red]y[/red]" in "".join(text.split())
    assert "\x1b" not in text


def test_json_form_round_trips_and_holds_the_same_figures(log):
    found = json.loads(json.dumps(to_json(log)))
    assert found["verdict"]["level"] == "high"
    analytic = found["attacks"][1]
    assert analytic["key"] == "analytic"
    assert analytic["exact"] == 1
    assert analytic["scores"]["psnr"]["value"] == pytest.approx(np.mean([100, 22, 10]))
    assert analytic["baseline"]["psnr"]["value"] == 10.0
    assert found["audit"]["threat"]["name"] == "curious"
    assert found["audit"]["title"] == "A test audit"
    assert found["planned_cells"] == 8
    assert len(found["missing_cells"]) == 5
    assert "prior_only-seed1" in found["missing_cells"]


def test_a_narrow_terminal_loses_whole_columns_and_never_digits(log):
    wide, narrow, narrower = printed(log, 100), printed(log, 80), printed(log, 66)
    assert "Time" in wide and "Time" not in narrow
    assert "Claims" in wide and "right" in wide
    assert "Claims" not in narrower and "righ" not in narrower  # the whole column is gone
    assert max(len(line) for line in narrow.splitlines()) <= 80
    assert f"({summarise(log)[1].scores['psnr'].low:.1f} to" in narrow


@pytest.mark.parametrize("value", [100.0, 12.9, 10.0, float("nan")])
def test_nothing_is_printed_in_green(new_log, value):
    log = new_log().add_images("a", [value, value]).build()
    buffer = io.StringIO()
    print_summary(log, Console(file=buffer, force_terminal=True, color_system="standard", width=100))
    codes = [
        code for found in re.findall(r"\x1b\[([0-9;]*)m", buffer.getvalue()) for code in found.split(";")
    ]
    assert codes and not {"32", "92"} & set(codes)


def test_machines_get_the_verdict_as_one_of_three(new_log):
    outcomes = {
        100.0: ("leak_shown", "high"),
        10.0: ("not_shown", "none_shown"),
        float("nan"): ("not_measured", "unknown"),
    }
    for value, (outcome, level) in outcomes.items():
        found = to_json(new_log().add_images("a", [value, value]).build())["verdict"]
        assert (found["outcome"], found["level"]) == (outcome, level)


def test_what_to_do_is_said_here_too_with_the_command(log, monkeypatch):
    words = {
        "how": "",
        "price": "It is dear.",
        "also": "",
        "proof": "",
        "setting": "",
        "stopped": 1.0,
        "kept": 1.0,
    }
    one = Action(
        title="Sum up", stops="Stops 90 %.", command="seepage audit a.toml --with secure_sum", **words
    )
    found = Actions(listed=(one,), basis="On 1 seed.")
    monkeypatch.setattr("seepage.report.terminal.read_actions", lambda log: found)
    lines = printed(log).splitlines()
    at = lines.index("What to do, measured on this deployment, the best first:")
    assert lines[at + 1 : at + 4] == ["1. Sum up. Stops 90 %. It is dear.", f"   {one.command}", "On 1 seed."]
