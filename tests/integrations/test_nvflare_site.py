"""The recorder in the `local/privacy.json` of real sites: FLARE's proof of concept, a process each.

Its simulator reads no privacy.json.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

pytest.importorskip("nvflare")
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import PocEnv, poc_env

import seepage
from seepage.record.exchanges import RecordedFolder

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"
PORTS = (8002, 8003)
"""Of FLARE's server in a proof of concept."""
LONGEST = 300.0
"""Seconds for a job of one round: it takes about 40 on an idle machine, most of them waiting."""


def _taken(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("localhost", port)) == 0


def _truth(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As examples/nvflare/client.py takes its digits."""
    x, y = load_digits(return_X_y=True)
    mine = slice(client * 8, client * 8 + 8)
    return torch.tensor(x[mine] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y[mine])


@pytest.mark.skipif(any(map(_taken, PORTS)), reason="another FLARE server runs on this machine")
def test_real_sites_record_every_job_by_their_own_privacy_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, workspace = tmp_path / "recorded", tmp_path / "poc"
    recorder = {"path": "seepage.integrations.nvflare.RecordExchanges", "args": {"folder": str(recorded)}}
    filtering = {
        "path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
        "args": {"percentile": 10, "gamma": 0.01},
    }
    scope = {
        "name": "site", "task_data_filters": [recorder], "task_result_filters": [filtering, recorder],
    }  # fmt: skip
    written = json.dumps({"scopes": [scope], "default_scope": "site"})
    provision = poc_env.prepare_poc_provision

    def with_privacy(*args: Any, **options: Any) -> Any:
        """A site's owner writes the file after it was set up and before it is started."""
        made = provision(*args, **options)
        for site in workspace.glob("*/prod_00/site-*"):
            (site / "local" / "privacy.json").write_text(written)
        return made

    monkeypatch.setattr(poc_env, "prepare_poc_provision", with_privacy)
    for name, value in {
        "HOME": str(tmp_path), "NVFLARE_POC_WORKSPACE": str(workspace), "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLE), *filter(None, sys.path)]),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import network

    recipe = FedAvgRecipe(
        name="digits", model=network.Network(), min_clients=2, num_rounds=1,
        train_script=str(EXAMPLE / "client.py"), params_transfer_type=TransferType.DIFF,
    )  # fmt: skip
    environment = PocEnv(num_clients=2)
    try:
        recipe.execute(environment).get_result(timeout=LONGEST)
    finally:
        environment.stop()
    infos = [one.info for one in RecordedFolder.open(recorded)]
    assert [(i.client, i.kind, i.filters) for i in infos] == [
        (site, "delta", ("PercentilePrivacy",)) for site in (1, 2)
    ]
    found = seepage.audit(
        recorded={"folder": str(recorded), "examples": 8, "local": {"lr": 0.1, "steps": 1}},
        model=network.Network, data=_truth, attacks="exact_extraction", out=tmp_path / "out", engine="here",
        data_options={"num_classes": 10, "value_range": (0.0, 1.0)}, on_plan=lambda header: None,
    )  # fmt: skip
    assert [len(c.examples) for c in found.cells] == [8] * len(found.cells)
    read = [c for c in found.cells if c.attack.name == "exact_extraction"]
    assert len(read) == 2 and all(e.scores["exact"] == 1.0 for c in read for e in c.examples)
