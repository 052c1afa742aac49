"""JUnit and SARIF files against the schemas that others publish for them (public_schemas/SOURCES.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from seepage.record import AuditLog
from seepage.report.evidence import Evidence
from seepage.report.evidence.junit import junit_text
from seepage.report.evidence.sarif import sarif_text
from seepage.report.terminal import to_json

xmlschema = pytest.importorskip("xmlschema", reason="xmlschema is not installed")
Logs = Callable[..., Any]
PUBLIC = Path(__file__).parent / "public_schemas"
EVIL = '<b> & "quoted" \x00\x1b[31m ]]> 名前'


def _everything(new_log: Logs) -> AuditLog:
    builder = new_log(header_changes={"title": EVIL})
    builder.add_images("prior_only", [10.0] * 4)
    builder.add_images("exact_extraction", [100.0, 100.0, 12.0, 12.0])
    builder.add_images("inverting_gradients", [9.0, float("nan"), float("inf"), 9.0])
    builder.add_status("april", "not_applicable", EVIL)
    builder.add_status("tag", "failed", EVIL)
    return builder.plan("idlg").build()


def _nothing(new_log: Logs) -> AuditLog:
    builder = new_log().add_images("prior_only", [10.0])
    return builder.add_status("april", "not_applicable", "no patches").build()


def _gated(new_log: Logs) -> AuditLog:
    builder = new_log(spec={"fail_on": {"exact": 0.2}, "protocol": {"clients": 1, "batch_size": 4}})
    builder.add_images("prior_only", [10.0] * 4)
    return builder.add_images("exact_extraction", [100.0, 9.0, 9.0, 9.0]).build()


LOGS = pytest.mark.parametrize("made", [_everything, _nothing, _gated])


@LOGS
@pytest.mark.parametrize("about", ["", "audit.toml", "my audits/größe 100%.toml", "C:\\audits\\a.toml"])
def test_sarif_is_valid_by_the_schema_of_oasis(new_log: Logs, made: Any, about: str) -> None:
    schema = json.loads((PUBLIC / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    checker = jsonschema.Draft7Validator(schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)
    document = json.loads(sarif_text(Evidence.of(made(new_log), about=about)), parse_constant=_no_number)
    assert [error.message for error in checker.iter_errors(document)] == []
    for result in document["runs"][0]["results"]:
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri.isascii()
        assert not set(uri) & set(' \\"<>')


def _no_number(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def test_the_schema_of_oasis_would_notice(new_log: Logs) -> None:
    schema = json.loads((PUBLIC / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    document = json.loads(sarif_text(Evidence.of(_gated(new_log))))
    document["runs"][0]["results"][0]["kind"] = "leak"
    assert not jsonschema.Draft7Validator(schema).is_valid(document)


@LOGS
def test_junit_is_valid_by_the_schema_of_jenkins(new_log: Logs, made: Any) -> None:
    schema = xmlschema.XMLSchema(str(PUBLIC / "jenkins-junit.xsd"))
    text = junit_text(Evidence.of(made(new_log)))
    assert [error.reason for error in schema.iter_errors(text)] == []


def test_the_schema_of_jenkins_would_notice(new_log: Logs) -> None:
    schema = xmlschema.XMLSchema(str(PUBLIC / "jenkins-junit.xsd"))
    text = junit_text(Evidence.of(_gated(new_log)))
    assert not schema.is_valid(text.replace("<testcase", "<testcase unheard='of'"))


def test_every_form_for_machines_is_json_without_extensions(new_log: Logs) -> None:
    """RFC 8259 has no NaN and no Infinity."""
    written = json.dumps(to_json(_everything(new_log)))
    read = json.loads(written, parse_constant=_no_number)
    (search,) = [one for one in read["attacks"] if one["attack"]["name"] == "inverting_gradients"]
    assert search["scores"]["psnr"]["value"] == "NaN"
