"""What deciding a rung takes, in seconds: a guess before anything was tried, the pace of the last attempt since."""

from __future__ import annotations

import math

from rung.ladder.climb.room import beside_the_best, of_verifying
from rung.ladder.climb.state import State
from rung.ladder.rungs import Rung, plan_of
from rung.ladder.timing.duel import blocks_seconds
from rung.measure import CLIMB

# What a restart takes beside its blocks, to be profiled and looked at: seconds by whether it is on a GPU, and steps. With the blocks,
# one H100 took 3 s for steps of 10 to 30 ms, and 6 s for those of 200.
PROFILING, PROFILED = {True: 1.0, False: 4.0}, 12
VERIFYING = 90  # steps of the baseline, a float64 reference's among them, that verifying at one precision takes as long as, as a guess: 60 to 140 were seen
# Of what preparing takes at first, how much comes again: in restarts that come after, which find compiled code in a cache, and in
# verification at each precision, which compiles for two shapes and finds nothing. Seen on one H100 for compile and capture: 36, 13 and 47 s.
CACHED, ANEW = 0.4, 1.3
KERNELS = 2000  # of a step, for which the rungs' guesses of what preparing takes are
A_PRODUCT = 5  # kernels of a transformer's step for each matrix product: where the step runs on a CPU, which has no kernels to count
LEAST = 0.25  # of such a guess, however few kernels there are


def seconds(state: State, rung: Rung) -> float:
    """What a comparison takes to its first look, and verification, as far as can be told."""
    plan = rung.change(plan_of(state.kept))
    return decided(state, rung.prepares, len(plan.phases(state.facts.get("own_precision", "exact"))))


def decided(state: State, prepares: float, precisions: int) -> float:
    """prepares: the rung's guess of what preparing takes; precisions: at how many it is verified, side by side where there is room."""
    loaded = _loading(state) + VERIFYING * state.baseline["time"]["value"] / 1e9
    verified = (0.0 if state.pace else loaded) + ANEW * preparing(state, prepares)
    return timed(state, prepares) + math.ceil(precisions / of_verifying(state).together) * verified


def timed(state: State, prepares: float) -> float:
    """What it takes without verification, which the budget does not cut off. Restarts for which there is room load and prepare
    at once; they are timed one by one."""
    restarts = CLIMB[0][0]
    rounds = math.ceil(restarts / beside_the_best(state).together)
    loaded = restarts * state.pace or rounds * _loading(state) + restarts * _timing(state)
    return loaded + (1 + CACHED * (rounds - 1)) * preparing(state, prepares)


def preparing(state: State, guess: float) -> float:
    seen = state.breakdown or {}
    kernels = seen.get("kernels") or A_PRODUCT * seen.get("gemms", 0.0) or KERNELS
    return guess * min(1.0, max(LEAST, kernels / KERNELS))


def restart(state: State) -> float:
    """Of one restart: as the last ones took, with verification; before the first, the baseline tells, for both sides of a restart
    load and warm up at once, as it did."""
    return state.pace or _loading(state) + _timing(state)


def _timing(state: State) -> float:
    """Of one restart, a guess before one was seen: the candidate taken to be as fast as the best so far."""
    gpu, step = state.facts["gpu"], state.step_ns
    return blocks_seconds([step, step], gpu) + PROFILING[gpu] + PROFILED * step / 1e9


def _loading(state: State) -> float:
    return float(state.baseline.get("loading_seconds", state.baseline["first_run_seconds"]))
