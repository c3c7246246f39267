"""The phrases for a whole climb that the terminal and the page share: what it found, how it stands, what stands out."""

from __future__ import annotations

from collections.abc import Sequence

from rung.measure.core_time import MOST_WAITED
from rung.records.climb import Attempt, Baseline, ClimbRun, Manifest, Mode, Result
from rung.records.measured import Figure
from rung.records.progress import Answered
from rung.records.workload import Facts
from rung.report import attempt_words, units

CLAIMED = 1.08  # times as fast: less is claimed once it was confirmed (ladder/climb/answer.py)
DISTURBED = 1.1  # times as long, of two times of one program that need a word
MEDIANS = "medians of all rounds; the speedup compares neighbouring rounds"
APART = 1.015  # more than rounding: step times whose ratio is so much off the one that was measured side by side need a word
MORE = 1.05  # times the memory: what fresh processes take beside those of the attempts needs a word
_TURNS = "The best so far and the candidate ran in separate worker processes, in alternating blocks."
_RESTARTED = "Both were restarted, so an interval covers drift and the luck of a process as well as noise."
_ONE_RESTART = "Each side ran in one process: an interval covers noise and drift, and not how much one process differs from another."
_ALONE = "The untouched workload was timed and profiled in a worker process of its own. Nothing was compared with it."


def planned(run: ClimbRun) -> tuple[list[Attempt], list[Attempt]]:
    """The rungs of a dry run: those that would be tried, in their order, and those that would not."""
    if run.manifest.status != "planned" or not run.plan:
        return [], []
    rungs = run.plan.rungs
    return [r for r in rungs if not r.verdict], [r for r in rungs if r.verdict]


def measured(run: ClimbRun) -> str:
    """How, as far as anything was: what the attempts' own restarts and checks show."""
    if not any(a.log for a in run.attempts):
        return _ALONE
    timed = [a for a in run.attempts if a.comparison]
    if not timed:
        return "No candidate was timed to the end."
    restarts = max([a.comparison.restarts or 0 for a in timed if a.comparison] + [len(_restarts(run))])
    return " ".join([_TURNS, _RESTARTED if restarts > 1 else _ONE_RESTART, _checked(run, timed)])


def _restarts(run: ClimbRun) -> Sequence[object]:
    return (run.result.restarts if run.result else None) or ()


def _checked(run: ClimbRun, timed: Sequence[Attempt]) -> str:
    """What was compared with a reference, and of how many of the timed attempts."""
    checked = sum(bool(a.verification) for a in timed)
    what = "outputs, loss, gradients and optimizer steps" if run.manifest.workload.mode == "train" else "outputs"
    compared = (
        f"{what} were compared with a reference of higher precision on fresh inputs. The allowed error is a multiple of the "
        "untouched model's own error."
    )
    if run.manifest.facts.draws is True:
        compared += " The forward draws random numbers: results were compared on equal ones, and what a candidate draws by its distribution."
    if checked == len(timed):
        return compared[:1].upper() + compared[1:]
    if checked:
        return f"In {checked} of the {len(timed)} attempts that were timed, {compared} The others were not verified."
    return (
        f"No attempt was verified: {what} were not compared with a reference of higher precision on fresh inputs. At most the "
        "outputs of the timed steps were checked."
    )


def recompilations(facts: Facts) -> list[str]:
    """What is compiled anew, and the guard that failed, a sentence each."""
    return [
        f"{units.clean(r.where)}: it was compiled for {units.clean(r.why) or 'something else'}"
        for r in facts.recompilations or ()
    ]


def provisional(run: ClimbRun) -> bool:
    """Whether the answer is an attempt that was not decided."""
    return any(
        a.log and a.verdict != "kept" and attempt_words.speedup(a) and attempt_words.stands(a, run.result)
        for a in run.attempts
    )


def workload(manifest: Manifest) -> str:
    """Such as "tiny-transformer (train, 8 samples, 2048 tokens, 31.5 M parameters)", with the ranks of a job behind."""
    record = manifest.workload
    facts = [units.one_line(record.mode)]
    for key, n in (("samples", record.samples), ("tokens", record.tokens), ("parameters", record.parameters)):
        if units.number(n) is not None:
            facts.append(f"{units.count(n)} {key if n != 1 else key.removesuffix('s')}")
    facts.append(ranks(manifest))
    title = units.one_line(record.name or manifest.target or "workload")
    known = ", ".join(f for f in facts if f)
    return f"{title} ({known})" if known else title


