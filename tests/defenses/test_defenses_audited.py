"""Whole audits on digits: what a defense leaves of passive extraction."""

from __future__ import annotations

from typing import Any

import pytest

import seepage


def exact_share(tmp_path, defenses: list[Any], **settings: Any) -> float:
    """What an attack that does not know of the defense gets."""
    log = seepage.audit(
        model="mlp",
        data="digits",
        batch_size=4,
        seeds=[0],
        attacks=["analytic_extraction"],
        defenses=defenses,
        out=tmp_path / "run",
        **settings,
    )
    assert {cell.status for cell in log.cells} == {"done"}
    return log.scores("analytic_extraction")["exact"]


@pytest.mark.parametrize(
    "defenses",
    [
        [],
        [{"name": "clipping", "norm": 0.01}],
        [{"name": "central_dp", "norm": 0.01, "sigma": 100.0}],
        [{"name": "dp_sgd", "clip": 0.01, "sigma": 0.0}],
    ],
    ids=["none", "clipping", "dishonest central DP", "per-example clipping"],
)
def test_clipping_alone_leaves_extraction_exact(tmp_path, defenses) -> None:
    assert exact_share(tmp_path, defenses) == 1.0


@pytest.mark.parametrize(
    "defenses",
    [
        [{"name": "dp_sgd", "clip": 1.0, "sigma": 1.0}],
        [{"name": "central_dp", "server_honest": True}],
        ["gaussian_noise", "clipping"],
        [{"name": "sign"}],
        [{"name": "hide_bias"}],
        [{"name": "share_layers"}],
    ],
    ids=[
        "local DP",
        "honest central DP",
        "noise outside clipping",
        "sign",
        "hidden bias",
        "first layer kept",
    ],
)
def test_these_leave_no_exact_example(tmp_path, defenses) -> None:
    assert exact_share(tmp_path, defenses) == 0.0
