"""A climb on the terminal: one plain line for each event while it runs, and the summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from rung.records.analyze import Breakdown
from rung.records.climb import Attempt, ClimbRun, Mode, Result
from rung.records.progress import Answered
from rung.report import attempt_words, breakdowns, commands, units, words
from rung.report.layout import Cell, Column, styled, table_of, wrap

_COLORS = {"kept": "green", "reverted": "yellow", "inconclusive": "yellow", "failed": "red"}
_FEW = 5  # reasons that are told one by one
_WIDE = 92  # below this, the columns that matter least give their room to the reason
MEASURED = "measured: the speedup over the best before that rung. Steps were timed at different moments: compare rungs by the speedup."
ERROR = (
    "error: how far off the result is that came nearest to its limit, in multiples of the untouched model's own error."
)


def prediction_line(attempt: Attempt) -> str:
    """What is about to be tried and what it should give: printed before the rung is measured."""
    title, changes = units.clean(attempt.title), units.clean(attempt.changes)
    what = ": ".join(part for part in (title, changes) if part).rstrip(".")
    text = f"{attempt_words.name(attempt)} — {what}" if what else attempt_words.name(attempt)
    if not attempt.prediction:
        return f"{text}. No prediction."
    why = attempt_words.rests_on(attempt)
    return f"{text}. Predicted {attempt_words.full_prediction(attempt)}" + (f": {why}" if why else "")


def mode_line(mode: Mode) -> str:
    """One plain mode of torch.compile, once it was timed."""
    title, ready = words.mode_title(mode), units.seconds(units.number(mode.ready_seconds) or 0.0)
    if mode.error:
        return f"  {title}: {units.clean(mode.error)}"
    speedup, step = units.number(mode.speedup), units.number(mode.step_ns)
    beside = f"{units.duration(speedup * step)} → " if speedup and step else ""  # of the untouched model, by that ratio
    return f"  {title}: {units.ratio(speedup)}, {beside}{units.duration(step)} per step, ready {ready} into the climb"


def answer_line(answer: Result | Answered) -> str:
    """The best recipe so far, each time that it is written."""
    names = " + ".join(units.clean(n) for n in answer.kept)
    gain = units.interval(answer.speedup)
    doubt = f", {words.doubtful(answer)}" if answer.busy else ""
    return f"  recipe.toml: {names}, {gain} over the untouched model, {units.clean(answer.status)}{doubt}"


def attempt_line(attempt: Attempt) -> str:
    """How it went: printed when the rung has its verdict."""
    verdict = units.clean(attempt.verdict) or "no verdict"
    text = f"{attempt_words.MARKS.get(verdict, ' ')} {attempt_words.name(attempt)}: {verdict}"
    if gain := attempt_words.speedup(attempt):
        text += f", {units.interval(gain)}"
        if attempt.forecast and attempt.comparison and attempt.comparison.answer != "undecided":
            text += f", {units.clean(attempt.forecast)} the prediction {attempt_words.predicted(attempt)}"
    if verdict == "kept" and attempt_words.pays_back(attempt):
        text += f"; {attempt_words.pays_back(attempt)}"
    if why := units.clean(attempt.why):
        text += f"{'.' if why[0].isupper() else ';'} {why}"
    spent = units.number(attempt.seconds)
    return text + (f" [{units.seconds(spent)}]" if spent is not None else "")


def left_lines(attempts: Sequence[Attempt]) -> list[str]:
    """What was never measured: a few with their reasons, more as their number and their names by kind of reason."""
    rows = attempt_words.folded(attempts)
    if len(rows) <= _FEW:
        return [attempt_line(replace(row, seconds=UNSET)) for row in rows]
    head = f"· {len(attempts)} rungs are not tried here; the page and --json give the reason for each"
    return [
        head,
        *(f"    {group}: {attempt_words.some(names)}" for group, names in attempt_words.grouped(attempts).items()),
    ]


def breakdown_lines(breakdown: Breakdown | None, *, bottleneck: bool = True) -> list[str]:
    """Where the time of a step goes: a bar for each part of at least 1 %, the largest first; what is the bottleneck."""
    if breakdown is None:
        return []
    step = units.number(breakdown.step_ns)
    lines = []
    for _, title, value in sorted(breakdowns.parts(breakdown), key=lambda part: -part[2]):
        share = value / step if step else 0.0
        if share >= 0.01:
            bar = "█" * max(1, round(30 * min(share, 1.0)))
            lines.append(f"{title:<21}{units.duration(value):>8}  {f'{share:.0%}':>4}  {bar}")
    if bottleneck and breakdown.bottleneck:
        clock = f" ({units.clean(breakdown.clock).upper()} time)" if breakdown.clock else ""
        lines.append(f"Bottleneck: {breakdowns.bottleneck(breakdown)}{clock}.")
    if breakdowns.per_step(breakdown):
        lines.append(f"{breakdowns.per_step(breakdown)}.")
    return lines + [f"Note: {units.clean(note)}" for note in breakdown.notes or ()]


def summary(run: ClimbRun, width: int | None = None, color: bool = False) -> str:
    """The whole climb on one screen: what was run, where its time went, every rung, and what to do now."""
    width = width or 100
    lines: list[str] = []

    def say(text: str, style: str = "", indent: int = 0) -> None:
        lines.extend(" " * indent + styled(line, style, color) for line in wrap(text, width - indent))

    def say_whole(text: str, style: str = "") -> None:
        lines.append(styled(text, style, color))

    def say_left(attempts: Sequence[Attempt]) -> None:
        for text in left_lines(attempts):
            say(text.lstrip(), "dim", len(text) - len(text.lstrip()))

    manifest = run.manifest
    head = [words.device(manifest), words.versions(manifest), units.clean(manifest.numerics)]
    say(words.workload(manifest), "bold")
    say(" · ".join([*(h for h in head[:2] if h), f"numerics {head[2] or 'unknown'}"]), "dim")
    _say_baseline(run, say)
    if run.attempts:
        measured = [row for row in run.attempts if row.log]
        if measured:
            say("")
            lines.extend(_table(measured, width, color))
            if len(measured) > 1:
                say(MEASURED, "dim", indent=2)
            checked = [check for row in measured if (check := attempt_words.worst(row))]
            if width >= _WIDE and any(check.ratio is not None for check in checked):
                say(ERROR, "dim", indent=2)
        say_left([row for row in run.attempts if not row.log])  # nothing for the columns but the reason
    tried, left = words.planned(run)
    if tried or left:
        say("")
        say_left(left)
        for rung in tried:
            say(prediction_line(rung))
    _say_outcome(run, say, say_whole)
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _say_baseline(run: ClimbRun, say: Callable[..., None]) -> None:
    baseline, before = run.baseline, words.before(run)
    say("")
    if not baseline or not before:
        say("The baseline has not been measured yet.")
        return
    memory = units.data_size(words.memory_before(run))
    alone = words.alone(run)
    say(f"Baseline: {units.duration_interval(before)} per step{f' ({alone})' if alone else ''}, peak memory {memory}")
    if words.floor(baseline):
        say(f"Roofline lower bound: {words.floor(baseline)}", indent=2)
    if baseline.steady is False:
        say("The step time did not settle during warm-up; read the figures with care.", "yellow", indent=2)
    without = [units.clean(n) for n in baseline.without_gradient or ()]
    if without:
        named = ", ".join(without[:3]) + (f" and {len(without) - 3} more" if len(without) > 3 else "")
        say(f"Parameters without a gradient: {named}", "yellow", indent=2)
    for line in breakdown_lines(breakdowns.as_measured(baseline.breakdown, before)):
        say(line, indent=2)


def _table(attempts: Sequence[Attempt], width: int, color: bool) -> list[str]:
    wide = width >= _WIDE
    columns = [Column("rung", wraps=True), Column("predicted", right=True), Column("measured", right=True)]
    if wide:
        columns += [Column("step,\nmemory", right=True), Column("error", right=True)]
    columns += [Column("verdict"), Column("why", wraps=True)]
    rows = []
    for attempt in attempts:
        verdict = units.clean(attempt.verdict)
        gain, check = attempt_words.speedup(attempt), attempt_words.worst(attempt)
        error = units.number(check.ratio) if check else None
        cells = [attempt_words.name(attempt), attempt_words.predicted(attempt)]
        cells.append("\n".join(t for t in (units.ratio(gain and gain.value), units.span(gain)) if t))
        if wide:
            cost = [
                units.duration(attempt_words.candidate_time(attempt)),
                units.data_size(attempt_words.candidate_memory(attempt)),
            ]
            cells.append("\n".join(cost) if cost != [units.NONE, units.NONE] else units.NONE)
            cells.append(units.NONE if error is None else units.ratio(error))
        style = _COLORS.get(verdict, "dim")
        row = [Cell(cell) for cell in cells]
        row.append(Cell(f"{attempt_words.MARKS.get(verdict, ' ')} {verdict}", style))
        rows.append([*row, Cell(units.clean(attempt.why))])
    return table_of(columns, rows, width, color)


def _say_outcome(run: ClimbRun, say: Callable[..., None], say_whole: Callable[..., None]) -> None:
    """say_whole: for what is copied, which no line break parts."""
    say("")
    if run.result:
        say(words.total(run), "bold green" if words.kept(run) else "bold")
        if words.kept(run):
            say(f"{words.kept_so_far(run)}: {', '.join(words.kept(run))}")
            say_whole(f"Recipe: {commands.recipe_path(run)}")
            say_whole(f"Measure it again: {commands.bench_command(run)}")
            if alone := commands.autocast_alone(run):
                say_whole(f"What autocast and a fused optimizer give alone: {alone}")
            say_whole(f"Use it in Python: {commands.apply_line(run)}")
            if names := commands.apply_names(run):
                say(f"  {names}")
    for text in (
        *words.shapes(run),
        words.slower_precision(run),
        words.noise(run),
        words.stopped(run),
        words.predictions(run),
    ):
        if text:
            say(text)
    if words.status(run):
        say(words.status(run), "yellow")
    if commands.way_on(run):
        say_whole(commands.way_on(run), "yellow")
    if run.directory:
        say_whole(f"Run directory: {units.clean(run.directory)}")