def ranks(manifest: Manifest) -> str:
    """Such as "4 ranks (ddp)"; empty of one process."""
    facts = manifest.facts
    return f"{facts.ranks} ranks ({units.one_line(facts.parallel)})" if facts.ranks > 1 else ""


def device(manifest: Manifest) -> str:
    record = manifest.environment.device
    return units.clean(record.name or record.kind or "unknown device")


def versions(manifest: Manifest) -> str:
    """Such as "torch 2.13.0, CUDA 13.0"."""
    here = manifest.environment
    labels = (("torch", here.torch), ("ROCm", here.rocm), ("CUDA", here.cuda))
    return ", ".join(f"{label} {units.clean(version)}" for label, version in labels if version)


def stopped(run: ClimbRun) -> str:
    """Why nothing more was tried, and what that left."""
    record = run.result.stopped if run.result else None
    why = units.clean(record.why).rstrip(".") if record else ""
    if not record or not why or record.rule == "budget":  # that is said as the status
        return ""
    left = [units.clean(name) for name in record.left or ()]
    rest = f" Not tried: {attempt_words.some(left)}." if left else ""
    return f"The climb stopped because {why}.{rest}"


def shapes(run: ClimbRun) -> list[str]:
    """What the stack gives on shapes that were not used for the choice."""
    said = []
    for row in (run.result.shapes if run.result else None) or ():
        gain, between = row.speedup, units.span(row.speedup)
        text = f"{units.ratio(gain.value)}{f' ({between})' if between else ''}" if gain else "unknown"
        if gain and gain.says_nothing:
            text = f"too noisy to say{f' ({between})' if between else ''}"
        text = "it fails" if row.answer == "fails" else text
        lost = "; the recipe runs the untouched model there" if row.answer in ("slower", "fails") else ""
        said.append(f"On inputs {units.clean(row.shape)}, which were not used for tuning: {text}{lost}.")
    return said


def predictions(run: ClimbRun) -> str:
    """Such as "Predictions were off by 6% of a step in the median (capture 9%, sdpa 3%); 4 of 7 results were inside the predicted
    range"."""
    record = run.result.predictions if run.result else None
    off = units.number(record.median_error) if record else None
    if not record or off is None or not record.decided:
        return ""
    medians = [(units.clean(name), units.number(value)) for name, value in record.by_rung.items()]
    each = sorted(((name, n) for name, n in medians if n is not None), key=lambda pair: -pair[1])
    if record.decided == 1 and len(each) == 1:
        where = "inside" if record.inside else "outside"
        return f"The prediction of {each[0][0]} was off by {off:.0f}% of a step; the result was {where} the predicted range."
    rungs = f" ({', '.join(f'{name} {n:.0f}%' for name, n in each)})" if each else ""
    inside = f"{units.count(record.inside)} of {units.count(record.decided)} results were inside the predicted range"
    return f"Predictions were off by {off:.0f}% of a step in the median{rungs}; {inside}."


def slower_precision(run: ClimbRun) -> str:
    """Such as "bf16 is not in the recipe: the fastest mode with it was torch.compile, 0.45×, and without it 1.14×."; empty where a mode with
    it was the faster one."""
    modes = [mode for attempt in run.attempts for mode in attempt.modes or () if units.number(mode.speedup)]
    for low in ("bf16", "tf32"):
        used = max((m for m in modes if low in m.rungs), key=lambda m: m.speedup or 0.0, default=None)
        others = max((m.speedup or 0.0 for m in modes if low not in m.rungs), default=0.0)
        if used and low not in kept(run) and others > (used.speedup or 0.0):
            fastest = f"the fastest mode with it was {units.clean(used.title)}, {units.ratio(used.speedup)}"
            return f"{low} is not in the recipe: {fastest}, and without it {units.ratio(others)}."
    return ""


