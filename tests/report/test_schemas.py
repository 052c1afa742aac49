"""What is written fits the published schemas, as another library reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from seepage.cli import app
from seepage.report.schemas import schemas
from seepage.report.terminal import to_json

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
DOCS = Path(__file__).parents[2] / "docs"


def _published(name: str):
    schema = json.loads((DOCS / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture
def log(new_log):
    builder = new_log(seeds=(0,))
    builder.add_images("prior_only", [10.0] * 4)
    builder.add_images("reader", [100.0, float("nan"), 20.0, 9.0])
    builder.add_status("other", "not_applicable", "no dense layer")
    return builder.build()


@pytest.mark.parametrize("name", sorted(schemas()))
def test_the_published_file_is_what_the_records_say(name):
    written = json.loads((DOCS / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(schemas()[name])), "run: python docs/schemas.py"


def test_a_run_folder_fits(log):
    _published("log").validate(json.loads((log.folder.path / "log.json").read_text()))
    cells = sorted((log.folder.path / "cells").glob("*.json"))
    assert len(cells) == 3
    for file in cells:
        _published("cell").validate(json.loads(file.read_text()))


def test_what_the_command_prints_fits(log):
    run = CliRunner().invoke(app, ["report", str(log.folder.path), "--json", "--format", "json"])
    assert run.exit_code == 0, run.output
    _published("report").validate(json.loads(run.output))
    _published("report").validate(json.loads((log.folder.path / "report.json").read_text()))
    _published("report").validate(to_json(log))


@pytest.mark.parametrize(
    ("name", "broken"),
    [("log", {"schema_version": 2}), ("report", {"verdict": {"outcome": "safe"}}), ("cell", {"seed": "0"})],
)
def test_what_does_not_fit_is_noticed(log, name, broken):
    files = {
        "log": json.loads((log.folder.path / "log.json").read_text()),
        "cell": json.loads((log.folder.path / "cells" / "reader-seed0.json").read_text()),
        "report": to_json(log),
    }
    with pytest.raises(jsonschema.ValidationError):
        _published(name).validate({**files[name], **broken})
