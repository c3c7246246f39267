"""Whether what a faster candidate reports of itself is what happened: by other clocks, on other inputs, as it was timed."""

from __future__ import annotations

import math

from rung.records.climb import Attempt
from rung.records.compare import Interleaved

MOST_HIDDEN = 0.5  # of a block's time: reading clocks and pipes takes far less
HIDDEN = 0.05  # of a block's time, more than the best's, from which it may be a part of the gain
SLOWER = 1.25  # times as long on new inputs: what data alone does to a step's fastest run is less


def distrusted(record: Attempt | Interleaved, speedup: float) -> str | None:
    """Why a candidate is not believed, as a sentence, or None. record: with `hidden`, the share of the
    time of its blocks that each side's samples leave out, and `witness` (`rung.ladder.candidate.Candidate.witness`)."""
    assert record.hidden
    best, hidden, witness = record.hidden["best"] or 0.0, record.hidden["candidate"] or 0.0, record.witness
    if hidden > MOST_HIDDEN:
        return f"{hidden:.0%} of the time that its blocks took lies outside of the times that it reports: work that is put off, or a clock that was tampered with."
    waited = speedup * (1 - hidden) / (1 - min(best, MOST_HIDDEN))
    if hidden - best > HIDDEN and _lost(speedup, waited):
        return f"it is {speedup:.2f}x as fast by the times that it reports, and {waited:.2f}x by the clock of the process that waited for it, with times outside of those that it reports: work that is put off, or a clock that was tampered with."
    if witness and witness.failures:
        return f"what it gave while it was timed is not what the baseline gives: {witness.failures[0]}."
    new = (witness.unseen if witness else None) or 1.0
    if new > SLOWER and _lost(speedup, speedup / new):
        return f"on inputs that it has not seen before, a step takes {new:.1f} times as long: what it gained is work that was not done again."
    return None


def _lost(claimed: float, left: float) -> bool:
    """Whether less than half of a gain is left."""
    return math.log(max(left, 1e-9)) < 0.5 * math.log(max(claimed, 1.0))
