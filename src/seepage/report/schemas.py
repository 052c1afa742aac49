"""The published schemas of what other programs read: docs/*.schema.json, made from the records themselves.

Their version is `SCHEMA_VERSION`: a file of another version is refused when it is read, and does not fit.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from seepage.record import SCHEMA_VERSION, AttackSummary, Cell, Header, Record, RunHeader
from seepage.report.judgement import Level, Outcome
from seepage.report.terminal import ESSENTIALS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Numbers(GenerateJsonSchema):
    """JSON has no NaN and no infinity: records write them as words (see `Record`)."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}


class VerdictRecord(Record):
    """What was shown, in words."""

    outcome: Outcome
    level: Level
    badge: str
    headline: str
    details: list[str]


class KeyedSummary(AttackSummary):
    """One attack over all seeds."""

    key: str
    """Unique for the attack and its settings."""


_FIELDS: dict[str, Any] = {
    name: (field.annotation, field) for name, field in Header.model_fields.items() if name in ESSENTIALS
}
AuditedRecord = create_model("AuditedRecord", __base__=Record, **_FIELDS)
"""What was audited: the essentials of the log's header."""


class ReportRecord(Record):
    """What `seepage audit --json`, `--format json` and `to_json()` give.

    The last four are the command's alone.
    """

    schema_version: Literal[3]
    verdict: VerdictRecord
    attacks: list[KeyedSummary]
    audit: AuditedRecord  # type: ignore[valid-type]
    planned_cells: int
    missing_cells: list[str]
    report: str = Field(default="", description="Where the page is.")
    exceeded: list[str] = Field(default=[], description="Thresholds of fail_on that were reached.")
    not_measured: list[str] = Field(default=[], description="Thresholds of fail_on that were not measured.")
    exit_code: int = Field(default=0, description="0 below, 1 above, 3 not measured.")


def schemas() -> dict[str, dict[str, Any]]:
    """By the name of the file.

    >>> sorted(schemas())
    ['cell', 'log', 'report']
    """
    titles: dict[str, tuple[type[Record], str]] = {
        "log": (RunHeader, "log.json of a run's folder"),
        "cell": (Cell, "cells/*.json of a run's folder: one attack, or training, on one seed"),
        "report": (ReportRecord, "an audit's result as seepage audit --json prints it"),
    }
    return {name: _schema(name, kind, title) for name, (kind, title) in titles.items()}


def _schema(name: str, kind: type[Record], title: str) -> dict[str, Any]:
    made = kind.model_json_schema(mode="serialization", schema_generator=_Numbers)
    if name != "report":
        made["properties"]["checksum"] = {"type": "string", "description": "SHA-256 of the rest."}
    if name == "log":
        made["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    head = {"$schema": DIALECT, "$id": f"urn:seepage:{name}:{SCHEMA_VERSION}"}
    required = [one for one in made.get("required", ()) if one not in _COMMANDS_OWN]
    return {**head, **made, "title": f"seepage: {title}", "required": required}


_COMMANDS_OWN = {"report", "exceeded", "not_measured", "exit_code"}
