"""A climb as a run of MLflow, where MLFLOW_TRACKING_URI says, in the experiment of MLFLOW_EXPERIMENT_NAME."""

from __future__ import annotations

import os

from rung.errors import UsageError
from rung.integrations.trackers import Tracked

try:
    import mlflow
except ImportError:
    raise UsageError("--log-to mlflow needs MLflow: pip install mlflow.") from None


def log(climb: Tracked) -> str:
    if not {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & set(os.environ):
        mlflow.set_experiment("rung")
    with mlflow.start_run(run_name=climb.name) as run:
        mlflow.log_params(climb.parameters)
        mlflow.log_metrics(climb.metrics)
        for series in climb.series:
            for step, value in series.points:
                mlflow.log_metric(series.name, value, step=step)
        mlflow.log_text(climb.csv(), "attempts.csv")
        for path, name in climb.files:
            mlflow.log_artifact(str(path), os.path.dirname(name) or None)
    return f"run {run.info.run_id} of {mlflow.get_tracking_uri()}"
