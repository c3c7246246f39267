"""The best answer so far, on disk from the first one on: `recipe.toml` and `result.json`, each written whole.

A recipe has a status. `provisional`: timed in one restart, its outputs checked in the process that was timed, more than 5 %
faster. `verified`: all checks of docs/internals/verification.md passed on the measured shape, more than 8 % faster. `confirmed`: in fresh restarts that chose
nothing, faster than the untouched model and no slower than the best plain mode of torch.compile, on other shapes too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rung.errors import InputError
from rung.ladder.climb.state import State, gained
from rung.plan import Original
from rung.recipes import store
from rung.recipes.recipe import STATUSES, Recipe, Status
from rung.records.analyze import Breakdown
from rung.records.climb import Attempt, Moment, Noise, Predicted, Result, Shape, Stopped, TakenBack
from rung.records.compare import Interleaved
from rung.records.measured import Figure
from rung.records.progress import Answered, Warned
from rung.rungs import MIDDLE, Prediction, plan_of, speedup_at
from rung.timing.workers import variables

PROVISIONAL_GAIN = 1.05  # times as fast, in one restart: two processes of one program differ by less
# Less in all is claimed once fresh restarts have shown it: of ten rungs that change nothing one is kept by luck in every fourth climb,
# and where processes differ by 2 %, one of them is 5 % faster in every fourteenth (benchmarks/climb/false_alarms.py).
VERIFIED_GAIN = 1.08


@dataclass(frozen=True)
class Answer:
    """One recipe and what was measured of it.

    kept: its rungs; speedup: over the untouched model; over_plain: the same over the best plain mode; times: nanoseconds a step by side (`baseline`, `plain`, `best`); memory: bytes by side; shapes:
    what it gives on other shapes (`rung.ladder.climb.confirm`); original: inputs that are left to the untouched model; doubt: why it
    is provisional once more, although it was more; busy: why the speedup is doubtful, on a CPU whose cores were busy.
    """

    kept: tuple[str, ...]
    status: Status
    speedup: Figure
    over_plain: Figure | None = None
    confidence: float | None = None
    times: Mapping[str, Figure] = field(default_factory=dict)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    original: dict[str, int] = field(default_factory=dict)
    restarts: Sequence[Mapping[str, Sequence[int | float]]] = ()
    first_run_seconds: Mapping[str, float | None] = field(default_factory=dict)
    doubt: str = ""
    busy: str = ""

    @property
    def rank(self) -> int:
        return STATUSES.index(self.status)


def offer(state: State, answer: Answer, beat: bool = False, kept: bool = False) -> bool:
    """Makes this the answer, unless it is provisional and the present answer is verified or faster.

    beat: it was faster than the present answer in a restart of both, which says more than speedups of two restarts; kept: an attempt kept it.
    Then it is verified, and the next rung is tried on it, so it becomes the answer however large its whole gain is."""
    now = state.answer
    if now is not None and now.kept == answer.kept:
        if answer.rank < now.rank:
            return False
        # Nothing to report: it is only compared with a faster plain mode.
        if answer.rank == now.rank and answer.speedup == now.speedup:
            state.answer = answer
            write_result(state)
            return True
    elif now is not None:
        worth = now.status == "provisional" and (answer.speedup.value > now.speedup.value or beat)
        if answer.status == "provisional" and not (worth or kept):
            return False
        state.replaced_answers.append(now)
    _set_answer(state, answer)
    return True


def lower_to_provisional(state: State, answer: Answer, doubt: str) -> None:
    """Makes an answer provisional that fresh restarts neither confirmed nor refuted. doubt: why, as a sentence without its end."""
    store.forget(recipe_of(state, answer))
    _set_answer(state, replace(answer, status="provisional", doubt=doubt))
    state.say(Warned(f"not confirmed, and provisional again: {doubt}."))


def _set_answer(state: State, answer: Answer) -> None:
    state.answer = answer
    state.history.append(
        Moment(status=answer.status, kept=list(answer.kept), speedup=answer.speedup.value, seconds=state.spent())
    )
    write_and_store(state)
    state.say(Answered(answer.status, list(answer.kept), answer.speedup, answer.busy))


def write_and_store(state: State) -> None:
    """Writes the result to the run directory, and the recipe also to the user's store."""
    recipe = write_result(state)
    try:
        if recipe:
            store.keep(recipe)
    except InputError as error:  # the climb has its recipe; the user's store is one place more
        state.say(Warned(str(error)))


