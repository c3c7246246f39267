"""The tables of the zoo as Markdown, made of one results file."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import score
from rows import Results, Row, Timed

from rung.rungs import BY_NAME

NONE = "–"


def table(results: Results) -> str:
    parts = [summary(results), *_sections(results.rows)]
    return "\n\n".join(part for part in parts if part)


def summary(results: Results) -> str:
    """What was run of what, on what, and the figures that the zoo is held to."""
    rows = results.rows
    lines = []
    if results.header:
        done = {row.case for row in rows if row.done}
        families = collections.Counter(case.partition("/")[0] for case in done)
        counts = ", ".join(f"{count} {family}" for family, count in sorted(families.items()))
        drawn_ = f"{len(done)} of {len(results.header.order)} cases were run{f' ({counts})' if counts else ''}"
        lines.append(
            f"{drawn_}, in an order that seed {results.header.seed} drew before the first run on {results.header.began}."
        )
    for device, versions in {(row.device, tuple(row.versions.items())) for row in rows if row.device}:
        lines.append(f"{device}: {', '.join(f'{name} {version}' for name, version in versions)}.")
    if any(row.toy for row in rows):
        lines.append("**At toy size**: these times try the runner and say nothing of the models.")
    sound, climbs = score.covered(rows)
    crashes = sum(score.crashed(row) for row in rows)
    lines.append(f"Climbs that end with a recipe or a reason: {sound} of {climbs}; crashes of Rung: {crashes}.")
    return "\n".join(f"- {line}" for line in lines)


def _sections(rows: Sequence[Row]) -> list[str]:
    found = []
    groups = score.grouped(rows)
    if groups:
        found += [
            "## Against the best without Rung",
            _means(groups),
            *(_models(key, group) for key, group in groups.items()),
        ]
    if levels := score.levels(rows):
        found += ["## KernelBench", _levels(levels)]
    if climbed := score.climbed(rows):
        found += ["## Rungs", _rungs(climbed)]
    if left := [row for row in rows if row.reason]:
        found += ["## Not run", "\n".join(f"- {row.case}: {row.reason}" for row in left)]
    if failed := [(row, mode) for row in rows for mode in row.plain if mode.error]:
        found += [
            "## Modes of torch.compile that did not run",
            "\n".join(f"- {row.case}, {mode.mode}: {mode.error}" for row, mode in failed),
        ]
    if crashed := [row for row in rows if row.climb and row.climb.crash]:
        found += ["## Crashes", *(f"{row.case}\n\n```\n{row.climb.crash}\n```" for row in crashed if row.climb)]
    return found


def _means(groups: dict[tuple[float, str], list[Row]]) -> str:
    """A line a budget and variant: the figures over its models."""
    body = []
    for (budget, variant), rows in groups.items():
        below, shown, known = score.share_below(rows)
        seconds = [
            [score.answer_after(row, least) for row in score.climbed(rows)] for least in ("provisional", "verified")
        ]
        memory = score.geometric_mean(score.memory_ratio(row) for row in rows)
        body.append([
            f"{budget:.0f} s", variant, str(known),
            _mean(score.geometric_mean(score.over_best(row) for row in rows)),
            _mean(score.geometric_mean(score.over(row, score.best_mode(row)) for row in rows)),
            _mean(score.geometric_mean(_in_the_climb(row) for row in rows)),
            f"{below} of {known} ({shown} by interval)",
            *(f"{_seconds(score.quantile(s, 0.5))}, {_seconds(score.quantile(s, 0.9))}" for s in seconds),
            f"{_mean(memory)}, {score.more_memory(rows)} need more",
        ])  # fmt: skip
    head = ["budget", "variant", "models", "over the best of eager and plain modes (95 % over models)", "over the best plain mode",
            "over the climb's best plain candidate", "below 0.99", "first recipe: median, 90 %", "verified: median, 90 %", "peak memory over eager"]  # fmt: skip
    return _markdown(head, body)


def _in_the_climb(row: Row) -> float | None:
    return ((row.climb.result.get("over_plain") or {}) if row.climb else {}).get("value")


def _models(key: tuple[float, str], rows: Sequence[Row]) -> str:
    budget, variant = key
    body = []
    for row in sorted(rows, key=lambda row: row.name):
        if row.reason:
            continue
        rival, mode, ours = score.rival(row), score.best_mode(row), score.mine(row)
        count = row.eager.parameters if row.eager else None
        body.append([
            row.name, f"{count / 1e6:,.1f} M" if count else NONE, row.numerics, _step(row.eager),
            f"{_step(mode)} {mode.mode}, {_seconds(mode.ready_s)}" if mode else NONE,
            _step(ours), _times(score.over(row, rival)), _interval(row),
            f"{_gib(row.eager)} → {_gib(ours)}", _seconds(score.answer_after(row, "provisional")),
            f"{ratio:.1f}" if (ratio := score.distance(row)) is not None else NONE,
            score.status(row) or NONE, ", ".join(score.kept(row)) or (row.climb.why if row.climb else "not climbed yet"),
        ])  # fmt: skip
    head = ["model", "parameters", "precision", "eager", "best plain mode, ready after", "Rung", "over the best of these",
            "over the climb's best plain candidate (95 %)", "peak memory, GiB", "first recipe", "error over the untouched model's own", "status", "kept, or why nothing was"]  # fmt: skip
    return f"### {variant}, {budget:.0f} s\n\n{_markdown(head, body)}"


def _levels(levels: dict[tuple[str, str], list[Row]]) -> str:
    body = []
    for (level, numerics), rows in levels.items():
        shares = [
            score.fast(rows, p, ratio)
            for ratio in (score.over_eager, score.over_mode, score.over_best)
            for p in (1.0, 2.0)
        ]
        mean = score.geometric_mean(score.over_eager(row) for row in rows)
        body.append(
            [level, numerics, str(len(rows)), *(NONE if s is None else f"{s:.0%}" for s in shares), _mean(mean)]
        )
    over = ["eager", "torch.compile", "the best of both"]
    head = [
        "level",
        "precision",
        "problems",
        *(f"fast_{p} over {name}" for name in over for p in (1, 2)),
        "geometric mean over eager",
    ]
    return _markdown(head, body)


def _rungs(rows: Sequence[Row]) -> str:
    """A line a rung: how many climbs it came to what in, and where it was kept."""
    body = []
    for rung, of in score.matrix(rows, BY_NAME).items():
        counts = collections.Counter(of.values())
        where = [label.partition(",")[0] for label, outcome in of.items() if outcome == score.KEPT]
        body.append(
            [
                rung,
                *(str(counts[o] or "") for o in score.OUTCOMES),
                ", ".join(list(dict.fromkeys(where))[:6]) + (" …" if len(set(where)) > 6 else ""),
            ]
        )
    return _markdown(["rung", *score.OUTCOMES, "kept in"], sorted(body, key=lambda line: -int(line[1] or 0)))


def _step(found: Timed | None) -> str:
    return f"{found.step_ms:.3g} ms" if found and found.step_ms else NONE


def _gib(found: Timed | None) -> str:
    return f"{found.peak_bytes / 2**30:.2f}" if found and found.peak_bytes else NONE


def _times(ratio: float | None) -> str:
    return f"{ratio:.2f}×" if ratio else NONE


def _mean(found: score.Mean | None) -> str:
    return str(found) if found else NONE


def _seconds(value: float | None) -> str:
    return "never" if value is None or value == float("inf") else NONE if value != value else f"{value:.0f} s"


def _interval(row: Row) -> str:
    over = (row.climb.result.get("over_plain") or {}) if row.climb else {}
    if not over.get("value"):
        return NONE
    return f"{over['value']:.2f}×" + (f" ({over['low']:.2f}–{over['high']:.2f})" if over.get("low") is not None else "")


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
