"""Whether a candidate's own report of its times is believed: tamper checks on a candidate that is faster.

They compare what it reports with other clocks, with other inputs, and with its results while it was timed.
"""

from __future__ import annotations

import math

from rung.records.climb import Attempt
from rung.records.compare import Interleaved

MOST_HIDDEN = 0.5  # of a block's time: reading clocks and pipes takes far less
HIDDEN = 0.05  # of a block's time, more than the best's, from which it may be a part of the gain
SLOWER = 1.25  # times as long on new inputs: what data alone does to a step's fastest run is less


def reason_to_distrust(record: Attempt | Interleaved, speedup: float) -> str | None:
    """Why a candidate is not believed, as a sentence, or None. record: with `hidden`, the share of the
    time of its blocks that each side's samples leave out, and `witness` (`rung.ladder.candidate.Candidate.witness`)."""
    assert record.hidden
    best, hidden, witness = record.hidden["best"] or 0.0, record.hidden["candidate"] or 0.0, record.witness
    if hidden > MOST_HIDDEN:
        return f"{hidden:.0%} of the time of its blocks is missing from the times that it reports: it puts work off, a clock was tampered with, or other processes took the cores."
    waited = speedup * (1 - hidden) / (1 - min(best, MOST_HIDDEN))
    if hidden - best > HIDDEN and _mostly_lost(speedup, waited):
        return f"it reports times that make it {speedup:.2f}× as fast, but the process that waited for it measured {waited:.2f}×: it puts work off, a clock was tampered with, or other processes took the cores."
    if witness and witness.failures:
        first = witness.failures[0].removesuffix(" (while it was timed)")  # `rung.verify.timed_run_checks.CASE`
        return f"while it was timed, its results differed from the baseline's: {first}."
    new = (witness.unseen if witness else None) or 1.0
    if new > SLOWER and _mostly_lost(speedup, speedup / new):
        return f"a step takes {new:.1f}× as long on new inputs: it reused earlier results instead of computing them."
    return None


def _mostly_lost(claimed: float, left: float) -> bool:
    """Whether less than half of a gain is left."""
    return math.log(max(left, 1e-9)) < 0.5 * math.log(max(claimed, 1.0))
