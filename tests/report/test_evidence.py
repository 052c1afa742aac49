"""What other tools read of an audit, read by other people's readers; nothing unmeasured reads as a pass."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import junitparser
import pytest
from sarif_pydantic import Sarif

from seepage.core.errors import SpecError
from seepage.record import AuditLog
from seepage.report.evidence import FORMATS, Evidence, check_formats, write_formats
from seepage.report.evidence.annex import annex_text
from seepage.report.evidence.examples import csv_text
from seepage.report.evidence.junit import junit_text
from seepage.report.evidence.markdown import markdown_text
from seepage.report.evidence.sarif import sarif_text

Logs = Callable[..., Any]


def audited(new_log: Logs, **spec: Any) -> AuditLog:
    """A leak, an attack at the guess, one that cannot work, one that failed and one without a result."""
    builder = new_log(spec={"protocol": {"clients": 1, "batch_size": 4}, **spec})
    builder.add_images("prior_only", [10.0] * 4)
    builder.add_images("exact_extraction", [100.0, 100.0, 12.0, 12.0])
    builder.add_images("inverting_gradients", [9.0, 9.5, 10.0, 9.0])
    builder.add_status("april", "not_applicable", "the model has no patches")
    builder.add_status("tag", "failed", "it broke <here> | \x1b[31m")
    builder.plan("idlg")
    return builder.build()


def cases(log: AuditLog) -> dict[str, list[str]]:
    """By case, what junitparser makes of it: failure, error, skipped, or nothing for a pass."""
    read = junitparser.JUnitXml.fromstring(junit_text(Evidence.of(log)))
    return {case.name: [type(one).__name__ for one in case.result] for suite in read for case in suite}


def test_junit_has_a_case_for_the_gate_and_for_each_attack(new_log: Logs) -> None:
    assert cases(audited(new_log)) == {
        "gate": ["Failure"],
        "exact_extraction": ["Failure"],
        "inverting_gradients": [],
        "april": ["Skipped"],
        "tag": ["Error"],
        "idlg": ["Error"],
    }


def test_junit_counts_what_it_holds(new_log: Logs) -> None:
    (suite,) = junitparser.JUnitXml.fromstring(junit_text(Evidence.of(audited(new_log))))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (6, 2, 2, 1)


@pytest.mark.parametrize(
    ("threshold", "gate", "attack"),
    [(0.5, ["Failure"], ["Failure"]), (0.6, ["Error"], [])],  # 2 of 4 are exact; tag and idlg have no result
)
def test_with_thresholds_a_case_fails_where_one_is_reached(
    new_log: Logs, threshold: float, gate: list[str], attack: list[str]
) -> None:
    found = cases(audited(new_log, fail_on={"exact": threshold}))
    assert (found["gate"], found["exact_extraction"]) == (gate, attack)


def nothing_measured(new_log: Logs) -> AuditLog:
    builder = new_log().add_images("prior_only", [10.0])
    return builder.add_status("april", "not_applicable", "no patches").build()


def test_where_nothing_was_measured_nothing_passes(new_log: Logs) -> None:
    log = nothing_measured(new_log)
    assert cases(log) == {"gate": ["Error"], "april": ["Skipped"]}
    (run,) = json.loads(sarif_text(Evidence.of(log)))["runs"]
    assert run["invocations"] == [{"executionSuccessful": False, "exitCode": 3}]
    assert "was not measured" in annex_text(Evidence.of(log))


def test_sarif_is_read_and_says_pass_of_nothing(new_log: Logs) -> None:
    text = sarif_text(Evidence.of(audited(new_log), about="audit.toml"))
    (run,) = Sarif.model_validate_json(text).runs
    kinds = {one.rule_id: (one.kind, one.level.value) for one in run.results or []}
    assert kinds == {
        "exact_extraction": ("fail", "error"),
        "inverting_gradients": ("review", "none"),
        "april": ("notApplicable", "none"),
        "tag": ("open", "none"),
        "idlg": ("open", "none"),
    }
    assert [rule.id for rule in run.tool.driver.rules or []] == list(kinds)
    places = {
        one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for one in json.loads(text)["runs"][0]["results"]
    }
    assert places == {"audit.toml"}


def test_a_finding_keeps_its_fingerprint_from_run_to_run(new_log: Logs) -> None:
    first, again = (json.loads(sarif_text(Evidence.of(audited(new_log)))) for _ in range(2))
    prints = [[one["partialFingerprints"] for one in each["runs"][0]["results"]] for each in (first, again)]
    assert prints[0] == prints[1]
    assert len({tuple(one.items()) for one in prints[0]}) == 5


def test_csv_has_every_example_of_every_attack_with_its_guess(new_log: Logs) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(Evidence.of(audited(new_log))))))
    assert len(rows) == 12
    exact = [row for row in rows if row["attack"] == "exact_extraction"]
    assert [(row["psnr"], row["psnr_guess"], row["exact"]) for row in exact][1:3] == [
        ("100.0", "10.0", "1.0"),
        ("12.0", "10.0", "0.0"),
    ]


def test_names_from_a_log_cannot_act_in_markdown_or_a_spreadsheet(new_log: Logs) -> None:
    builder = new_log(header_changes={"title": "<script>alert(1)</script> | `x`"})
    builder.add_images("prior_only", [10.0]).add_images("=cmd()", [100.0])
    found = Evidence.of(builder.build())
    for text in (markdown_text(found), annex_text(found)):
        assert "<script>" not in text.replace("\\<", "")
    assert "'=cmd()" in csv_text(found)


def test_the_annex_states_system_threat_results_and_what_is_left(new_log: Logs) -> None:
    text = annex_text(Evidence.of(audited(new_log)))
    for part in ("batch_size = 4", "NIST AI 100-2", "2 of 4", "shown to exist", "lower bounds", "0.001"):
        assert part in text
    assert "fresh_batches" not in text  # as usual


def test_the_annex_names_the_attacker_as_the_threat_model_does(new_log: Logs) -> None:
    threat = {"description": "The server follows the protocol.", "grants": ("batch_size",)}
    text = annex_text(Evidence.of(new_log(threat_changes=threat).add_images("a", [100.0]).build()))
    assert "| attacker | the server of the federation |" in text
    assert "how many examples are behind an update (batch" in text  # a grant in words
    assert "No further safeguard was measured" in text
    taps = {"description": "Somebody who taps.", "grants": ()}
    outside = annex_text(Evidence.of(new_log(threat_changes=taps).add_images("a", [9.0]).build()))
    assert "| attacker | Somebody who taps. |" in outside and "the server of the federation" not in outside
    assert "the model alone" in outside


def test_markdown_has_one_line_an_attack(new_log: Logs) -> None:
    text = markdown_text(Evidence.of(audited(new_log)))
    assert text.count("\n| ") == 7  # the head, the guess and five attacks
    assert "**Leak shown.**" in text and "**not measured**" in text


def test_files_are_written_into_the_folder_of_the_run(new_log: Logs) -> None:
    log = audited(new_log)
    written = write_formats(log, FORMATS)
    assert [path.name for path in written] == [file for file, _ in FORMATS.values()]
    assert all(path.parent == log.folder.path and path.stat().st_size > 100 for path in written)
    assert all(path.stat().st_mode & 0o077 == 0 for path in written)  # they hold what leaked


def test_an_unknown_format_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean 'sarif'"):
        check_formats(["junit", "sarrif"])


def test_where_only_labels_leaked_every_format_says_so(new_log: Logs) -> None:
    """An attack that read the labels alone, as the page's headline says, beside one that rebuilt examples."""

    def with_others(*others: str) -> Evidence:
        builder = new_log(seeds=(0, 1))
        for seed in (0, 1):
            builder.add_images("prior_only", [10.0, 10.0], seed=seed, batch_scores={"label_accuracy": 0.3})
            builder.add_images("invert", [9.0, 9.0], seed=seed, batch_scores={"label_accuracy": 0.95})
            for name in others:
                builder.add_images(name, [100.0, 100.0], seed=seed)
        return Evidence.of(builder.build())

    found = with_others()
    (row,) = [line for line in markdown_text(found).splitlines() if line.startswith("| invert ")]
    assert "leak shown (labels, not examples)" in row and row in annex_text(found)
    assert "What these attacks got: labels, not examples." in annex_text(found)
    assert 'type="leak (labels, not examples)"' in junit_text(found)
    (result,) = json.loads(sarif_text(found))["runs"][0]["results"]
    assert result["message"]["text"].startswith("invert (labels, not examples): A curious server infers 95 %")
    both = with_others("read")
    assert "What these attacks got" not in annex_text(both)
    assert "| read | leak shown |" in markdown_text(both)
