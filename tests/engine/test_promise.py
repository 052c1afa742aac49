"""Epsilon in logs and reports, and the settings of secure aggregation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import seepage
from seepage.core.errors import SpecError
from seepage.core.types import LocalTraining
from seepage.defenses import epsilon
from seepage.defenses.entry import Schedule
from seepage.engine.prepare import prepare
from seepage.engine.promise import broken_promise, defense_records, mechanism
from seepage.engine.spec import parse_spec
from seepage.record import AuditLog
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
    from seepage.core.types import Update, UpdateKind
    from seepage.protocol.aggregation import aggregate
    from seepage.protocol.secure import groups_with_fakes, without_fakes

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


LOCAL_DP = {"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}


def test_noise_for_the_sensitivity_that_is_there_keeps_its_promise() -> None:
    found = mechanism("flower:LocalDpMod", LOCAL_DP, local=LocalTraining(), planned=Schedule(batch_size=8))
    assert found is not None
    # sqrt(2 ln(1.25 / delta)) / epsilon, over a clipping norm of 1
    assert found.sigma == pytest.approx(4.8448, abs=1e-4)
    assert broken_promise("flower:LocalDpMod", LOCAL_DP) == ""


def test_a_sensitivity_below_the_clipping_norm_is_a_broken_promise() -> None:
    said = broken_promise("flower:LocalDpMod", {**LOCAL_DP, "sensitivity": 1e-4})
    # 1 / (2 s^2) leads where s = 4.84e-4: more than 2 million
    assert "sensitivity of 0.0001, but a clipped update can move by 1" in said
    assert "ε = 21" in said
    assert "proven up to epsilon = 1" in broken_promise("flower:LocalDpMod", {**LOCAL_DP, "epsilon": 20.0})


def test_the_budget_of_a_sparse_vector_does_not_pay_for_what_is_released() -> None:
    stock = {"fraction": 0.1, "epsilon": 0.1, "noise_var": 0.1, "epsilon_release": None}
    assert "10 more for every 1,000 weights" in broken_promise("nvflare:SVTPrivacy", stock)
    assert broken_promise("nvflare:SVTPrivacy", {**stock, "epsilon_release": 1.0}) == ""


def test_a_broken_promise_stands_in_the_record() -> None:
    wanted = {"name": "flower:LocalDpMod", **LOCAL_DP, "sensitivity": 1e-4}
    spec = parse_spec({"model": "mlp", "data": "digits", "defenses": [wanted]})
    pytest.importorskip("flwr")
    (record,) = defense_records(spec, LocalTraining(algorithm="fedavg"))
    assert record.formal
    assert "broken promise: epsilon = 1 was asked for" in record.promise
