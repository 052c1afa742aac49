"""Through MLflow itself, into a store on disk, and read back with its client."""

from __future__ import annotations

import pytest

from seepage.cli import main
from seepage.core.errors import SpecError
from seepage.integrations.trackers import export

mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "MLFLOW_ALLOW_FILE_STORE", "true"
    )  # newer versions want a database, which skinny lacks
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    yield
    mlflow.set_tracking_uri(before)


def _runs(name):
    client = mlflow.MlflowClient()
    return client, client.search_runs([client.get_experiment_by_name(name).experiment_id])


def test_figures_settings_and_verdict_arrive_and_no_page(log):
    export(log, "mlflow", project="audits")
    client, (run,) = _runs("audits")
    assert run.data.metrics["analytic_extraction/exact"] == 1.0
    assert run.data.metrics["analytic_extraction/psnr_guess"] < 50
    assert run.data.params["protocol.batch_size"] == "1"
    assert run.data.tags["seepage.outcome"] == "leak_shown"
    assert client.list_artifacts(run.info.run_id) == []


def test_the_page_is_sent_where_it_is_asked_for(log, capsys):
    with pytest.raises(SystemExit) as end:
        main(["export", str(log.folder.path), "--to", "mlflow", "--project", "cli", "--report"])
    assert end.value.code == 0
    assert "Sent to mlflow: cli, run " in capsys.readouterr().out
    client, (run,) = _runs("cli")
    assert [one.path for one in client.list_artifacts(run.info.run_id)] == ["report.html"]


def test_a_refusal_is_a_sentence(log):
    mlflow.set_tracking_uri("nonsense://x")
    with pytest.raises(SpecError, match="MLflow refused it"):
        export(log, "mlflow")
