"""Defenses that change the protocol: the same as writing the change by hand, and refused with a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import seepage
from seepage.core.errors import SpecError
from seepage.defenses import DEFENSES, MeasureEntry
from seepage.engine.measures import with_measures
from seepage.engine.points import Points
from seepage.engine.run import run_grid
from seepage.engine.spec import parse_spec
from seepage.engine.study import parse_study
from seepage.record import AuditLog
from seepage.report.study import StudyResult, advise, print_study

BASE: dict[str, Any] = {"model": {"name": "mlp", "hidden": [64]}, "data": "digits"}


def audit(folder: Path, **settings: Any) -> AuditLog:
    wanted = {"attacks": ["analytic_extraction"], "seeds": [0], "device": "cpu", **settings}
    return seepage.audit(**BASE, **wanted, out=folder)


@pytest.mark.parametrize(
    ("measure", "by_hand"),
    [
        ({"name": "larger_batches", "factor": 3}, {"batch_size": 12}),
        (
            {"name": "local_averaging", "batches": 2, "epochs": 3},
            {"batch_size": 8, "local_batch_size": 4, "local_epochs": 3, "algorithm": "fedavg"},
        ),
        ({"name": "secure_sum", "clients": 3}, {"batch_size": 4, "clients": 3, "aggregation": "secure_sum"}),
        (
            {"name": "median", "clients": 3},
            {
                "batch_size": 4,
                "clients": 3,
                "aggregation": "median",
                "threat": {"base": "honest_but_curious", "deny": ["individual_updates", "target_client"]},
            },
        ),
        (
            {"name": "same_model"},
            {"batch_size": 4, "threat": {"base": "honest_but_curious", "deny": ["different_models"]}},
        ),
    ],
    ids=lambda value: value.get("name", ""),
)
def test_a_measure_is_the_protocol_written_by_hand(
    tmp_path: Path, measure: dict[str, Any], by_hand: dict[str, Any]
) -> None:
    named = audit(tmp_path / "named", batch_size=4, defenses=[measure])
    written = audit(tmp_path / "written", **by_hand)
    own = {"cost": None, "run_key": "", "made_by": {}, "files": {}}  # of a run, not of its figures
    mine, theirs = ([c.model_copy(update=own) for c in log.cells] for log in (named, written))
    assert mine == theirs and any(cell.status == "done" for cell in mine)
    assert named.header.spec["protocol"] == written.header.spec["protocol"]
    assert named.header.threat.server_sees == written.header.threat.server_sees
    assert [one.runs_at for one in named.header.defenses] == ["protocol"]


def test_measures_act_one_after_the_other() -> None:
    spec = parse_spec({**BASE, "protocol": {"batch_size": 5}, "defenses": ["larger_batches", "secure_sum"]})
    assert with_measures(spec).protocol.batch_size == 20
    assert with_measures(spec).protocol.clients == 4
    assert spec.protocol.batch_size == 5


def test_a_median_shows_the_server_less_than_a_mean_it_takes_itself(tmp_path: Path) -> None:
    hidden = audit(tmp_path / "a", batch_size=4, defenses=["median"])
    shown = audit(tmp_path / "b", batch_size=4, clients=4, aggregation="median")
    assert hidden.header.threat.server_sees == "only the median over 4 client(s)"
    assert shown.header.threat.server_sees == "each client's update"
    assert hidden.scores("analytic_extraction")["exact"] < shown.scores("analytic_extraction")["exact"]


@pytest.mark.parametrize(
    ("defense", "said"),
    [
        ({"name": "larger_batches", "factor": 1}, "factor must be a whole number of at least 2"),
        ({"name": "larger_batches", "factor": 2.5}, "factor must be a whole number"),
        ({"name": "median", "clients": 2}, "clients must be a whole number of at least 3"),
        ({"name": "secure_sum", "client": 4}, "did you mean 'clients'"),
        ({"name": "secure_sum", "fakes": -1}, "does not fit the protocol: 'fakes' is wrong"),
        ({"name": "secure_sum", "fakes": 3}, "adds no fakes"),
        ({"name": "secure_sum", "minimum_honest": 5}, "only 4 take part"),
        ({"name": "local_averaging", "epochs": 0}, "epochs must be a whole number of at least 1"),
    ],
)
def test_bad_settings_are_one_sentence(tmp_path: Path, defense: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        audit(tmp_path / "run", batch_size=4, defenses=[defense])


def test_every_measure_says_what_it_is() -> None:
    measures = [entry for entry in DEFENSES.values() if isinstance(entry, MeasureEntry)]
    assert len(measures) == 5
    for entry in measures:
        assert entry.runs_at == "protocol" and entry.guarantee == "heuristic"
        assert entry.trusts and entry.adaptive.endswith(".")


STUDY: dict[str, Any] = {
    **BASE,
    "attacks": ["analytic_extraction", {"name": "trap_weights", "clients": [0]}],
    "threat": "malicious_server",
    "seeds": [0],
    "protocol": {"batch_size": 4, "lr": 0.1},
    "defenses": [
        {"name": "larger_batches", "factor": 4},
        {"name": "secure_sum", "clients": 3},
        {"name": "secure_sum", "clients": 3, "inside": ["clipping"]},
    ],
    "training": {"rounds": 2, "clients": 3, "examples": 16, "test_examples": 100},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    out = tmp_path_factory.mktemp("study") / "a"
    return StudyResult.of(run_grid(parse_study(STUDY).grid(), out=out, jobs=1))


def test_a_study_has_measures_as_points(study: StudyResult) -> None:
    none, larger, secure, both = study.rows
    assert study.missing == 0 and all(row.accuracy is not None for row in study.rows)
    assert [leak.examples for leak in (none.leaks[0], larger.leaks[0], secure.leaks[0])] == [4, 16, 12]
    # To a mean over equally many examples it does not matter who holds them and who adds them up.
    assert secure.accuracy == none.accuracy
    assert both.point.title == "secure_sum(clients=3) over clipping"


def test_an_attack_that_a_measure_blinds_took_nothing_and_says_why(study: StudyResult) -> None:
    trap = study.rows[2].leaks[1]
    assert trap.status == "not_applicable" and trap.leakage is not None and trap.leakage.value == 0.0
    assert "target_client, which aggregation = 'secure_sum' hides" in trap.reason
    assert study.rows[0].leaks[1].status == "done"


def test_the_advice_knows_that_the_server_knows_its_protocol(
    study: StudyResult, capsys: pytest.CaptureFixture[str]
) -> None:
    said = " ".join(advise(study).caveats)
    assert "larger_batches is heuristic, and the attacks here do not know" not in said
    assert "the same number of rounds as the others" in said
    print_study(study)
    assert "larger_batches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("defense", "said"),
    [
        ({"name": "larger_batches", "factor": 3}, "do not divide into batches of 12"),
        ({"name": "median", "clients": 4}, "training.clients is 3"),
    ],
)
def test_a_measure_that_does_not_fit_the_training_is_refused(defense: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Points(parse_study({**STUDY, "defenses": [defense]}).grid()).check()


def test_only_a_measure_binds_the_training_to_its_clients() -> None:
    """The attacks may see more clients than the short training has."""
    many = {**STUDY, "protocol": {"batch_size": 4, "clients": 6}, "defenses": ["larger_batches"]}
    Points(parse_study(many).grid()).check()
