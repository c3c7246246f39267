"""What is run: workloads, built-in ones and the user's."""

from rung.workload.base import Batch, Workload, call_model, of_rank, seeded_model, shapes
from rung.workload.load import load

__all__ = ["Batch", "Workload", "call_model", "load", "of_rank", "seeded_model", "shapes"]
