"""MLflow: one run in an experiment, wherever MLFLOW_TRACKING_URI says."""

from __future__ import annotations

from seepage.core.errors import SpecError
from seepage.integrations.trackers.tracked import Tracked

MOST = 100
"""Settings in one call: the limit of MLflow's servers."""


def to_mlflow(told: Tracked, project: str) -> str:
    """Returns the id of the run."""
    try:
        import mlflow
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise SpecError("MLflow is not installed: pip install 'seepage[mlflow]'.") from None
    try:
        mlflow.set_experiment(project)
        with mlflow.start_run(run_name=told.title) as run:
            names = list(told.settings)
            for start in range(0, len(names), MOST):
                mlflow.log_params({name: told.settings[name] for name in names[start : start + MOST]})
            mlflow.log_metrics(told.figures)
            mlflow.set_tags(told.tags)
            if told.page is not None:
                mlflow.log_artifact(str(told.page))
    except MlflowException as error:
        raise SpecError(f"MLflow refused it: {str(error).splitlines()[0]}") from None
    return f"{project}, run {run.info.run_id} ({mlflow.get_tracking_uri()})"
