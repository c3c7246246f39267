"""Python callables against each other within this process, in alternating blocks, until the answer is clear."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rung.errors import UsageError
from rung.hardware import pick
from rung.measure import (
    ROUNDS,
    SIGNED_RANK,
    Comparison,
    Pair,
    Ranking,
    Restart,
    interleaved,
    judge,
    median_interval,
    rank,
)
from rung.measure.rank import undecide
from rung.measure.timers import shared
from rung.records.compare import ComparedSide, Ranked
from rung.records.compare import Comparison as ComparisonDocument
from rung.records.compare import Ranking as RankingDocument
from rung.records.measured import Compared, Interval, Verification
from rung.records.record import record_of
from rung.timing.ab_run import unexplained
from rung.timing.compare import LETTERS, document, lowered, verdict_of
from rung.timing.function import Function, named
from rung.timing.function_witness import OnInputs
from rung.timing.timed import Opened, TimedBlock, Warmed, loops_in_step

Document = ComparisonDocument | RankingDocument

# A block is short against what disturbs a machine, so that it disturbs all sides alike, and three calls long where
# calls are short, so that its median leaves out the one that another process interrupted.
BLOCK, CALLS = 1.5e6, 3  # ns
PARTS, MOST = 10, 0.8  # of the timing, and the share of them that shows work in lumps
SLOW = 20e6  # ns: a call that takes longer is a block by itself
WARM_SECONDS = 8.0
ONE_PROCESS = (
    "all sides ran in one process, so differences between processes (memory layout, order of loading) are not covered"
)
# Of rung.compare, which takes it for functions without arguments alone: those of `rung compare --inputs` have no way there.
RESTART = "fresh=True restarts every side several times."


def compare_here(
    calls: Mapping[str, Callable[..., object]],
    *,
    margin: float = 0.01,
    seconds: float = 20.0,
    device: str | None = None,
    inputs: Callable[[int], Any] | None = None,
    gradients: bool = False,
) -> Document:
    """Alternates short blocks of the callables until each pair is shown to differ, or to be the same within `margin`
    (a share), or for `seconds` of timing.

    calls: by name. A round (A B B A) gives one log-ratio for each pair, on a CPU of the fastest call in each block; their Hodges-Lehmann estimate and the interval
    of the signed-rank test are the answer. The answer has `unit` "round", and the one process's samples
    as the only restart.

    inputs: makes the arguments of a seed, and it is verified first that all compute what the first does, `gradients` among it
    (`rung.verify.plain_functions`); where one does not, nothing is timed. Afterwards it is asked whether what was timed is what was
    verified (`rung.timing.function_witness`). Without, calls take no arguments.
    """
    if not 2 <= len(calls) <= len(LETTERS):
        raise UsageError(f"a comparison needs 2 to {len(LETTERS)} callables; {len(calls)} were given.")
    began = time.monotonic()
    recorded = {
        letter: ComparedSide(target=name, options={}, rungs=[], env={})
        for letter, name in zip(LETTERS, calls, strict=False)
    }
    verification: Verification | UnsetType = UNSET
    if inputs:
        verification, wrong = _verified(calls, inputs, device, gradients)
        if wrong:
            return document(
                recorded, margin=margin, results_compared=True, verdict="not equal", not_equal=LETTERS[list(calls).index(wrong)],
                verification=verification, seconds=time.monotonic() - began,
            )  # fmt: skip
    given = OnInputs(dict(zip(LETTERS, calls.values(), strict=False)), inputs, pick(device)) if inputs else None
    if given:
        calls = {name: given.of(letter) for letter, name in zip(LETTERS, calls, strict=False)}
    sides = {letter: Function(call, name, device) for letter, (name, call) in zip(LETTERS, calls.items(), strict=False)}
    facts = [record_of(Opened, side.open()) for side in sides.values()]
    warm = {letter: record_of(Warmed, side.warm(min(WARM_SECONDS, seconds))) for letter, side in sides.items()}
    outside: dict[str, float] = {}

    def block(letter: str, count: int) -> list[float]:
        taken = record_of(TimedBlock, sides[letter].block(count))
        outside[letter] = max(outside.get(letter, 0.0), taken.outside)
        return list(taken.samples)

    count = _in_step(list(sides.values()))
    blocks = [partial(block, k, count) for k in sides]
    until = time.monotonic() + seconds
    said: list[Comparison | Ranking] = []

    def more(so_far: Restart) -> bool:
        last = time.monotonic() >= until
        found = _judged(so_far, list(sides), margin, last)
        if found:
            said[:] = [found]
        return not (found and found.final)

    cpu = not any(side.device.is_gpu for side in sides.values())
    # What interrupts a program on a CPU only ever makes it slower: of a block's few calls, which share the machine's
    # state, the fastest is the one that nothing interrupted (Chen and Revels 2016).
    _, samples = interleaved(blocks, 1, more, typical=min if cpu else statistics.median)
    taken = dict(zip(sides, samples, strict=True))
    unseen: list[str] = []
    if given and not isinstance(verification, UnsetType):
        import torch

        letter = why = ""
        try:
            letter, why = given.distrusted(sides, taken)
        except torch.OutOfMemoryError:
            unseen = ["there was no memory to check what the functions returned while they were timed"]
        if why:
            verification = msgspec.structs.replace(verification, passed=False, failures=[why])
            return document(
                recorded, margin=margin, results_compared=True, verdict="not equal", not_equal=letter,
                verification=verification, seconds=time.monotonic() - began,
            )  # fmt: skip
    rounds = said[0].restarts
    slow = _slow_calls(said[0], taken) if cpu else []
    if slow:  # then the typical call is what counts, whatever it does to the interval
        said[:] = [_judged(_by_medians(samples, rounds), list(sides), margin, True) or said[0]]
    against = _against_the_total(said[0], taken)
    if against:
        said[:] = [_undecided(said[0], against)]
    answer = record_of(Compared, said[0]) if len(sides) == 2 else record_of(Ranked, said[0])
    one_process = f"{ONE_PROCESS}." if inputs else f"{ONE_PROCESS}; {RESTART}"
    never = [f"{k}: the step time did not settle during warm-up" for k, w in warm.items() if not w.steady]
    return document(
        recorded,
        answer,
        margin=margin,
        results_compared=inputs is not None,
        verification=verification,
        verdict=verdict_of(answer),
        unit="round",
        times=lowered({k: record_of(Interval, median_interval(v)) for k, v in taken.items()}),
        memory={},
        first_run_seconds=lowered({k: w.first_run_seconds for k, w in warm.items()}),
        restarts=[lowered(taken)],
        warnings=[*never, *unexplained(outside), *slow, *against.values(), *unseen, one_process],
        environment=facts[0].environment,
        differs={},
        seconds=time.monotonic() - began,
    )


def _verified(
    calls: Mapping[str, Callable[..., object]], inputs: Callable[[int], Any], device: str | None, gradients: bool
) -> tuple[Verification, str]:
    from rung.verify.plain_functions import same_results

    found, wrong = same_results(calls, inputs, pick(device), gradients)
    return found.record(), wrong


def _slow_calls(said: Comparison | Ranking, taken: Mapping[str, list[float]]) -> list[str]:
    """Where the medians of all calls tell another story than the uninterrupted ones."""
    found = []
    for pair in _pairs(said):
        ratio = statistics.median(taken[pair.a]) / statistics.median(taken[pair.b])
        slack = 1 + 2 * (said.margin or 0)
        if not pair.speedup.low / slack <= ratio <= pair.speedup.high * slack:
            found.append(
                f"{pair.a} and {pair.b}: one has slow calls that the other does not have, or was interrupted more often; the verdict "
                "uses the medians."
            )
    return found


def _pairs(said: Comparison | Ranking) -> Sequence[Pair]:
    return said.pairs if isinstance(said, Ranking) else [Pair("A", "B", said.answer, said.speedup, said.confidence)]


def _against_the_total(said: Comparison | Ranking, taken: Mapping[str, list[float]]) -> dict[tuple[str, str], str]:
    """By pair, what to say where all calls together take longer of the side whose typical call is faster, by more than the margin: its work
    comes in lumps, such as that of many calls in one. A call that was interrupted is no lump: most parts of the timing have to show it."""
    found = {}
    for pair in _pairs(said):
        if pair.answer not in ("faster", "slower"):
            continue
        fast, slow = (pair.b, pair.a) if pair.answer == "faster" else (pair.a, pair.b)
        parts = min(PARTS, said.restarts)
        longer = statistics.fmean(taken[fast]) / statistics.fmean(taken[slow])
        totals = [[sum(part) for part in _parts(taken[side], said.restarts, parts)] for side in (fast, slow)]
        shown = sum(one > other for one, other in zip(*totals, strict=True))
        if longer > 1 + (said.margin or 0) and shown >= MOST * parts:
            found[pair.a, pair.b] = (
                f"a typical call of {fast} is faster than one of {slow}, but all its calls together take {longer:.3g}× as long: its work "
                "comes in lumps. Compare a function that makes many calls."
            )
    return found


def _parts(samples: Sequence[float], rounds: int, parts: int) -> list[Sequence[float]]:
    """The samples of a side in so many parts of whole rounds."""
    a_round = len(samples) // rounds
    edges = [k * rounds // parts * a_round for k in range(parts + 1)]
    return [samples[begin:end] for begin, end in itertools.pairwise(edges)]


def _undecided(said: Comparison | Ranking, pairs: Mapping[tuple[str, str], str]) -> Comparison | Ranking:
    return undecide(said, pairs.keys()) if isinstance(said, Ranking) else replace(said, answer="undecided")


def _by_medians(samples: Sequence[list[float]], rounds: int) -> Restart:
    """The rounds again, with the median of each block instead of its fastest call."""
    visits = []
    for side in samples:
        block = len(side) // (2 * rounds)
        visits.append([statistics.median(side[k * block : (k + 1) * block]) for k in range(2 * rounds)])
    return Restart(
        tuple((*(v[2 * r] for v in visits), *(v[2 * r + 1] for v in reversed(visits))) for r in range(rounds))
    )


def _in_step(sides: Sequence[Function]) -> int:
    """How many calls a block of each side has. The fastest of more samples is faster, and the mean of fewer calls scatters
    more, whatever is called: so blocks have as many calls, and samples of sides of about one speed do, too."""
    estimates = (
        _on_one_timer(sides) if all(side.device.is_gpu for side in sides) else [side.estimate() for side in sides]
    )
    loops = loops_in_step(estimates, [side.loops for side in sides])
    for side in sides:
        side.loops = loops or side.loops
    return _calls_a_block(max(estimates))


def _on_one_timer(sides: Sequence[Function]) -> list[float]:
    """Chooses the timer of all, and gives nanoseconds of a sample of each: a kernel may be far shorter than what the host's clock sees of it."""
    chosen = [side.timer("auto", False) for side in sides]
    name = shared(timer["name"] for timer in chosen)
    chosen = [
        timer if timer["name"] == name else side.timer(name, False) for side, timer in zip(sides, chosen, strict=True)
    ]
    return [timer["sample_ns"] for timer in chosen]


def _calls_a_block(estimate: float) -> int:
    return 1 if estimate > SLOW else max(CALLS, round(BLOCK / max(estimate, 1)))


def _judged(so_far: Restart, names: list[str], margin: float, last: bool) -> Comparison | Ranking | None:
    pairs = itertools.combinations(enumerate(names), 2)
    ratios = {(a, b): so_far.log_ratios(i, j) for (i, a), (j, b) in pairs}
    if len(names) == 2:
        return judge(ratios["A", "B"], looks=ROUNDS, margin=margin, last=last, method=SIGNED_RANK)
    return rank(ratios, looks=ROUNDS, margin=margin, last=last, method=SIGNED_RANK)


def by_name(calls: tuple[Callable[[], object], ...]) -> dict[str, Callable[[], object]]:
    """Names for callables that have none of their own to tell them apart."""
    found: dict[str, Callable[[], object]] = {}
    for call in calls:
        name = named(call)
        k = 1 + sum(n == name or n.startswith(f"{name} #") for n in found)
        found[name if k == 1 else f"{name} #{k}"] = call
    return found
