"""A climb on the terminal: one plain line for each event while it runs, and the summary at the end."""

from __future__ import annotations

from typing import Any

from rung.report import units, words
from rung.report.layout import Cell, Column, styled, table_of, wrap

_COLORS = {"kept": "green", "reverted": "yellow", "inconclusive": "yellow", "failed": "red"}
_FEW = 5  # reasons that are told one by one
_WIDE = 92  # below this, the columns that matter least give their room to the reason
NOISE = (
    "error ÷ noise: the difference from the reference that came nearest to its limit, over that of the untouched model."
)


def prediction_line(attempt: dict[str, Any]) -> str:
    """What is about to be tried and what it should give: printed before the rung is measured."""
    title, changes = units.clean(attempt.get("title")), units.clean(attempt.get("changes"))
    what = ": ".join(part for part in (title, changes) if part).rstrip(".")
    text = f"{words.name(attempt)} — {what}" if what else words.name(attempt)
    prediction = units.section(attempt, "prediction")
    if not prediction:
        return f"{text}. No prediction."
    why = words.rests_on(attempt)
    return f"{text}. Predicted {words.predicted(attempt)}" + (f": {why}" if why else "")


def mode_line(mode: dict[str, Any]) -> str:
    """One plain mode of torch.compile, once it was timed."""
    title, ready = units.clean(mode.get("title")), units.seconds(units.number(mode.get("ready_seconds")) or 0.0)
    if mode.get("error"):
        return f"  {title}: {units.clean(mode['error'])}"
    step = units.duration(mode.get("step_ns"))
    return f"  {title}: {units.ratio(mode.get('speedup'))}, {step} a step, ready after {ready}"


def answer_line(answer: dict[str, Any]) -> str:
    """The best recipe so far, each time that it is written."""
    status, names = units.clean(answer.get("status")), " + ".join(units.clean(n) for n in answer.get("kept") or [])
    return f"  recipe.toml: {names}, {units.interval(answer.get('speedup'))} over the untouched model, {status}"


def attempt_line(attempt: dict[str, Any]) -> str:
    """How it went: printed when the rung has its verdict."""
    verdict = units.clean(attempt.get("verdict")) or "no verdict"
    text = f"{words.MARKS.get(verdict, ' ')} {words.name(attempt)}: {verdict}"
    if words.speedup(attempt):
        text += f", {units.interval(words.speedup(attempt))}"
        if attempt.get("forecast"):
            place = "inside" if attempt["forecast"] == "inside" else units.clean(attempt["forecast"])
            text += f", {place} the prediction {words.predicted(attempt)}"
    if verdict == "kept" and words.pays_back(attempt):
        text += f"; {words.pays_back(attempt)}"
    why = units.clean(attempt.get("why"))
    spent = units.number(attempt.get("seconds"))
    return text + (f". {why}" if why else "") + (f" [{units.seconds(spent)}]" if spent is not None else "")


def left_lines(attempts: list[dict[str, Any]]) -> list[str]:
    """What was never measured: a few with their reasons, more as their number and their names by kind of reason."""
    rows = words.folded(attempts)
    if len(rows) <= _FEW:
        return [attempt_line({**row, "seconds": None}) for row in rows]
    head = f"· {len(attempts)} rungs are not tried here; why, one by one, is on the page and in --json"
    return [head, *(f"    {group}: {', '.join(names)}" for group, names in words.grouped(attempts).items())]


def breakdown_lines(breakdown: Any, *, bottleneck: bool = True) -> list[str]:
    """Where the time of a step goes: a bar for each part of at least 1 %, the largest first; what is the bottleneck."""
    record = units.section(breakdown)
    step = units.number(record.get("step_ns"))
    lines = []
    for _, title, value in sorted(words.parts(record), key=lambda part: -part[2]):
        share = value / step if step else 0.0
        if share >= 0.01:
            bar = "█" * max(1, round(30 * min(share, 1.0)))
            lines.append(f"{title:<21}{units.duration(value):>8}  {f'{share:.0%}':>4}  {bar}")
    if bottleneck and record.get("bottleneck"):
        clock = f" ({units.clean(record['clock']).upper()} time)" if record.get("clock") else ""
        lines.append(f"Bottleneck: {words.bottleneck(record)}{clock}.")
    if words.per_step(record):
        lines.append(f"{words.per_step(record)}.")
    return lines + [f"Note: {units.clean(note)}" for note in record.get("notes") or []]


