"""A small audit of real code, to be sent."""

from __future__ import annotations

import pytest
import torch

import seepage


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> seepage.AuditResult:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10)
    )
    return seepage.audit(
        model=net,
        data="digits",
        attacks=["analytic_extraction"],
        batch_size=1,
        seeds=2,
        out=tmp_path_factory.mktemp("run"),
        on_plan=lambda header: None,
    )
