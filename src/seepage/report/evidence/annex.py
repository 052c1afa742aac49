"""An annex to a data-protection impact assessment: what was tried, what came out, what is left open.

The threat model is named in the words of NIST AI 100-2 (attacker goal, capability, knowledge). EDPB Opinion
28/2024 asks controllers for tests of a model's resistance against means reasonably likely to be used.
"""

from __future__ import annotations

from collections.abc import Sequence

from seepage import __version__
from seepage.engine.protocol_spec import ProtocolSpec
from seepage.names.threats import GRANTS
from seepage.record import Header
from seepage.report.actions import read_actions
from seepage.report.evidence.findings import Evidence
from seepage.report.evidence.markdown import attack_table, cell, table
from seepage.report.plan import left_out
from seepage.report.words import percent

RESIDUAL = {
    "leak_shown": "The risk that the server learns personal data from the updates is **shown to exist** in "
    "this setting. The figures are lower bounds: stronger attacks may recover more.",
    "not_shown": "The risk **was not shown** by the attacks that were run. That is not a proof of its "
    "absence: stronger attacks exist or will. Only a formal guarantee (differential privacy, properly "
    "accounted) bounds all of them.",
    "not_measured": "The risk **was not measured**. Nothing in this annex supports a statement that it is "
    "low.",
}


def annex_text(found: Evidence) -> str:
    """Markdown with numbered sections, to be filed as it is or turned into a document."""
    header = found.log.header
    sections = [
        ("System", _system(header)),
        ("Threat model", _threat(header)),
        ("What was tried", _tried(found)),
        ("Results", [found.verdict.headline, "", *attack_table(found), "", *_details(found)]),
        ("Residual risk", [*_residual(found), "", *_gate(found)]),
        ("Further safeguards", _measures(found)),
        ("Limits of this measurement", _limits(found)),
    ]
    lines = [f"# Annex: resistance of the training protocol to reconstruction ({cell(header.title)})", ""]
    for number, (title, body) in enumerate(sections, start=1):
        lines += [f"## {number}. {title}", "", *body, ""]
    return "\n".join(lines)


def _system(header: Header) -> list[str]:
    rows = [
        ["model", f"{header.model_name}, {header.model_parameters:,} parameters"],
        ["data", f"{header.data_name}: {header.data_examples:,} examples ({header.data_source})"],
        ["kind of data", header.input.modality],
        ["protocol", _protocol(header)],
        ["safeguards", "; ".join(_safeguard(header)) or "none"],
        [
            "measured with",
            f"seepage {__version__}, {header.created[:10]}, seeds {', '.join(map(str, header.seeds))}",
        ],
        ["record", f"run key {header.run_key[:16]}"],
    ]
    return table(["", ""], rows)


_ALWAYS = ("batch_size", "clients", "rounds", "aggregation", "algorithm")


def _protocol(header: Header) -> str:
    """What an officer asks for first, and whatever else is not as usual."""
    usual = {name: field.default for name, field in ProtocolSpec.model_fields.items()}
    given = {**usual, **(header.spec.get("protocol") or {})}
    shown = {name: value for name, value in given.items() if name in _ALWAYS or value != usual.get(name)}
    return ", ".join(f"{name} = {value}" for name, value in shown.items())


def _safeguard(header: Header) -> list[str]:
    return [
        f"{one.title} ({one.guarantee}{': ' + one.promise if one.promise else ''})" for one in header.defenses
    ]


def _threat(header: Header) -> list[str]:
    malicious = "craft_weights" in header.threat.grants
    described = header.threat.description
    server = "the server of the federation" if described.startswith("The server") else described
    rows = [
        ["attacker", server + ("; it may choose the weights it sends" if malicious else "")],
        ["goal (NIST AI 100-2: privacy compromise)", "reconstruction of the clients' training data"],
        ["capability", "model control and observation of updates" if malicious else "observation of updates"],
        ["sees", header.threat.server_sees],
        ["knowledge and means granted", _granted(header.threat.grants)],
    ]
    return [cell(header.threat.description), "", *table(["", ""], rows)]


def _granted(grants: Sequence[str]) -> str:
    """In words: what each grant lets the server know or do, the name of the setting in brackets."""
    return "; ".join(GRANTS.get(name, name) for name in grants) or "the model alone"


def _measures(found: Evidence) -> list[str]:
    """What was tried against the leak on this deployment, with its figures; none of it is in place yet."""
    actions = read_actions(found.log) if found.verdict.outcome == "leak_shown" else None
    if actions is None:
        return ["No further safeguard was measured on this deployment."]
    lines = ["Measured on this deployment, and not in place when the results above were taken:", ""]
    lines += [f"- {cell(f'{one.title}. {one.stops} {one.price} {one.proof}')}" for one in actions.listed]
    lines += [f"- {cell(said)}" for said in actions.below]
    lines += [f"- Without effect: {cell(said)}" for said in actions.without_effect]
    lines += [f"- Not measured: {cell(said)}" for said in actions.not_measured]
    return [*lines, "", cell(actions.basis)]


def _tried(found: Evidence) -> list[str]:
    lines = [
        f"- {cell(one.title)}: {one.summary.cells} of {len(found.log.header.seeds)} runs finished"
        for one in found.findings
    ]
    return [*lines, *(f"- {cell(said)}" for said in left_out(found.log.header))]


def _details(found: Evidence) -> list[str]:
    lines = [f"- **{cell(one.title)}**: {cell(one.text)}" for one in found.findings]
    worst = max(
        (one.summary for one in found.findings), key=lambda s: s.exact / max(1, s.examples), default=None
    )
    if worst is not None and (share := worst.scores.get("exact")):
        between = f"95 % interval {percent(share.low)} to {percent(share.high)}"
        lines.append(f"- Largest share of examples recovered exactly: {percent(share)} ({between}).")
    return lines


def _residual(found: Evidence) -> list[str]:
    in_part = [f"What these attacks got: {cell(found.in_part)}."] if found.in_part else []
    return [RESIDUAL[found.verdict.outcome], *in_part]


def _gate(found: Evidence) -> list[str]:
    if not found.gated:
        return ["No threshold was set (`fail_on`)."]
    lines = [f"- Above the threshold: {cell(said)}" for said in found.ruling.above]
    lines += [f"- Not measured: {cell(said)}" for said in found.ruling.not_measured]
    return lines or ["All thresholds were measured and none was reached."]


def _limits(found: Evidence) -> list[str]:
    header = found.log.header
    said = [
        "The figures hold for this state of the model, these data and this protocol. Repeat the measurement "
        "when one of them changes.",
        f"An example counts as exact at an error of at most {header.exact_tolerance:g} of the value range "
        "(in a table: of each column's spread; whole numbers and categories equal).",
        "Intervals are about further batches of the same data, not about other data.",
        *header.doubts,
    ]
    if found.log.missing:
        said.append(f"{found.log.missing} planned runs have not been made.")
    return [f"- {cell(one)}" for one in said]