def take_back(state: State, kept: Sequence[str], why: str, *, wrong: bool = False) -> None:
    """Withdraws a recipe that a later check refuted. The answer before it, if any, is the answer again. wrong: it computes something else, so a
    copy that an earlier climb left in the user's store is removed, too."""
    if wrong:
        store.forget(recipe_of(state, Answer(tuple(kept), "provisional", Figure(value=1.0))))
    state.replaced_answers = [a for a in state.replaced_answers if list(a.kept) != list(kept)]
    if state.answer is None or list(state.answer.kept) != list(kept):
        return
    if state.answer.status != "provisional":  # which is not stored
        store.forget(recipe_of(state, state.answer))
    state.answer = state.replaced_answers.pop() if state.replaced_answers else _last_kept(state, kept)
    state.taken_back.append(TakenBack(kept=list(kept), why=why, seconds=state.spent()))
    write_and_store(state)
    state.say(state.taken_back[-1])


def _last_kept(state: State, without: Sequence[str]) -> Answer | None:
    """The answer of the attempts that were kept before this stack, in an earlier sitting."""
    kept = [a for a in state.kept_attempts if a.comparison]
    while kept and kept[-1].stack == list(without):
        kept.pop()
    if not kept:
        return None
    return verified_answer(state, kept[-1], gained(kept))


def verified_answer(state: State, record: Attempt, over: float) -> Answer:
    """The answer of an attempt that passed all checks. A gain below VERIFIED_GAIN stays provisional until it is confirmed."""
    status: Status = "verified" if over >= VERIFIED_GAIN else "provisional"
    return answer_of(state, record.stack, status, over, record)


def answer_of(state: State, stack: Sequence[str], status: Status, over: float, record: Attempt | Interleaved) -> Answer:
    """The answer of an attempt before it is confirmed. over: the speedup over the untouched model, with all that was kept before; record: of the
    attempt's restarts."""
    assert record.times
    assert record.memory
    assert record.first_run_seconds
    best, mode = record.times["candidate"], state.plain.speedup if state.plain else None
    before = (a.busy for a in state.kept_attempts if set(a.stack) <= set(stack))  # its gain is a factor of this one
    return Answer(
        tuple(stack), status, Figure(value=over), Figure(value=over / mode) if mode else None,
        times={"baseline": Figure(value=over * best.value), "best": best},
        memory={"baseline": state.baseline.memory, "best": record.memory["candidate"]},
        first_run_seconds={"baseline": state.baseline.first_run_seconds, "best": record.first_run_seconds["candidate"]},
        busy=next(filter(None, (record.busy, *before)), ""),
    )  # fmt: skip


def write_result(state: State, stopped: Stopped | None = None) -> Recipe | None:
    """Writes result.json and, where there is an answer, recipe.toml. Returns the recipe. stopped: why the climb ended, once it has."""
    answer, recipe = state.answer, None
    result = Result(
        kept=list(answer.kept) if answer else [],
        status=answer.status if answer else None,
        speedup=answer.speedup if answer else None,
        over_plain=answer.over_plain if answer else None,
        confidence=answer.confidence if answer else None,
        times=answer.times if answer else None,
        memory=answer.memory if answer else None,
        first_run_seconds=answer.first_run_seconds if answer else None,
        restarts=answer.restarts if answer else [],
        shapes=answer.shapes if answer else [],
        doubt=answer.doubt if answer else "",
        busy=answer.busy if answer else "",
        all_shapes=answer is None or state.on_all_shapes(answer.kept),
        noise=noise(state.attempts),
        plain=state.plain,
        history=state.history,
        taken_back=state.taken_back,
        breakdown=_breakdown(state),
        recipe="recipe.toml" if answer else None,
        stopped=stopped,
        predictions=prediction_summary(state.attempts),
        seconds=state.spent(),
    )
    if answer:
        recipe = recipe_of(state, answer)
        result.recipe_text = recipe.text()
        state.run.write_text("recipe.toml", recipe.text())
    else:
        (state.run.directory / "recipe.toml").unlink(missing_ok=True)
    state.run.write("result.json", result)
    return recipe


def noise(attempts: Sequence[Attempt]) -> Noise | None:
    """How noisy the machine was while these attempts were timed; None where that is not known.

    waited: the largest share of an attempt's time in which a side waited for a core; visible: the smallest gain that an attempt would have
    shown four times in five, as the median over attempts of several restarts."""
    waited = [max(shares) for a in attempts if (shares := _known((a.waited or {}).values()))]
    # On busy cores 0 is what is claimed where usual and shortest steps disagree in each restart: nothing was seen then.
    visible = _known(a.comparison.visible or (math.inf if a.busy else 0.0) for a in attempts if a.comparison)
    if not waited and not visible:
        return None
    return Noise(
        waited=max(waited, default=None),
        visible=statistics.median(visible) if visible else None,
    )


def _known(shares: Iterable[float | None]) -> list[float]:
    return [share for share in shares if share is not None and math.isfinite(share)]