def noise(run: ClimbRun) -> str:
    """Such as "Noise: steps waited for a CPU core up to 43% of the time; a gain of one rung below 12.0% is too small to see in several
    restarts"."""
    record = run.result.noise if run.result else None
    if record is None:
        return ""
    waited, visible = units.number(record.waited), units.number(record.visible)
    parts = []
    if waited is not None and waited >= 0.01:
        parts.append(f"steps waited for a CPU core up to {waited:.0%} of the time")
    if visible is not None and visible > 1:
        parts.append("restarts of the attempts differed so much that hardly any gain of one rung would have shown")
    elif visible is not None:
        parts.append(f"a gain of one rung below {visible:.1%} is too small to see in several restarts")
    open_ = any(attempt.verdict == "inconclusive" for attempt in run.attempts)
    advice = (
        " Other programs had the cores, or a step has more threads than there are cores: climb again while the machine does nothing else."
        if open_ and waited and waited > MOST_WAITED
        else ""
    )
    return f"Noise: {'; '.join(parts)}.{advice}" if parts else ""


def status(run: ClimbRun) -> str:
    """Empty for a climb that reached its end, else a sentence that says how it stands."""
    state, why = standing(run), units.clean(run.manifest.why).rstrip(".")
    if state == "complete":
        return f"{'The climb ended early: ' if ended_early(run) else 'The climb has ended, and '}{why}." if why else ""
    return f"The climb is {state or 'unfinished'}{f': {why}' if why else ''}."


def ended_early(run: ClimbRun) -> bool:
    """Whether a climb that is complete would have tried more."""
    record = run.result.stopped if run.result else None
    return bool(run.manifest.why) and (record is None or record.rule == "budget")


def standing(run: ClimbRun) -> str:
    """The status in a word; of a climb whose process is gone without a word, that it was interrupted."""
    state = units.clean(run.manifest.status)
    return "interrupted" if state == "running" and not run.running else state


def before(run: ClimbRun) -> Figure | None:
    """The untouched step: as the final comparison timed it beside the best, where there was one, or by itself."""
    beside = result_time(run, "baseline") if kept(run) else None
    return beside or (run.baseline.time if run.baseline else None)


def alone(run: ClimbRun) -> str:
    """What to say of the untouched step where it took another time by itself than beside the best, which `before` tells."""
    beside, first = before(run), run.baseline.time if run.baseline else None
    if not beside or not first or 1 / DISTURBED < beside.value / first.value < DISTURBED:
        return ""
    return f"beside the recipe; {units.duration(first.value)} when it was timed alone"


def doubtful(answer: Result | Answered) -> str:
    """What is said right behind a speedup that is doubtful; empty where it is not."""
    return "doubtful (CPU cores were busy)" if answer.busy else ""


def kept_so_far(run: ClimbRun) -> str:
    """What its rungs are headed with."""
    return "In the recipe so far" if run.result and run.result.status == "provisional" else "Kept"


def result_time(run: ClimbRun, side: str) -> Figure | None:
    """A step of a side (`baseline` or `best`) in the final comparison."""
    return ((run.result.times if run.result else None) or {}).get(side)


def kept(run: ClimbRun) -> list[str]:
    return [units.clean(k) for k in run.result.kept] if run.result else []


def total(run: ClimbRun) -> str:
    """Such as "9.41× faster (9.22–9.60): 26.6 ms → 2.83 ms, peak memory 3.1 → 1.2 GiB"."""
    result = run.result
    if not result:
        return ""
    if not kept(run) and not any(attempt.log for attempt in run.attempts):
        return "Nothing was kept: no candidate was timed to the end."
    if not kept(run):
        return "Nothing was kept: no rung was shown to be both faster and correct."
    text = f"{units.interval(result.speedup)} over the untouched model"
    text += f", {over_plain(result)}" if over_plain(result) else ""
    times = [figure.value if figure else None for figure in (result_time(run, "baseline"), result_time(run, "best"))]
    text += f"; {units.duration(times[0])} → {units.duration(times[1])} per step"
    text += f" ({MEDIANS})" if medians_differ(run) else ""
    text += f", peak memory {memory(run)}" if memory(run) else ""
    return f"{text}. {standing_of_recipe(run)}"


def medians_differ(run: ClimbRun) -> bool:
    """Whether the two step times that are shown have another ratio than the speedup that was measured."""
    gain = units.number(run.result.speedup.value) if run.result and run.result.speedup else None
    before, after = result_time(run, "baseline"), result_time(run, "best")
    if not gain or not before or not after or not before.value or not after.value:
        return False
    return not 1 / APART < before.value / after.value / gain < APART


