"""How much may be loaded side by side: compiling at once saves minutes on a GPU whose machine has cores and memory to spare.

On a CPU the device is what compiles, so there it is one at a time.
"""

from __future__ import annotations

import os
from dataclasses import replace

from rung.ladder.climb.state import State
from rung.ladder.side import Setup

MOST = 3  # pairs at once
CONTEXT_BYTES = 2 << 30  # of a process on a GPU: its context, its libraries' workspaces
USABLE = 0.95  # of the memory, for others may use the GPU, too
UNSEEN = 1.3  # times what the best so far takes, for a step whose peak is not known


def beside_the_best(state: State) -> Setup:
    """For pairs of the best so far and a candidate that was not run before."""
    best = state.peak
    return _setup(state, [best, UNSEEN * best])


def beside_the_baseline(state: State, larger: float = 1.0) -> Setup:
    """For pairs of the untouched workload and of the best so far, both of which were run; larger: times the inputs that they
    were run on."""
    return _setup(state, [larger * peak for peak in (max(state.baseline["memory"].values()), state.peak)])


def of_verifying(state: State) -> Setup:
    """For workers that each hold a float64 reference and the untouched workload beside a candidate."""
    return _setup(state, [2 * UNSEEN * max(state.baseline["memory"].values())])


def _setup(state: State, peaks: list[float]) -> Setup:
    """peaks: bytes that the steps loaded side by side take, each in a process."""
    if not state.facts["gpu"]:
        return state.setup
    each = sum(peaks) + CONTEXT_BYTES * len(peaks)
    return replace(
        state.setup, together=int(max(1, min(MOST, USABLE * state.gpu_bytes // each, (os.cpu_count() or 1) // 4)))
    )
