"""How long, and how sure: clocks, warm-up, intervals, comparison."""

from rung.measure.clock import Block, time_block
from rung.measure.compare import CLIMB, COMPARE, FINAL, Comparison, Looks, Restart, decide, until_next_look
from rung.measure.interleave import interleaved
from rung.measure.stats import Interval, median_interval
from rung.measure.steady import MINIMUM_RUNS, steady_from, warm_up

__all__ = [
    "CLIMB", "COMPARE", "FINAL", "MINIMUM_RUNS", "Block", "Comparison", "Interval", "Looks", "Restart", "decide", "interleaved", "median_interval",
    "steady_from", "time_block", "until_next_look", "warm_up",
]  # fmt: skip
