"""Runs side by side: what is refused, what is told, and what is left open."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import seepage
from seepage.cli import app
from seepage.core.errors import SpecError
from seepage.record import DefenseRecord, DefenseRef, NotTried
from seepage.report.compared import compare_logs, comparison_html, print_comparison

SEEDS = (0, 1, 2)


def _scores(exact: bool):
    return {"psnr": 100.0 if exact else 9.0, "ssim": 0.5, "mse": 0.0 if exact else 0.2, "exact": float(exact)}


def _fill(builder, name, share, examples=8):
    """`share` of the examples of each seed are exact; the rest is as bad as the guess."""
    truth = np.zeros((examples, *builder.shape), dtype=np.float32)
    for seed in builder.seeds:
        scores = [_scores(i < share * examples) for i in range(examples)]
        guess = {"psnr": 9.0, "ssim": 0.1, "mse": 0.2, "exact": 0.0}
        builder.add(name, scores, guess=guess, seed=seed, arrays=(truth, truth))
    return builder


def _log(new_log, *, share, names=("reader",), **changes):
    builder = _fill(new_log(seeds=SEEDS, **changes), "prior_only", 0.0)
    for name in names:
        _fill(builder, name, share)
    return builder


def test_a_change_that_helps_is_told_with_its_figures(new_log):
    before = _log(new_log, share=1.0).build()
    sign = DefenseRecord(defense=DefenseRef(name="sign"), description="", guarantee="heuristic")
    after = _log(new_log, share=0.0, header_changes={"defenses": (sign,)}).build()
    found = compare_logs([before, after], ["before", "after"])
    assert found.changes[0].word == "less"
    assert found.headline == (
        "after gives away less than before: by the worst attack of each, 0 of 24 images came out exactly, "
        "instead of 24 of 24; the leakage is 0 %, instead of 100 %."
    )
    assert found.changed == (("defenses", ("none", "sign")),)
    assert found.told
    assert compare_logs([after, before]).changes[0].word == "more"


def test_no_difference_is_not_called_one(new_log):
    found = compare_logs([_log(new_log, share=0.5).build(), _log(new_log, share=0.5).build()])
    assert found.changes[0].word == "no difference shown"
    assert found.changed == () and "--seeds" not in found.headline


def test_a_difference_inside_its_interval_names_the_remedy(new_log):
    one = new_log().add_images("prior_only", [10.0, 10.0]).add_images("reader", [100.0, 10.0]).build()
    two = new_log().add_images("prior_only", [10.0, 10.0]).add_images("reader", [10.0, 10.0]).build()
    found = compare_logs([one, two])
    assert found.changes[0].word == "no difference shown"
    assert "within its interval, which more seeds make narrower (--seeds 10)" in found.headline


@pytest.mark.parametrize("why", ["over_budget", "not_listed", None])
def test_an_attack_that_leaked_and_is_missing_later_leaves_the_answer_open(new_log, why):
    before = _log(new_log, share=1.0, names=("reader", "other")).build()
    left = () if why is None else (NotTried(name="reader", why=why, reason="no time was left"),)
    after = _log(new_log, share=0.0, names=("other",), header_changes={"not_tried": left}).build()
    found = compare_logs([before, after])
    assert found.changes[0].word == "not measured"
    assert found.changes[0].gaps == ("reader",)
    assert not found.told
    run = CliRunner().invoke(app, ["compare", str(before.folder.path), str(after.folder.path)])
    assert run.exit_code == 3, run.output


def test_an_attack_that_cannot_work_later_is_no_gap(new_log):
    before = _log(new_log, share=1.0, names=("reader", "other")).build()
    left = (NotTried(name="reader", why="does_not_fit", reason="there is no dense layer"),)
    after = _log(new_log, share=0.0, names=("other",), header_changes={"not_tried": left}).build()
    assert compare_logs([before, after]).changes[0].word == "less"


def test_features_are_not_compared_with_inputs(new_log):
    before = _log(new_log, share=1.0).build()
    builder = _fill(new_log(seeds=SEEDS), "prior_only", 0.0)
    for seed in SEEDS:
        builder.add("reader", [_scores(True)] * 4, guess=_scores(False), seed=seed, space="dense1")
    found = compare_logs([before, builder.build()])
    assert found.changes[0].word == "not measured"
    assert found.lines[0].differences == (None,)


def test_what_must_not_be_compared_is_refused_with_a_sentence(new_log):
    plain = _log(new_log, share=1.0).build()
    with pytest.raises(SpecError, match="compared with itself"):
        compare_logs([plain, plain])
    with pytest.raises(SpecError, match="needs two runs"):
        seepage.compare(plain)
    others = {
        "their data differ": _log(new_log, share=1.0, header_changes={"data_name": "digits"}),
        "exact_tolerance": _log(new_log, share=1.0, header_changes={"exact_tolerance": 0.01}),
    }
    for said, builder in others.items():
        with pytest.raises(SpecError, match=said):
            compare_logs([plain, builder.build()])
    blind = new_log(seeds=(0,))
    blind.add("reader", [], guess={}, claims=2, claims_right=None, claimed_examples=2)
    with pytest.raises(SpecError, match="without the truth"):
        compare_logs([plain, blind.build()])


def test_names_do_not_run_and_the_page_has_every_run(new_log):
    evil = "<script>alert(1)</script>"
    found = compare_logs(
        [_log(new_log, share=1.0).build(), _log(new_log, share=0.0).build()], [evil, "b\x1b[31m"]
    )
    page = comparison_html(found)
    assert evil not in page
    assert page.count("<h3 id=") == 2
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    print_comparison(found, console)
    assert "\x1b" not in console.export_text()


def test_the_command_writes_the_page_and_json(new_log, tmp_path):
    folders = [str(_log(new_log, share=share).build().folder.path) for share in (1.0, 0.0)]
    page = tmp_path / "page.html"
    command = ["compare", *folders, "--name", "old", "--name", "new", "--out", str(page), "--json"]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    said = json.loads(run.output)
    assert said["changes"][0]["answer"] == "less"
    assert [one["name"] for one in said["runs"]] == ["old", "new"]
    assert page.is_file()
    assert seepage.compare(*folders).to_json()["changes"][0]["answer"] == "less"
