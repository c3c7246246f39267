"""What hardware counters say of each kernel: derived figures, a roofline, a verdict (docs/internals/counters.md)."""

from rung.analysis.counters.metrics import counters, dispatch_counters, formulas
from rung.analysis.counters.roofline import counter_roofline

__all__ = ["counter_roofline", "counters", "dispatch_counters", "formulas"]