def summary(data: dict[str, Any], width: int | None = None, color: bool = False) -> str:
    """The whole climb on one screen: what was run, where its time went, every rung, and what to do now."""
    width = width or 100
    lines: list[str] = []

    def say(text: str, style: str = "", indent: int = 0) -> None:
        lines.extend(" " * indent + styled(line, style, color) for line in wrap(text, width - indent))

    def say_left(attempts: list[dict[str, Any]]) -> None:
        for text in left_lines(attempts):
            say(text.lstrip(), "dim", len(text) - len(text.lstrip()))

    manifest = units.section(data, "manifest")
    head = [words.device(manifest), words.versions(manifest), units.clean(manifest.get("numerics"))]
    say(words.workload(manifest), "bold")
    say(" · ".join([*(h for h in head[:2] if h), f"numerics {head[2] or 'unknown'}"]), "dim")
    _say_baseline(data, say)
    if words.attempts(data):
        rows = words.attempts(data)
        measured = [row for row in rows if row.get("log")]
        if measured:
            say("")
            lines.extend(_table(measured, width, color))
            if width >= _WIDE and any(words.worst(row).get("ratio") is not None for row in measured):
                say(NOISE, "dim", indent=2)
        say_left([row for row in rows if not row.get("log")])  # nothing for the columns but the reason
    tried, left = words.planned(data)
    if tried or left:
        say("")
        say_left(left)
        for rung in tried:
            say(prediction_line(rung))
    _say_outcome(data, say)
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _say_baseline(data: dict[str, Any], say: Any) -> None:
    baseline = units.section(data, "baseline")
    say("")
    if not baseline:
        say("The baseline has not been measured yet.")
        return
    memory = units.data_size(units.peak(baseline.get("memory")))
    before = words.before(data)
    say(f"Baseline: {units.duration_interval(before)} per step, peak memory {memory}")
    if words.floor(baseline):
        say(f"Least time for its arithmetic: {words.floor(baseline)}", indent=2)
    if baseline.get("steady") is False:
        say("The step time did not settle during warm-up; read the figures with care.", "yellow", indent=2)
    without = [units.clean(n) for n in baseline.get("without_gradient") or []]
    if without:
        named = ", ".join(without[:3]) + (f" and {len(without) - 3} more" if len(without) > 3 else "")
        say(f"Parameters without a gradient: {named}", "yellow", indent=2)
    for line in breakdown_lines(words.as_measured(baseline.get("breakdown"), before.get("value"))):
        say(line, indent=2)


def _table(attempts: list[dict[str, Any]], width: int, color: bool) -> list[str]:
    wide = width >= _WIDE
    columns = [Column("rung", wraps=True), Column("predicted", right=True), Column("measured", right=True)]
    if wide:
        columns += [Column("step,\nmemory", right=True), Column("error ÷\nnoise", right=True)]
    columns += [Column("verdict"), Column("why", wraps=True)]
    rows = []
    for attempt in attempts:
        verdict = units.clean(attempt.get("verdict"))
        gain = words.speedup(attempt)
        error = units.number(words.worst(attempt).get("ratio"))
        cells = [words.name(attempt), words.predicted(attempt)]
        cells.append("\n".join(t for t in (units.ratio(gain.get("value")), units.span(gain)) if t))
        if wide:
            cost = [
                units.duration(words.candidate_time(attempt)),
                units.data_size(words.candidate_memory(attempt)),
            ]
            cells.append("\n".join(cost) if cost != [units.NONE, units.NONE] else units.NONE)
            cells.append(units.NONE if error is None else units.digits(error, 2))
        style = _COLORS.get(verdict, "dim")
        row = [Cell(cell) for cell in cells]
        row.append(Cell(f"{words.MARKS.get(verdict, ' ')} {verdict}", style))
        rows.append([*row, Cell(units.clean(attempt.get("why")))])
    return table_of(columns, rows, width, color)


def _say_outcome(data: dict[str, Any], say: Any) -> None:
    result = units.section(data, "result")
    say("")
    if result:
        say(words.total(data), "bold green" if words.kept(data) else "bold")
        if words.kept(data):
            say(f"Kept: {', '.join(words.kept(data))}")
            say(f"Recipe: {words.recipe_path(data)}")
            say(f"Measure it again: {words.bench_command(data)}")
            say(f"Use it in Python: {words.apply_line(data)}")
    for text in (*words.shapes(data), words.noise(data), words.stopped(data), words.predictions(data)):
        if text:
            say(text)
    if words.status(data):
        say(words.status(data), "yellow")
    if data.get("directory"):
        say(f"Run directory: {units.clean(data['directory'])}")
