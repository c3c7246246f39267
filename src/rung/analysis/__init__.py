"""What a trace means: one question a file, tables in, tables out. Prints nothing, plots nothing."""

from rung.analysis.breakdown import Breakdown, breakdown
from rung.analysis.categories import classify_kernel, classify_op
from rung.analysis.timeline import timeline

__all__ = ["Breakdown", "breakdown", "classify_kernel", "classify_op", "timeline"]
