"""A sample of the clients: only they are played, and the sentence about the others holds its interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from seepage.core.errors import SpecError
from seepage.engine.run import run_audit
from seepage.engine.spec import parse_spec
from seepage.record import summarise
from seepage.report import verdict

SPEC: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [12]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "seeds": [3],
}


def audited(folder: Path, **protocol: Any) -> Any:
    return run_audit(parse_spec({**SPEC, "protocol": protocol}), out=folder, engine="here")


def test_a_million_clients_by_a_sample_with_clopper_and_pearsons_interval(tmp_path: Path) -> None:
    log = audited(tmp_path, clients=1_000_000, audited=40, batch_size=3)
    cell = next(cell for cell in log.cells if cell.attack.name == "analytic_extraction")
    assert len(cell.examples) == 120 and {e.client for e in cell.examples} == set(range(40))
    hit = len({e.client for e in cell.examples if e.scores["exact"] == 1.0})
    assert 0 < hit < 40
    ends = binomtest(hit, 40).proportion_ci(0.95, method="exact")
    ruling = verdict(log, summarise(log))
    assert (
        f"40 of 1,000,000 clients were looked at, drawn at random: {hit} of 40 gave away an image exactly, "
        f"so that with 95 % confidence {100 * ends.low:.1f} % to {100 * ends.high:.1f} % of all clients do "
        "under these attacks." in ruling.details
    )
    assert "from the updates of 40 of 1000000 clients" in ruling.headline


def test_where_nothing_is_hit_the_others_may_still_be(tmp_path: Path) -> None:
    noise = [{"name": "gaussian_noise", "sigma": 1.0}]
    spec = {**SPEC, "defenses": noise, "adaptive": False, "protocol": {"clients": 500, "audited": 60}}
    log = run_audit(parse_spec({**spec, "protocol": {**spec["protocol"], "batch_size": 1}}), out=tmp_path)
    (said,) = [one for one in verdict(log, summarise(log)).details if "drawn at random" in one]
    high = binomtest(0, 60).proportion_ci(0.95, method="exact").high
    assert (
        f"0 of 60 gave away an image exactly, so that with 95 % confidence 0 % to {100 * high:.1f} %" in said
    )


def test_all_clients_are_no_sample(tmp_path: Path) -> None:
    log = audited(tmp_path, clients=3, audited=3, batch_size=1)
    assert not any("drawn at random" in one for one in verdict(log, summarise(log)).details)


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ({"clients": 4, "audited": 5}, "audited is 5, but there are only 4 clients"),
        ({"clients": 9, "audited": 5, "rounds": 2}, "later models come from all clients"),
        ({"clients": 9, "audited": 5, "attacked": 2}, "attacked takes the longest updates"),
        (
            {"clients": 9, "audited": 5, "aggregation": "secure_sum"},
            "an aggregate that all clients are behind",
        ),
    ],
)
def test_what_cannot_be_sampled(protocol: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said):
        audited(tmp_path, **protocol)