def over_plain(result: Result) -> str:
    """How it compares with the best plain mode of torch.compile; empty where that is not known."""
    over = result.over_plain
    if not over or units.number(over.value) is None:
        return ""
    if plain_alone(result):
        more = [name for name in ("bf16", "tf32", "fused-optimizer") if name in result.kept]
        return f"by a plain mode of torch.compile{' with ' + ', '.join(more) if more else ''}"
    return f"{units.interval(over)} over the best plain torch.compile"


def plain_alone(result: Result) -> bool:
    """Whether the recipe is the best plain mode of torch.compile itself."""
    over = result.over_plain
    return over is not None and over.value == 1 and not units.span(over)


def mode_title(mode: Mode) -> str:
    """What a plain mode is, with the lower precision that it has."""
    title = units.clean(mode.title) or units.clean(mode.name)
    lower = next((name for name in ("bf16", "tf32") if name in mode.rungs), "")
    return title if not lower or "precision" in title or title.endswith(("TF32", "float32")) else f"{title}, in {lower}"


def standing_of_recipe(run: ClimbRun) -> str:
    """What the recipe's status means, in a sentence, and why the speedup is doubtful, if it is."""
    result = run.result
    if result is None:
        return ""
    busy = units.clean(result.busy)
    return _status_means(run, result) + (f" {busy[0].upper()}{busy[1:]}." if busy else "")


def _status_means(run: ClimbRun, result: Result) -> str:
    status, gain = units.clean(result.status), units.number(result.speedup.value) if result.speedup else None
    verified = any(attempt.verdict == "kept" and list(attempt.stack or ()) == result.kept for attempt in run.attempts)
    if doubt := units.clean(result.doubt):
        return f"Provisional: verified, and not confirmed: {doubt}."
    if status == "provisional" and gain is not None and gain < CLAIMED and verified:
        return "Provisional: verified. Rung claims a gain below 8% only after fresh restarts have confirmed it."
    return meaning(status, run.manifest.workload.mode, all_shapes=result.all_shapes)


def meaning(status: str, mode: str, *, all_shapes: bool = True) -> str:
    """Of a recipe's status, in a sentence. mode: `train` or `infer`; all_shapes: whether what is verified is so on all shapes."""
    agree = "outputs agree" if mode == "infer" else "outputs, gradients and optimizer steps agree"
    if status == "provisional":
        unverified = "Other inputs" if mode == "infer" else "Gradients, other inputs"
        return f"Provisional: timed in one restart, with its outputs checked. {unverified} and other shapes are not verified yet."
    if status == "verified":
        where, rest = ("", "") if all_shapes else (" on the measured shape", ", which still runs all other shapes")
        return (
            f"Verified{where}: {agree} with the untouched model{rest}. Fresh restarts have not confirmed the speed yet."
        )
    if status == "confirmed":
        return "Confirmed: verified, and fresh restarts confirmed the speed."
    return f"Status: {status or 'unknown'}."


def memory(run: ClimbRun) -> str:
    """Such as "331 → 415 MiB in fresh processes", said so where the attempts' processes, which may be forks, took another amount."""
    held = (run.result.memory if run.result else None) or {}
    best = units.peak(held.get("best"))
    text = units.data_sizes(units.peak(held.get("baseline")), best)
    stacks = [attempt for attempt in run.attempts if attempt.memory and list(attempt.stack or ()) == kept(run)]
    tried = attempt_words.candidate_memory(stacks[-1]) if stacks else None
    if not text or not best or not tried or not _restarts(run) or 1 / MORE < best / tried < MORE:
        return text
    return f"{text} in fresh processes"


def memory_before(run: ClimbRun) -> float | None:
    """The untouched model's peak, from where its step time is (`before`)."""
    beside = (run.result.memory if run.result else None) or {}
    if kept(run) and result_time(run, "baseline") and (peak := units.peak(beside.get("baseline"))):
        return peak
    return units.peak(run.baseline.memory if run.baseline else None)


def floor(baseline: Baseline | None) -> str:
    """Such as "1.9 ms in bf16, 7% of the step"."""
    record = baseline.floor if baseline else None
    if record is None or units.number(record.seconds) is None:
        return ""
    text = f"{units.duration(record.seconds * 1e9)} in {units.clean(record.precision)}"
    return text + (f", {units.percent(record.share)} of the step" if units.number(record.share) else "")