def _breakdown(state: State) -> Breakdown | None:
    """Where the time of the answer's step goes; None where it was not profiled."""
    if state.answer is None:
        return state.breakdown
    kept = [a for a in state.kept_attempts if a.stack == list(state.answer.kept)]
    return (kept[-1].breakdown or None) if kept else None


def restore_answer(state: State) -> None:
    """Restores the answer of an earlier sitting."""
    result = state.run.result()
    if result is None:
        return
    state.history, state.taken_back = list(result.history or []), list(result.taken_back or [])
    status = next((status for status in STATUSES if status == result.status), None)
    if not result.kept or status is None or result.speedup is None:
        return
    if result.all_shapes and status != "provisional":
        state.verified_on_all_shapes.add(tuple(result.kept))
    original = Recipe.parse(result.recipe_text).original if result.recipe_text else {}
    if Original(**original).is_of_one_size:  # it is added anew as long as nothing else is verified
        original = {}
    state.answer = Answer(
        tuple(result.kept), status, result.speedup, result.over_plain, result.confidence, result.times or {}, result.memory or {},
        result.shapes or [], original, result.restarts or [],
        result.first_run_seconds or {}, result.doubt, result.busy,
    )  # fmt: skip


def recipe_of(state: State, answer: Answer) -> Recipe:
    """The answer as a file that can be applied."""
    manifest = state.run.manifest()
    workload, environment, device = manifest.workload, manifest.environment, manifest.environment.device
    speedup, over_plain = answer.speedup, answer.over_plain.value if answer.over_plain else None
    figures = {"speedup": speedup.value, "low": speedup.low, "high": speedup.high, "over_plain": over_plain}
    measured = {name: round(value, 4) for name, value in figures.items() if isinstance(value, (int, float))}
    if answer.confidence is not None:
        measured["confidence"] = answer.confidence
    return Recipe(
        answer.kept,
        state.request.target,
        state.request.options,
        state.facts.mode,
        state.numerics,
        {"device": device.name, "arch": device.arch or "", "torch": environment.torch or "", "model": workload.model,
         "structure": workload.structure, **_of_ranks(state)},
        measured,
        variables(plan_of(answer.kept), state.setup.files),
        answer.original or _measured_shape_only(state, answer),
        answer.status,
    )  # fmt: skip


def _of_ranks(state: State) -> dict[str, str]:
    facts = state.facts
    return {"ranks": str(facts.ranks), "parallel": facts.parallel} if facts.ranks > 1 else {}


def _measured_shape_only(state: State, answer: Answer) -> dict[str, int]:
    """Which inputs are left to the untouched model, because the recipe was verified on the measured shape alone."""
    measured = state.facts.shapes[0].elements if state.facts.shapes else 0
    verified = answer.status != "provisional" or answer.kept in state.verified_on_all_shapes
    if not measured or (verified and not state.facts.one_shape and state.on_all_shapes(answer.kept)):
        return {}
    only = {"elements_at_most": measured - 1, "elements_at_least": measured + 1}
    return {**only, **({"measured": measured, "called": called} if (called := state.facts.called or 0) else {})}


def prediction_of(attempt: Attempt) -> Prediction | None:
    """What an attempt was predicted to give; None where nothing was, or no more than that is known."""
    stored = attempt.prediction
    if stored is None or stored.low is None or stored.high is None:
        return None
    expected = stored.expected or speedup_at(stored.low, stored.high, MIDDLE)  # an earlier version did not store it
    return Prediction(stored.low, stored.high, {part: share or 0.0 for part, share in stored.shares.items()}, expected)


def prediction_error(attempt: Attempt) -> float | None:
    """The distance of the expected gain from the measured one, in points of the step's time: a rung that was to give 2x, which spares 50 % of
    it, and gives 1.6x, which spares 37.5 %, is off by 12.5; one that takes many times as long counts as off by the whole step, 100. None
    where nothing was decided, or the measurement is too noisy to say anything."""
    comparison, predicted = attempt.comparison, prediction_of(attempt)
    if not comparison or not predicted or attempt.cut or comparison.speedup.says_nothing:
        return None
    return min(100.0, abs(100 * (1 / predicted.expected - 1 / comparison.speedup.value)))


def prediction_summary(attempts: Iterable[Attempt]) -> Predicted:
    """Over all decided attempts and by rung."""
    errors: dict[str, list[float]] = {}
    inside = 0
    for attempt in attempts:
        off = prediction_error(attempt)
        if off is not None:
            errors.setdefault(attempt.rung, []).append(off)
            inside += attempt.forecast == "inside"
    every = [e for found in errors.values() for e in found]
    return Predicted(
        median_error=statistics.median(every) if every else None,
        decided=len(every),
        inside=inside,
        by_rung={name: statistics.median(found) for name, found in errors.items()},
    )
