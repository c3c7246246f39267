"""How long, and how sure: clocks, warm-up, intervals, comparison."""

from rung.measure.clock import Block, time_block
from rung.measure.compare import LOOKS, Comparison, Restart, decide, until_next_look
from rung.measure.stats import Interval, median_interval
from rung.measure.steady import MINIMUM_RUNS, steady_from

__all__ = [
    "LOOKS", "MINIMUM_RUNS", "Block", "Comparison", "Interval", "Restart", "decide", "median_interval",
    "steady_from", "time_block", "until_next_look",
]  # fmt: skip
