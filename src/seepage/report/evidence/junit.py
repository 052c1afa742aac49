"""JUnit XML, the dialect that GitLab, Jenkins and GitHub's test reporters read."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from seepage.report.evidence.findings import AttackFinding, Evidence
from seepage.report.words import printable


def junit_text(found: Evidence) -> str:
    """One suite: the gate first, then a case for each attack.

    With `fail_on`, a case fails where its attack reaches a threshold. Without, where it has shown a leak.
    What was not measured is an error, and what cannot work here is skipped; where that is all there is, the
    gate is an error too, so that no suite passes without a measurement.
    """
    suite = Xml.Element("testsuite", name=f"seepage: {_plain(found.log.header.title)}")
    suite.set("timestamp", found.log.header.created[:19])
    _gate(suite, found)
    for one in found.findings:
        _attack(suite, one, found)
    for kind, counted in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(counted, str(len(suite.findall(f"testcase/{kind}"))))
    suite.set("tests", str(len(suite)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in suite):.3f}")
    suites = Xml.Element("testsuites")
    suites.append(suite)
    Xml.indent(suites)
    return Xml.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _gate(suite: Xml.Element, found: Evidence) -> None:
    case = Xml.SubElement(suite, "testcase", classname="seepage", name="gate", time="0.000")
    shown = found.verdict.outcome == "leak_shown" and not found.gated
    if found.ruling.above or shown:
        said = found.ruling.above or (found.verdict.headline,)
        _said(case, "failure", "leak", *said)
    elif found.ruling.not_measured or found.verdict.outcome == "not_measured":
        _said(case, "error", "not_measured", *(found.ruling.not_measured or (found.verdict.headline,)))


def _attack(suite: Xml.Element, one: AttackFinding, found: Evidence) -> None:
    seconds = f"{one.summary.seconds * one.summary.cells:.3f}"
    case = Xml.SubElement(
        suite, "testcase", classname="seepage.attacks", name=_plain(one.title), time=seconds
    )
    reached = [said for said in found.ruling.above if said.startswith(f"{one.title}: ")]
    if reached or (one.state == "leak" and not found.gated):
        kind = f"leak ({one.in_part})" if one.in_part else "leak"
        _said(case, "failure", kind, *reached, one.text)
    elif one.state == "not_applicable":
        _said(case, "skipped", "", one.text)
    elif one.state == "not_measured":
        _said(case, "error", "not_measured", one.text)
    else:
        Xml.SubElement(case, "system-out").text = _plain(one.text)


def _said(case: Xml.Element, tag: str, kind: str, *sentences: str) -> None:
    element = Xml.SubElement(case, tag)
    if kind:  # Jenkins' schema has no attributes for what is skipped
        element.set("message", _plain(sentences[0]))
        element.set("type", kind)
    element.text = _plain(" ".join(sentences))


def _plain(text: str) -> str:
    """XML has no place for control characters."""
    return printable(text)
