"""The best answer so far, on disk from the first one on: `recipe.toml` and `result.json`, each written whole.

A recipe has a status. `provisional`: timed in one restart, its outputs checked in the process that was timed, more than 5 %
faster. `verified`: all checks of docs/verification.md passed, more than 8 % faster. `confirmed`: in fresh restarts that chose
nothing, faster than the untouched model and no slower than the best plain mode of torch.compile, on other shapes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rung.errors import InputError
from rung.ladder.climb import noise, predictions
from rung.ladder.climb.state import State, gained
from rung.plan import Original
from rung.recipes import store
from rung.recipes.recipe import STATUSES, Recipe, Status
from rung.records.climb import Result
from rung.records.record import plain
from rung.rungs import plan_of
from rung.timing.workers import variables

PROVISIONAL_GAIN = 1.05  # times as fast, in one restart: two processes of one program differ by less
# Less in all is claimed once fresh restarts have shown it: of ten rungs that change nothing one is kept by luck in every fourth climb,
# and where processes differ by 2 %, one of them is 5 % faster in every fourteenth (benchmarks/climb/false_alarms.py).
VERIFIED_GAIN = 1.08


@dataclass(frozen=True)
class Answer:
    """One recipe and what was measured of it.

    kept: its rungs; speedup: over the untouched model, `value`, and `low`, `high` where restarts gave an interval; over_plain: the
    same over the best plain mode; times: nanoseconds a step by side (`baseline`, `plain`, `best`); memory: bytes by side; shapes:
    what it gives on other shapes (`rung.ladder.climb.confirm`); original: inputs that are left to the untouched model; doubt: why it
    is provisional once more, although it was more.
    """

    kept: tuple[str, ...]
    status: Status
    speedup: dict[str, float]
    over_plain: dict[str, float] | None = None
    confidence: float | None = None
    times: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    original: dict[str, int] = field(default_factory=dict)
    restarts: list[Any] = field(default_factory=list)
    first_run_seconds: dict[str, Any] = field(default_factory=dict)
    doubt: str = ""

    @property
    def rank(self) -> int:
        return STATUSES.index(self.status)


def offer(state: State, answer: Answer, beat: bool = False) -> bool:
    """Makes it the answer, unless it is provisional and the one that there is is not, or is faster. What is verified was kept against
    the best so far. beat: it was the faster one in a restart in which both took turns, which says more than two speedups of different times."""
    now = state.answer
    if now is not None and now.kept == answer.kept:
        if answer.rank < now.rank:
            return False
    elif now is not None:
        if answer.status == "provisional" and (
            now.status != "provisional" or (answer.speedup["value"] <= now.speedup["value"] and not beat)
        ):
            return False
        state.earlier.append(now)
    _set(state, answer)
    return True


def lower(state: State, answer: Answer, doubt: str) -> None:
    """Makes the answer provisional, which fresh restarts neither showed nor refuted; doubt: why, as a sentence without its end."""
    store.forget(recipe_of(state, answer))
    _set(state, replace(answer, status="provisional", doubt=doubt))
    state.say("warning", {"text": f"not confirmed, and provisional again: {doubt}."})


def _set(state: State, answer: Answer) -> None:
    state.answer = answer
    state.history.append(
        {"status": answer.status, "kept": list(answer.kept), "speedup": answer.speedup["value"], "seconds": state.spent()}
    )  # fmt: skip
    recipe = write(state)
    try:
        if recipe:
            store.keep(recipe)
    except InputError as error:  # the climb has its recipe; the user's store is one place more
        state.say("warning", {"text": str(error)})
    state.say("answer", {"status": answer.status, "kept": list(answer.kept), "speedup": answer.speedup})


def take_back(state: State, kept: Sequence[str], why: str) -> None:
    """Withdraws a recipe that a later check refuted; the one before it, if there was one, is the answer again."""
    state.earlier = [a for a in state.earlier if list(a.kept) != list(kept)]
    if state.answer is None or list(state.answer.kept) != list(kept):
        return
    store.forget(recipe_of(state, state.answer))
    state.answer = state.earlier.pop() if state.earlier else _last_kept(state, kept)
    state.taken_back.append({"kept": list(kept), "why": why, "seconds": state.spent()})
    write(state)
    state.say("taken back", {"kept": list(kept), "why": why})


def _last_kept(state: State, without: Sequence[str]) -> Answer | None:
    """What the attempts before this stack kept, in an earlier sitting, of which this one saw no answer."""
    kept = [a for a in state.attempts if a["verdict"] == "kept" and a.get("comparison")]
    while kept and kept[-1]["stack"] == list(without):
        kept.pop()
    if not kept:
        return None
    return verified_answer(state, kept[-1], gained(kept))


def verified_answer(state: State, record: Mapping[str, Any], over: float) -> Answer:
    """Of an attempt that passed all checks. Less than VERIFIED_GAIN is not claimed before it is confirmed."""
    status: Status = "verified" if over >= VERIFIED_GAIN else "provisional"
    return answer_of(state, record["stack"], status, over, record)


def answer_of(state: State, stack: Sequence[str], status: Status, over: float, record: Mapping[str, Any]) -> Answer:
    """What an attempt found, before it is confirmed. over: the untouched model's time over the candidate's, through all that was kept
    before; record: of the attempt."""
    best = record["times"]["candidate"]
    return Answer(
        tuple(stack), status, {"value": over}, {"value": over / state.plain["speedup"]} if state.plain else None,
        times={"baseline": {"value": over * best["value"]}, "best": best},
        memory={"baseline": state.baseline["memory"], "best": record["memory"]["candidate"]},
        first_run_seconds={"baseline": state.baseline["first_run_seconds"], "best": record["first_run_seconds"]["candidate"]},
    )  # fmt: skip


def write(state: State, stopped: dict[str, Any] | None = None) -> Recipe | None:
    """result.json, and recipe.toml where there is an answer, which is returned; stopped: why nothing more is tried, once the climb has ended."""
    answer, recipe = state.answer, None
    fields: dict[str, Any] = {
        "kept": list(answer.kept) if answer else [],
        "status": answer.status if answer else None,
        "speedup": answer.speedup if answer else None,
        "over_plain": answer.over_plain if answer else None,
        "confidence": answer.confidence if answer else None,
        "times": answer.times if answer else None,
        "memory": answer.memory if answer else None,
        "first_run_seconds": answer.first_run_seconds if answer else None,
        "restarts": answer.restarts if answer else [],
        "shapes": answer.shapes if answer else [],
        "doubt": answer.doubt if answer else "",
        "noise": noise.told(state.attempts),
        "plain": state.plain or None,
        "history": state.history,
        "taken_back": state.taken_back,
        "breakdown": _breakdown(state),
        "recipe": "recipe.toml" if answer else None,
        "stopped": stopped,
        "predictions": predictions.summary(state.attempts),
        "seconds": state.spent(),
    }
    result = Result(**fields)
    if answer:
        recipe = recipe_of(state, answer)
        result.recipe_text = recipe.text()
        state.run.write_text("recipe.toml", recipe.text())
    else:
        (state.run.directory / "recipe.toml").unlink(missing_ok=True)
    state.run.write("result.json", plain(result))
    return recipe


def _breakdown(state: State) -> dict[str, Any] | None:
    """Where the time of the answer's step goes; None where it was not profiled, as what was timed in one restart alone is not."""
    if state.answer is None:
        return state.breakdown
    kept = [a for a in state.attempts if a["verdict"] == "kept" and a["stack"] == list(state.answer.kept)]
    return kept[-1].get("breakdown") if kept else None


