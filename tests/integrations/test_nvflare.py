"""The recorder in FLARE's own filter chains: those of a job, and those of a site's privacy.json."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.workspace import Workspace
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.filters import PercentilePrivacy
from nvflare.private.fed.app.fl_conf import create_privacy_manager

from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.integrations.nvflare import GateUpdates, RecordExchanges
from seepage.protocol import client
from seepage.record.exchanges import RecordedFolder

RECEIVED = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(2, dtype=np.float32)}
SENT = {"weight": np.full((2, 3), 0.005, dtype=np.float32), "bias": np.array([0.5, 0.001], dtype=np.float32)}


def _context(site: str) -> FLContext:
    context = FLContext()
    context.set_prop(ReservedKey.IDENTITY_NAME, site, private=False, sticky=False)
    return context


def _shareable(kind: str, arrays: dict[str, np.ndarray], number: int = 3) -> Shareable:
    shareable = DXO(data_kind=kind, data={n: a.copy() for n, a in arrays.items()}).to_shareable()
    shareable.set_header(AppConstants.CURRENT_ROUND, number)
    return shareable


def _read(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], object]:
    (recorded,) = RecordedFolder.open(folder)
    return recorded.tensors("model"), recorded.tensors("update"), recorded.info


def test_a_jobs_recorder_writes_what_the_filters_before_it_leave(tmp_path: Path) -> None:
    recorder, context = RecordExchanges(folder=str(tmp_path / "r")), _context("site-7")
    context.set_prop(
        FLContextKey.TASK_DATA, _shareable(DataKind.WEIGHTS, RECEIVED), private=True, sticky=False
    )
    recorder.handle_event(EventType.BEFORE_TASK_EXECUTION, context)
    filters = {"train/out": [PercentilePrivacy(percentile=0, gamma=0.01), recorder]}
    sent = _shareable(DataKind.WEIGHT_DIFF, SENT)
    apply_filters("task_result_filters", sent, context, filters, "train", "out")
    model, update, info = _read(tmp_path / "r")
    assert np.array_equal(model["weight"].numpy(), RECEIVED["weight"])
    assert update["bias"].tolist() == pytest.approx([0.01, 0.001])
    assert (info.kind, info.round, info.client, info.filters) == ("delta", 3, 7, ("PercentilePrivacy",))


def test_a_sites_privacy_json_records_every_job(tmp_path: Path) -> None:
    for folder in ("local", "startup"):
        (tmp_path / folder).mkdir()
    recorder = {
        "path": "seepage.integrations.nvflare.RecordExchanges",
        "args": {"folder": str(tmp_path / "r"), "client": 5},
    }
    scope = {"name": "site", "task_data_filters": [recorder], "task_result_filters": [recorder]}
    written = json.dumps({"scopes": [scope], "default_scope": "site"})
    (tmp_path / "local" / "privacy.json").write_text(written)
    context = _context("london")
    manager = create_privacy_manager(Workspace(str(tmp_path)), names_only=False)
    context.set_prop(FLContextKey.SCOPE_OBJECT, manager.get_scope(None), private=True, sticky=False)
    received = _shareable(DataKind.WEIGHTS, RECEIVED)
    apply_filters("task_data_filters", received, context, {}, "train", "in")
    sent = _shareable(DataKind.WEIGHTS, {n: RECEIVED[n] + SENT[n] for n in SENT})
    after = apply_filters("task_result_filters", sent, context, {}, "train", "out")
    _, update, info = _read(tmp_path / "r")
    assert (info.kind, info.client, info.source) == ("weights", 5, "FLARE site london")
    assert np.array_equal(update["weight"].numpy(), RECEIVED["weight"] + SENT["weight"])
    assert after is sent or after == sent  # nothing was changed on the way


def test_without_the_received_model_nothing_is_written_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = RecordExchanges(folder=str(tmp_path / "r"))
    recorder.process(_shareable(DataKind.WEIGHT_DIFF, SENT), _context("a-new-site"))
    assert not (tmp_path / "r").exists()
    assert "task_data_filters too" in caplog.text


@pytest.mark.parametrize("kind", [DataKind.WEIGHT_DIFF, DataKind.WEIGHTS])
def test_a_gate_sends_no_change_where_examples_would_leak(kind: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(9, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))
    batch = Batch(torch.rand(3, 9), torch.arange(3))
    received = {n: t.detach().numpy().copy() for n, t in net.state_dict().items()}
    change = client(LocalTraining())(Broadcast(net), batch).tensors
    step = {n: -0.1 * change[n].numpy() for n in received}
    sent = step if kind == DataKind.WEIGHT_DIFF else {n: received[n] + step[n] for n in received}
    nothing = {n: 0 * a for n, a in received.items()} if kind == DataKind.WEIGHT_DIFF else received
    local = LocalTraining(algorithm="fedavg", lr=0.1)
    for threshold, expected in ((0.0, nothing), (1.0, sent)):
        gate = GateUpdates(net, lambda: batch, local=local, budget=0.05, threshold=threshold)
        context = _context("site-9")
        context.set_prop(
            FLContextKey.TASK_DATA, _shareable(DataKind.WEIGHTS, received), private=True, sticky=False
        )
        gate.handle_event(EventType.BEFORE_TASK_EXECUTION, context)
        left = apply_filters(
            "task_result_filters", _shareable(kind, sent), context, {"train/out": [gate]}, "train", "out"
        )
        arrays = from_shareable(left).data
        assert all(np.allclose(arrays[n], expected[n], atol=1e-6) for n in received)
    assert all("exposed" in line or "withheld" in line for line in gate.keeper.log)
