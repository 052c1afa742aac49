"""SARIF 2.1.0 (OASIS): findings as code-scanning services read them."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from seepage import __version__
from seepage.core.unloaded import written
from seepage.names.attacks import ATTACKS
from seepage.record import plain
from seepage.report.evidence.findings import AttackFinding, Evidence

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"high": "error", "some": "warning"}
"""Of what is a finding; everything else has the level "none" and a kind that is not a pass."""
KINDS = {"leak": "fail", "not_shown": "review", "not_measured": "open", "not_applicable": "notApplicable"}


def sarif_text(found: Evidence) -> str:
    """One run with one result for each attack. None says "pass": that an attack got nothing is no proof."""
    rules = list(dict.fromkeys(one.summary.attack.name for one in found.findings))
    run = {
        "tool": {
            "driver": {"name": "seepage", "version": __version__, "rules": [_rule(name) for name in rules]}
        },
        "invocations": [
            {
                "executionSuccessful": found.verdict.outcome != "not_measured",
                "exitCode": 1 if found.ruling.above else 3 if found.ruling.not_measured else 0,
            }
        ],
        "results": [_result(one, rules, found) for one in found.findings],
        "properties": {"verdict": found.verdict.outcome, "headline": found.verdict.headline},
    }
    whole = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


def _rule(name: str) -> dict[str, Any]:
    entry = ATTACKS.get(name)
    said = entry.description or written(entry.where)[0] if entry else "An attack from outside of seepage."
    return {"id": name, "shortDescription": {"text": said}}


def _result(one: AttackFinding, rules: list[str], found: Evidence) -> dict[str, Any]:
    place = quote(found.about or "seepage", safe="/")  # a URI, relative to the folder of the command
    name = one.summary.attack.name
    in_part = f" ({one.in_part})" if one.in_part else ""
    same = hashlib.sha256(f"{found.log.header.title} {one.summary.attack.key}".encode()).hexdigest()
    return {
        "ruleId": name,
        "ruleIndex": rules.index(name),
        "kind": KINDS[one.state],
        "level": LEVELS[one.level] if one.state == "leak" else "none",
        "message": {"text": f"{one.title}{in_part}: {one.text}"},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": place}, "region": {"startLine": 1}}}],
        "partialFingerprints": {"seepage/v1": same},
        "properties": {
            "examples": one.summary.examples,
            "exact": one.summary.exact,
            "scores": plain(one.summary.scores),
            "baseline": plain(one.summary.baseline),
        },
    }
