"""How long, and how sure: clocks, warm-up, intervals, comparison."""

from rung.measure.clock import Block, time_block
from rung.measure.collect import Collected, collect
from rung.measure.compare import (
    CLIMB,
    COMPARE,
    PATIENT,
    ROUNDS,
    Comparison,
    Looks,
    Restart,
    decide,
    judge,
    until_next_look,
)
from rung.measure.interleave import interleaved
from rung.measure.rank import Pair, Ranking, rank
from rung.measure.stats import SIGNED_RANK, STUDENT, Interval, median_interval
from rung.measure.steady import MINIMUM_RUNS, steady_from, warm_up
from rung.measure.tampered import refuse_tampered

__all__ = [
    "CLIMB", "COMPARE", "MINIMUM_RUNS", "PATIENT", "ROUNDS", "SIGNED_RANK", "STUDENT", "Block", "Collected", "Comparison", "Interval", "Looks", "Pair", "Ranking",
    "Restart", "collect", "decide", "interleaved", "judge", "median_interval", "rank", "refuse_tampered", "steady_from", "time_block", "until_next_look", "warm_up",
]  # fmt: skip
