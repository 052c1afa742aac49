"""`seepage doctor` says that an audit runs only where one did."""

from __future__ import annotations

import json

import pytest

from seepage import doctoring
from seepage.cli import main
from seepage.doctoring import Examined, Finding, examine


def test_a_healthy_installation(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert end.value.code == 0
    assert told["well"]
    lines = {one["what"]: one for one in told["findings"]}
    assert lines["an audit"]["state"] == "ok"
    assert lines["torch"]["state"] == "ok"
    assert "no folder" in lines["data folder"]["said"]


def test_a_missing_package_stops_it_and_a_missing_extra_does_not(monkeypatch):
    asked = ["no-such-package>=1", 'not-there>=2; extra == "hub"']
    monkeypatch.setattr(doctoring, "requires", lambda name: asked)
    found = {one.what: one for one in examine().findings}
    assert found["no-such-package"].state == "wrong"
    assert found["extra hub"].state == "missing"
    assert "an audit" not in found
    assert not Examined(tuple(found.values())).well


def test_an_audit_that_gets_the_wrong_answer_is_no_health(monkeypatch, capsys):
    from seepage import api

    class Wrong:
        def scores(self, name):
            return {"exact": 0.0}

    monkeypatch.setattr(api, "audit", lambda **settings: Wrong())
    assert doctoring._small_audit() == Finding(
        "an audit", "wrong", "ran, but recovered 0.0 of an example that must come out exactly"
    )
    monkeypatch.setattr(doctoring, "examine", lambda: Examined((doctoring._small_audit(),)))
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    assert end.value.code == 2
