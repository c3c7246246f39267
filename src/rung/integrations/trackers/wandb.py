"""A climb as a run of Weights & Biases, in the project of WANDB_PROJECT. WANDB_MODE=offline keeps it on this machine."""

from __future__ import annotations

import os
import re

from rung.errors import UsageError
from rung.integrations.trackers import Tracked

try:
    import wandb
except ImportError:
    raise UsageError("--log-to wandb needs Weights & Biases: pip install wandb.") from None


def log(climb: Tracked) -> str:
    project = os.environ.get("WANDB_PROJECT", "rung")
    with wandb.init(project=project, name=climb.name, job_type="climb", config=climb.parameters) as run:
        for series in climb.series:
            run.define_metric(series.name, step_metric=series.by)
            for step, value in series.points:
                run.log({series.by: step, series.name: value})
        run.log({"attempts": wandb.Table(columns=list(climb.heads), data=[list(row) for row in climb.table])})
        run.summary.update(climb.metrics)
        files = wandb.Artifact(re.sub(r"[^\w.-]", "-", climb.name)[:100], type="climb")
        for path, name in climb.files:
            files.add_file(str(path), name=name)
        run.log_artifact(files)
        return f"`wandb sync {os.path.dirname(run.dir)}` sends it" if run.offline else str(run.url)
