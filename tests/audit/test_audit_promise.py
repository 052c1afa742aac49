"""Epsilon in logs and reports, and the settings of secure aggregation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import seepage
from seepage.auditor.prepare import prepare
from seepage.auditor.promise import defense_records
from seepage.auditor.spec import parse_spec
from seepage.defenses import epsilon
from seepage.errors import SpecError
from seepage.log import AuditLog
from seepage.report import render_html, to_json

SMALL: dict[str, Any] = {"model": {"name": "mlp", "hidden": [60]}, "data": "digits", "seeds": [0]}


def records(defenses: list[Any], rounds: int | None = None, **protocol: Any) -> Any:
    spec = parse_spec({**SMALL, "defenses": defenses, "protocol": {"batch_size": 4, **protocol}})
    return defense_records(spec, prepare(spec).local, rounds=rounds)


def test_epsilon_counts_what_uses_the_same_example() -> None:
    dp = [{"name": "dp_sgd", "sigma": 2.0}]
    assert records(dp)[0].epsilon == epsilon(sigma=2.0, delta=1e-5, steps=1)
    assert records(dp, rounds=5)[0].epsilon == epsilon(sigma=2.0, delta=1e-5, steps=5)
    assert records(dp, fresh_batches=True)[0].steps == 1
    epochs = {"algorithm": "fedavg", "local_batch_size": 2, "local_epochs": 3}
    assert records(dp, rounds=2, **epochs)[0].steps == 6


def test_fresh_batches_take_turns_but_a_client_is_in_every_round() -> None:
    turns = {"fresh_batches": True}
    spec = parse_spec(
        {
            **SMALL,
            "threat": "honest_but_curious_aggregate",
            "defenses": [{"name": "central_dp", "server_honest": True}, "dp_sgd"],
            "protocol": {"batch_size": 4, "rounds": 4, "clients": 2, "aggregation": "mean", **turns},
        }
    )
    client, example = defense_records(spec, prepare(spec).local)
    assert (client.steps, client.protects) == (4, "one client")
    assert (example.steps, example.protects) == (1, "one example")


def test_what_promises_nothing_has_no_epsilon() -> None:
    for defense in ("clipping", {"name": "dp_sgd", "sigma": 0.0}, {"name": "central_dp"}):
        (one,) = records([defense])
        assert (one.epsilon, one.guarantee, one.promise) == (None, "heuristic", "")


def test_logs_and_reports_state_epsilon_with_its_accountant(tmp_path: Path) -> None:
    log = seepage.audit(
        **{**SMALL, "model": "mlp"},
        batch_size=4,
        attacks=["analytic_extraction"],
        defenses=[{"name": "dp_sgd", "sigma": 2.0}],
        delta=1e-6,
        out=tmp_path,
    )
    (one,) = AuditLog.read(tmp_path).header.defenses
    assert one.epsilon == epsilon(sigma=2.0, delta=1e-6)
    page = render_html(log)
    for said in ("δ = 1e-06", "1 release at sampling rate 1", "Balle &amp; Wang 2018", "formal (DP)"):
        assert said in page
    assert to_json(log)["audit"]["defenses"][0]["sampling_rate"] == 1.0
    assert any("after what this attack saw: ε" in note for cell in log.cells for note in cell.notes)


def audit_sum(tmp_path: Path, **protocol: Any) -> Any:
    return seepage.audit(
        **SMALL,
        attacks=["analytic_extraction"],
        threat="malicious_server_secure_aggregation",
        batch_size=1,
        aggregation="secure_sum",
        clients=6,
        out=tmp_path / str(sorted(protocol.items())),
        **protocol,
    )


def test_fakes_undo_a_secure_sum_and_honest_contributors_put_it_back(tmp_path: Path) -> None:
    """One example a client: alone it is read exactly, whatever is added to it; six together are not."""
    summed = audit_sum(tmp_path)
    single = audit_sum(tmp_path, fakes=5)
    guarded = audit_sum(tmp_path, fakes=5, minimum_honest=6)
    exact = [log.scores("analytic_extraction")["exact"] for log in (summed, single, guarded)]
    assert exact[1] == 1.0 and exact[0] < 1.0 and exact[2] == exact[0]
    assert "5 all-zero fake(s)" in single.header.threat.server_sees
    assert "one at a time" not in render_html(summed)
    assert "secure sums of 1 client at a time, filled up with fakes" in render_html(single)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"protocol": {"fakes": 2}}, "belong to aggregation = 'secure_sum'"),
        ({"protocol": {"minimum_honest": 2}}, "belong to aggregation = 'secure_sum'"),
        ({"protocol": {"aggregation": "secure_sum", "fakes": 2}}, "adds no fakes"),
        (
            {"protocol": {"aggregation": "secure_sum", "clients": 2, "minimum_honest": 3}},
            "nobody would ever send",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        prepare(parse_spec({**SMALL, **change}))


def test_sums_of_groups_are_what_their_members_sent() -> None:
    from seepage.federation.aggregation import aggregate
    from seepage.federation.secure import groups_with_fakes, without_fakes
    from seepage.types import Update, UpdateKind

    sent = [
        Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.randn(3)}, num_examples=n) for n in (1, 2, 5, 4)
    ]
    for group in groups_with_fakes(range(4), 2):
        members = [sent[c] for c in group]
        seen, true = without_fakes(members, fakes=7, minimum_honest=2), aggregate(members, "mean")
        assert torch.allclose(seen.tensors["w"], true.tensors["w"], atol=1e-6)
        assert seen.num_examples == true.num_examples
    uncounted = [Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.ones(1)}) for _ in range(2)]
    assert without_fakes(uncounted, fakes=3).tensors["w"].item() == pytest.approx(1.0)