def read_back(state: State) -> None:
    """Goes on from the answer of an earlier sitting."""
    result = state.run.maybe("result.json") or {}
    state.history, state.taken_back = list(result.get("history") or []), list(result.get("taken_back") or [])
    if not result.get("kept") or result.get("status") not in STATUSES:
        return
    known = {
        name: result[name]
        for name in ("times", "memory", "shapes", "restarts", "first_run_seconds")
        if result.get(name)
    }
    guard = Recipe.parse(result["recipe_text"]).original if result.get("recipe_text") else {}
    state.answer = Answer(
        tuple(result["kept"]), result["status"], result["speedup"], result.get("over_plain"), result.get("confidence"),
        original=guard, doubt=str(result.get("doubt") or ""), **known,
    )  # fmt: skip


def recipe_of(state: State, answer: Answer) -> Recipe:
    """The answer as a file that can be applied."""
    manifest = state.run.read("manifest.json")
    environment, device = manifest["environment"], manifest["environment"]["device"]
    figures = {"speedup": answer.speedup.get("value"), "low": answer.speedup.get("low"), "high": answer.speedup.get("high"),
               "over_plain": (answer.over_plain or {}).get("value")}  # fmt: skip
    measured = {name: round(value, 4) for name, value in figures.items() if value is not None}
    if answer.confidence is not None:
        measured["confidence"] = answer.confidence
    return Recipe(
        answer.kept,
        state.request.target,
        state.request.options,
        state.facts["mode"],
        state.numerics,
        {"device": device["name"], "arch": device["arch"], "torch": environment["torch"],
         "model": manifest["workload"].get("model", ""), "structure": manifest["workload"].get("structure", "")},
        measured,
        variables(plan_of(answer.kept), state.setup.files),
        answer.original or _measured_shape_only(state, answer),
        answer.status,
    )  # fmt: skip


def _measured_shape_only(state: State, answer: Answer) -> dict[str, int]:
    """Other inputs are left to the untouched model where nobody has seen the recipe run on them."""
    measured = (state.facts.get("shapes") or [{"elements": 0}])[0]["elements"]
    if not measured or not (answer.status == "provisional" or state.facts.get("one_shape")):
        return {}
    only = Original(measured - 1, measured + 1)
    return {"elements_at_most": only.elements_at_most, "elements_at_least": only.elements_at_least or 0}
