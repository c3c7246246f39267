"""The phrases that the terminal and the page share: what was tried, what it gave, what stands out."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import Any

from rung.report import units

# The order of the legend; every report shows the parts with the same words.
PARTS = {
    "gemm": "matrix products",
    "attention": "attention",
    "convolution": "convolution",
    "pointwise": "pointwise",
    "optimizer": "optimizer",
    "communication": "communication",
    "copy": "copies",
    "other": "other kernels",
    "launch_gap": "waiting for a launch",
    "idle": "idle",
}
ON_THE_HOST = {"other": "other operators", "launch_gap": "Python and dispatch"}
MARKS = {
    "kept": "✓",
    "reverted": "↩",
    "no-op": "=",
    "inapplicable": "·",
    "not yet": "·",
    "inconclusive": "?",
    "failed": "✗",
}
STATUSES = {
    "provisional": "Provisional: timed in one restart, and its outputs checked there; gradients, other inputs and other shapes are not verified yet.",
    "verified": "Verified: outputs, gradients and optimizer steps agree with the untouched model; the speed was not confirmed in fresh restarts.",
    "confirmed": "Confirmed: verified, and the speed shown again in fresh restarts.",
}
CLAIMED = 1.08  # times as fast: less is claimed once it was confirmed (ladder/climb/answer.py)
OTHER = "each for a reason of its own"
_COMPARED = (
    "The best so far and the candidate ran in separate worker processes in alternating blocks, and both were "
    "restarted, so an interval covers drift and the luck of a process as well as noise. Outputs, and in "
    "training the loss, gradients and optimizer steps, were compared with a reference of higher precision on "
    "fresh inputs, and the error was judged against the noise of the unchanged model."
)
_ALONE = "The untouched workload was timed and profiled in a worker process of its own. Nothing was compared with it."


def attempts(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [a for a in data.get("attempts") or [] if isinstance(a, dict)]


def folded(attempts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attempts, those that were never measured, for one and the same reason, as one: its `rung` names them all."""
    found: list[dict[str, Any]] = []
    by_reason: dict[tuple[str, str], dict[str, Any]] = {}
    for attempt in attempts:
        reason = units.clean(attempt.get("verdict")), units.clean(attempt.get("why"))
        if attempt.get("log") or not reason[0]:
            found.append(attempt)
        elif reason in by_reason:
            by_reason[reason]["rung"] = f"{by_reason[reason]['rung']}, {attempt.get('rung')}"
            by_reason[reason]["title"] = by_reason[reason]["changes"] = ""
        else:
            by_reason[reason] = dict(attempt)
            found.append(by_reason[reason])
    return found


