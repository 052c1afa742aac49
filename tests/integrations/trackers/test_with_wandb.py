"""Through Weights & Biases itself, offline."""

from __future__ import annotations

import pytest

from seepage.integrations.trackers import export

wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed")


def test_figures_settings_and_verdict_are_written(log, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    kept = {}
    finish = wandb.sdk.wandb_run.Run.finish

    def keep(self, *args, **kwargs):
        kept.update(summary=dict(self.summary), config=dict(self.config), project=self.project)
        finish(self, *args, **kwargs)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "finish", keep)
    export(log, "wandb", project="audits")
    assert kept["project"] == "audits"
    assert kept["summary"]["analytic_extraction/exact"] == 1.0
    assert kept["summary"]["seepage.outcome"] == "leak_shown"
    assert kept["config"]["protocol.batch_size"] == "1"
    (file,) = tmp_path.rglob("*.wandb")
    assert file.stat().st_size > 0