def planned(data: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rungs of a dry run: those that would be tried, in their order, and those that would not."""
    if units.section(data, "manifest").get("status") != "planned":
        return [], []
    rungs = [r for r in units.section(data, "plan").get("rungs") or [] if isinstance(r, dict)]
    return [r for r in rungs if not r.get("verdict")], [r for r in rungs if r.get("verdict")]


def grouped(attempts: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The names of what was never measured, by the kind of its reason: what only waits first, what is of no kind last."""
    found: dict[str, list[str]] = {}
    for attempt in attempts:
        verdict, group = units.clean(attempt.get("verdict")), units.clean(attempt.get("group"))
        if verdict == "not yet":
            group = f"not yet: {units.clean(attempt.get('why')).rstrip('.')}"
        elif verdict == "no-op":
            group = "already so, or without effect here"
        found.setdefault(group or OTHER, []).append(name(attempt))
    return dict(
        sorted(found.items(), key=lambda pair: (not pair[0].startswith("not yet"), pair[0] == OTHER, -len(pair[1])))
    )


def measured(data: dict[str, Any]) -> str:
    """How, as far as anything was."""
    return _COMPARED if any(a.get("log") for a in attempts(data)) else _ALONE


def name(attempt: dict[str, Any]) -> str:
    return units.clean(attempt.get("rung")) or "rung"


def predicted(attempt: dict[str, Any]) -> str:
    between = units.span(attempt.get("prediction"))
    return f"{between}×" if between else units.NONE


def off(attempt: dict[str, Any]) -> str:
    """How far a prediction was from what was measured; empty where nothing was decided."""
    points = units.number(attempt.get("prediction_error"))
    return "" if points is None else f"{points:.0f} points of the step from the middle of the prediction"


def recompilations(facts: Any) -> list[str]:
    """What is compiled anew, and the guard that failed, a sentence each."""
    found = [r for r in units.section(facts).get("recompilations") or [] if isinstance(r, dict)]
    return [
        f"{units.clean(r.get('where'))}: it was compiled for {units.clean(r.get('why')) or 'something else'}"
        for r in found
    ]


def rests_on(attempt: dict[str, Any]) -> str:
    """What a prediction follows from: the shares of the two largest parts that the rung works on."""
    shares = units.section(attempt, "prediction", "shares")
    numbers = [(key, units.number(share)) for key, share in shares.items()]
    named = [f"{part(key, attempt.get('clock'))} {n:.0%}" for key, n in numbers if n is not None][:2]
    return f"{', '.join(named)} of the step" if named else ""


def speedup(attempt: dict[str, Any]) -> dict[str, Any]:
    return units.section(attempt, "comparison", "speedup")


def worst(attempt: dict[str, Any]) -> dict[str, Any]:
    return units.section(attempt, "verification", "worst")


def candidate_time(attempt: dict[str, Any]) -> Any:
    return units.section(attempt, "times", "candidate").get("value")


def candidate_memory(attempt: dict[str, Any]) -> float | None:
    return units.peak(units.section(attempt, "memory").get("candidate"))


def part(key: Any, clock: Any = None) -> str:
    """The words for a part. On the host's clock there are operators and no kernels, and what lies outside of them is not a
    wait for a launch."""
    here = {**PARTS, **ON_THE_HOST} if clock == "cpu" else PARTS
    return here.get(key, units.clean(key))


def parts(breakdown: Any) -> list[tuple[str, str, float]]:
    """(key, title, ns per step) of the parts that take any time; unknown ones last, under their own name."""
    found = units.section(breakdown, "parts")
    order = [*PARTS, *(key for key in found if key not in PARTS)]
    clock = units.section(breakdown).get("clock")
    known = ((key, part(key, clock), units.number(found.get(key))) for key in order)
    return [(key, title, value) for key, title, value in known if value is not None and value > 0]


def as_measured(breakdown: Any, ns: Any) -> dict[str, Any]:
    """The breakdown of a step that takes so long: the profiled one took another time, and its shares are what is known."""
    record, measured = units.section(breakdown), units.number(ns)
    whole = sum(value for _, _, value in parts(record))
    if not measured or not whole:
        return record
    scaled = {key: value * measured / whole for key, _, value in parts(record)}
    return {**record, "parts": scaled, "step_ns": measured}


def bottleneck(breakdown: Any, whole: str = "step") -> str:
    """Such as "matrix products, 42 % of the step"; "" where there is none."""
    record = units.section(breakdown)
    key = record.get("bottleneck")
    if not key or not isinstance(key, str):
        return ""
    title = part(key, record.get("clock"))
    other = {"launch_gap": "idle", "idle": "launch_gap"}.get(key)  # the share is of both
    if other and _time(record, other) >= 0.01 * (units.number(record.get("step_ns")) or 0.0) > 0:
        title += f" and {part(other, record.get('clock'))}"
    return f"{title}, {units.percent(record.get('share'))} of the {whole}"


def _time(record: dict[str, Any], key: str) -> float:
    """The ns of a part, of a breakdown or of those of several ranks."""
    found = record.get("parts")
    times = {row["part"]: row["mean_ns"] for row in found} if isinstance(found, list) else units.section(found)
    return units.number(times.get(key)) or 0.0


def per_step(breakdown: Any) -> str:
    """Such as "310 kernels, 290 launches, 48 matrix products per step", without the last words of a single step, and without
    what there was none of, as kernels on a CPU."""
    record = units.section(breakdown)
    labels = (("kernels", "kernel", "s"), ("launches", "launch", "es"), ("gemms", "matrix product", "s"))
    found = [
        f"{units.count(record[key])} {one}{'' if record[key] == 1 else more}"
        for key, one, more in labels
        if units.number(record.get(key))
    ]
    return f"{', '.join(found)}{' per step' if record.get('steps') != 1 else ''}" if found else ""


def workload(manifest: dict[str, Any]) -> str:
    """Such as "tiny-transformer (train, 8 samples, 2048 tokens, 31.5 M parameters)"."""
    record = units.section(manifest, "workload")
    facts = [units.one_line(record.get("mode"))]
    for key in ("samples", "tokens", "parameters"):
        if units.number(record.get(key)) is not None:
            facts.append(f"{units.count(record[key])} {key if record[key] != 1 else key.removesuffix('s')}")
    title = units.one_line(record.get("name") or manifest.get("target") or "workload")
    known = ", ".join(f for f in facts if f)
    return f"{title} ({known})" if known else title


def device(manifest: dict[str, Any]) -> str:
    record = units.section(manifest, "environment", "device")
    return units.clean(record.get("name") or record.get("kind") or "unknown device")


def versions(manifest: dict[str, Any]) -> str:
    """Such as "torch 2.13.0, CUDA 13.0"."""
    record = units.section(manifest, "environment")
    labels = (("torch", "torch"), ("rocm", "ROCm"), ("cuda", "CUDA"))
    return ", ".join(f"{label} {units.clean(record[k])}" for k, label in labels if record.get(k))


def pays_back(attempt: dict[str, Any]) -> str:
    """Such as "41 s more to prepare, paid back after 3,200 steps"; empty where preparing takes about as long."""
    record = units.section(attempt, "pay_back")
    longer, steps = units.number(record.get("seconds")), units.number(record.get("steps"))
    if longer is None or longer < 1:
        return ""
    text = f"{units.seconds(longer)} more to prepare"
    return f"{text}, paid back after {units.count(steps)} steps" if steps else f"{text}, never paid back"


def effect(attempt: dict[str, Any]) -> str:
    """Whether what the rung should do beside being faster was seen, and with which figures."""
    record = units.section(attempt, "effect")
    if not record.get("should"):
        return ""
    shown = record.get("shown")
    seen = "seen" if shown is True else "not seen" if shown is False else "not to be told"
    return f"{units.clean(record['should'])}: {seen} ({units.clean(record.get('says'))})"


def stopped(data: dict[str, Any]) -> str:
    """Why nothing more was tried, and what that left."""
    record = units.section(data, "result", "stopped")
    why = units.clean(record.get("why")).rstrip(".")
    if not why or record.get("rule") == "budget":  # that is said as the status
        return ""
    left = [units.clean(name) for name in units.section(record, "left")]
    rest = f" Not tried: {', '.join(left[:6])}{f' and {len(left) - 6} more' if len(left) > 6 else ''}." if left else ""
    return f"It stopped there because {why}.{rest}"


def shapes(data: dict[str, Any]) -> list[str]:
    """What the stack gives on shapes that were not used for the choice."""
    said = []
    for row in units.section(data, "result").get("shapes") or []:
        gain = units.section(row, "speedup")
        text = f"{units.ratio(gain.get('value'))}" + (f" ({units.span(gain)})" if units.span(gain) else "")
        lost = row.get("answer") in ("slower", "fails")
        text = "it fails" if row.get("answer") == "fails" else "unknown" if not gain else text
        said.append(
            f"On {units.clean(row.get('shape'))}, a shape not used for the choice: {text}{'; the recipe leaves such inputs to the original' if lost else ''}."
        )
    return said


def predictions(data: dict[str, Any]) -> str:
    """Such as "Predictions were off by 6 points of the step in the median (capture 9, sdpa 3); 4 of 7 outcomes lay inside
    their range"."""
    record = units.section(data, "result", "predictions")
    off, decided = units.number(record.get("median_error")), units.number(record.get("decided"))
    if off is None or not decided:
        return ""
    inside = units.count(record.get("inside"))
    medians = [(units.clean(name), units.number(value)) for name, value in units.section(record, "by_rung").items()]
    each = sorted(((name, n) for name, n in medians if n is not None), key=lambda pair: -pair[1])
    rungs = f" ({', '.join(f'{name} {n:.0f}' for name, n in each)})" if each else ""
    return f"Predictions were off by {off:.0f} points of the step in the median{rungs}; {inside} of {units.count(decided)} outcomes lay inside their range."


def noise(data: dict[str, Any]) -> str:
    """Such as "Noise: steps waited for a core 43 % of the time; a gain below 12 % would not have shown in an attempt of several
    restarts"."""
    record = units.section(data, "result", "noise")
    waited, visible = units.number(record.get("waited")), units.number(record.get("visible"))
    parts = []
    if waited is not None and waited >= 0.01:
        parts.append(f"steps waited for a core {waited:.0%} of the time")
    if visible is not None:
        parts.append(f"a gain below {visible:.1%} would not have shown in an attempt of several restarts")
    return f"Noise: {'; '.join(parts)}." if parts else ""


def status(data: dict[str, Any]) -> str:
    """Empty for a climb that reached its end, else a sentence that says how it stands and how to go on."""
    manifest = units.section(data, "manifest")
    state, why = standing(data), units.clean(manifest.get("why")).rstrip(".")
    if state == "complete":
        return f"The climb ended early: {why}. Go on with: {resume(data)}" if why else ""
    reason = f": {why}" if why else ""
    if state == "planned":
        return f"The climb is planned{reason}. Begin it with: {resume(data)}"
    if state == "running":
        return f"The climb is running{reason}."
    return f"The climb is {state or 'unfinished'}{reason}. Resume it with: {resume(data)}"


def standing(data: dict[str, Any]) -> str:
    """The status in a word; of a climb whose process is gone without a word, that it was interrupted."""
    state = units.clean(units.section(data, "manifest").get("status"))
    return "interrupted" if state == "running" and not data.get("running") else state


def resume(data: dict[str, Any]) -> str:
    return f"rung climb --resume {shlex.quote(units.clean(data.get('directory') or 'DIR'))}"


def recipe_path(data: dict[str, Any], directory: bool = True) -> str:
    recipe = units.clean(units.section(data, "result").get("recipe") or "recipe.toml")
    where = units.clean(data.get("directory"))
    return str(PurePath(where) / recipe) if directory and where else recipe


def bench_command(data: dict[str, Any]) -> str:
    target = units.clean(units.section(data, "manifest").get("target") or "TARGET")
    return f"rung bench {shlex.quote(target)} --recipe {shlex.quote(recipe_path(data))}"


def apply_line(data: dict[str, Any]) -> str:
    if units.section(data, "manifest", "workload").get("mode") == "train":
        return f'train = rung.apply(model, "{recipe_path(data)}", loss=loss, optimizer=optimizer)'
    return f'model = rung.apply(model, "{recipe_path(data)}")'


def before(data: dict[str, Any]) -> dict[str, Any]:
    """The untouched step: as the final comparison timed it beside the best, where there was one, or by itself."""
    alone = units.section(data, "baseline", "time")
    return (units.section(data, "result", "times", "baseline") if kept(data) else {}) or alone


def kept(data: dict[str, Any]) -> list[str]:
    return [units.clean(k) for k in units.section(data, "result").get("kept") or []]


def total(data: dict[str, Any]) -> str:
    """Such as "9.41× faster (9.22–9.60): 26.6 ms → 2.83 ms, peak memory 3.1 → 1.2 GiB"."""
    result = units.section(data, "result")
    if not result:
        return ""
    if not kept(data) and not any(attempt.get("log") for attempt in attempts(data)):
        return "Nothing was kept: no rung was tried."
    if not kept(data):
        return "Nothing was kept: no rung that was tried could be shown to be both faster and correct."
    text = f"{units.interval(units.section(result, 'speedup'))} over the untouched model"
    over = units.section(result, "over_plain")
    if units.number(over.get("value")) is not None:
        itself = over["value"] == 1 and not units.span(over)
        text += (
            ": plain torch.compile itself" if itself else f", {units.interval(over)} over the best plain torch.compile"
        )
    before = units.section(result, "times", "baseline").get("value")
    after = units.section(result, "times", "best").get("value")
    text += f"; {units.duration(before)} → {units.duration(after)} a step"
    text += f", peak memory {memory(data)}" if memory(data) else ""
    return f"{text}. {standing_of_recipe(result)}"


def standing_of_recipe(result: dict[str, Any]) -> str:
    """What the recipe's status means, in a sentence."""
    status, gain = units.clean(result.get("status")), units.number(units.section(result, "speedup").get("value"))
    if doubt := units.clean(result.get("doubt")):
        return f"Provisional: verified, and not confirmed: {doubt}."
    if status == "provisional" and gain is not None and gain < CLAIMED:
        return "Provisional: verified, and a gain below 8 % is claimed once fresh restarts have shown it."
    return STATUSES.get(status, f"Status: {status or 'unknown'}.")


def memory(data: dict[str, Any]) -> str:
    record = units.section(data, "result", "memory")
    return units.data_sizes(units.peak(record.get("baseline")), units.peak(record.get("best")))


def floor(baseline: Any) -> str:
    """Such as "1.9 ms in bf16, 7 % of the step"."""
    record = units.section(baseline, "floor")
    if units.number(record.get("seconds")) is None:
        return ""
    text = f"{units.duration(record['seconds'] * 1e9)} in {units.clean(record.get('precision'))}"
    return text + (f", {units.percent(record['share'])} of the step" if units.number(record.get("share")) else "")
