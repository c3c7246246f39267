"""A comparison on the terminal: the verdict first, then what it rests on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rung.plan import in_words
from rung.records.compare import ComparedSide, Comparison, Ranked, Ranking
from rung.records.measured import Compared
from rung.report import units
from rung.report.benchmarks import columns, difference_lines

SENTENCES = {
    "faster": "B is faster than A",
    "slower": "B is slower than A",
    "same": "B is the same as A within",
    "inconclusive": "it is not clear whether B is faster than A",
    "not equal": "B does not compute what A computes",
}
MORE_TIME = "To detect smaller changes, raise --budget or use a quieter machine."
NOT_COMPARED = "results not compared, only times: the sides may compute different things."
WORDS = {"undecided": "not clear"}
WAITED = 0.10  # a share of the time in which a side waited for a core, from which CPU time is shown beside wall time


def compare_lines(result: Comparison | Ranking) -> list[str]:
    """The verdict, the sides, memory, and what a reader must know to believe it."""
    lines = [NOT_COMPARED] if not result.results_compared else []
    lines += [f"{name.upper()}  {said}" for name, said in sides_of(result).items()]
    if result.verdict == "not equal":
        return [*lines, *_answer(result)]
    if isinstance(result, Ranking):
        lines += ["", *columns(ranking_rows(result)), ""]
    lines += [f"{name:<7}{said}" for name, said in what_lines(result)]
    lines += difference_lines(result.differs or {})
    lines += [f"note: {warning}" for warning in result.warnings or ()]
    return lines + _answer(result)


def verdict_lines(result: Comparison | Ranking) -> list[str]:
    """The verdict, and what there is to know before the figures are read."""
    lines = _answer(result)
    if result.verdict == "not equal":
        return lines
    lines += [NOT_COMPARED] if not result.results_compared else []
    return lines + difference_lines(result.differs or {})


def sides_of(result: Comparison | Ranking) -> dict[str, str]:
    """What each side is."""
    sides = result.sides if isinstance(result, Ranking) else {"a": result.a, "b": result.b}
    return {name: _side(side) for name, side in sides.items()}


def what_lines(result: Comparison | Ranking) -> list[tuple[str, str]]:
    """(name, what there is to say) of times, memory, and what was verified."""
    rows, proof = [], result.verification
    if result.verdict == "not equal":
        return []
    if isinstance(result, Comparison):
        times = (f"{n.upper()} {units.duration_interval(t)}" for n, t in (result.times or {}).items())
        rows.append(("step", ", ".join(times)))
    if result.ranks:
        rows.append(("ranks", f"{result.ranks} of each side; a step ends with the slowest"))
    if result.memory:
        memory = (f"{n.upper()} {units.data_size(units.peak(m))}" for n, m in result.memory.items())
        rows.append(("memory", ", ".join(memory)))
    if proof:
        at = " and in ".join(map(in_words, proof.precisions))
        rows.append(("equal", f"yes, by all {proof.checks} comparisons of a step's results and updates, in {at}"))
    return rows


def _answer(result: Comparison | Ranking) -> list[str]:
    """The verdict with its evidence, or what was found before anything was timed."""
    if isinstance(result, Comparison) and result.comparison:
        return _compared(result, result.comparison)
    if isinstance(result, Ranking) and result.ranking:
        return _ranked(result, result.ranking)
    proof = result.verification
    sentence = SENTENCES["not equal"].replace("B", result.not_equal or "B", 1)
    failures = [failure.replace("the untouched model's own", "A's own") for failure in proof.failures] if proof else []
    return [f"{sentence}, and nothing was timed:", *_once_each(failures)] if proof else []


def _once_each(failures: Sequence[str]) -> list[str]:
    """The first of those that say the same thing of another shape or input, a few of them, and how many there are besides."""
    found: dict[str, str] = {}
    for failure in failures:  # they differ in figures and in what stands in brackets
        found.setdefault(re.split(r"(?<= is off by )|\(", failure)[0], failure)
    more = len(failures) - min(len(found), 5)
    return [
        *(f"  {failure}" for failure in list(found.values())[:5]),
        *([f"  and at least {more} more"] if more else []),
    ]


def _compared(result: Comparison, comparison: Compared) -> list[str]:
    verdict, speedup = result.verdict, comparison.speedup
    if result.a == result.b and verdict in ("faster", "slower"):
        return [
            f"A and B are the same, and this machine shows {units.interval(speedup)} between them, {_evidence(result, comparison.restarts)}: "
            "trust no smaller difference here."
        ]
    sentence = SENTENCES[verdict] + (f" {_share(result.margin)}" if verdict == "same" else "")
    sure = f" at {comparison.confidence:.1%} confidence" if units.span(speedup) else ", without an interval"
    lines = [f"{sentence}: {units.interval(speedup)}{sure}, {_evidence(result, comparison.restarts)}."]
    visible = comparison.visible
    if visible is not None and visible < 1:  # more is no measurement
        lines.append(f"A change of {_share(visible)} would have been found in four of five such comparisons.")
    if result.cpu_time and max((result.waited or {}).values(), default=0.0) > WAITED:
        lines.append(
            "In CPU time, which leaves out waiting for a core and adds up threads: "
            f"{units.interval(result.cpu_time.speedup)}."
        )
    if verdict == "inconclusive":
        lines.append(MORE_TIME)
    return lines


def ranking_rows(result: Ranking) -> list[tuple[str, ...]]:
    """A heading, and the sides from the fastest to the slowest, each against the first; none where nothing was timed."""
    ranking, times, first = result.ranking, result.times, next(iter(result.sides)).upper()
    if not ranking or not times:
        return []
    against = {p.b: p for p in ranking.pairs if p.a == first}
    rows: list[tuple[str, ...]] = [("rank", "", "median step", f"speedup over {first}", f"against {first}")]
    for name in sorted(ranking.ranks, key=lambda n: (ranking.ranks[n], times[n.lower()].value)):
        pair, place = against.get(name), ranking.ranks[name]
        shared = list(ranking.ranks.values()).count(place) > 1
        rows.append((
            f"{place}{'=' if shared else ''}", name, units.duration_interval(times[name.lower()]),
            units.interval(pair.speedup) if pair else "", WORDS.get(pair.answer, pair.answer) if pair else "",
        ))  # fmt: skip
    return rows


def _ranked(result: Ranking, ranking: Ranked) -> list[str]:
    """Who is first, and which pairs could not be told apart."""
    best = [name for name, place in ranking.ranks.items() if place == 1]
    same = [f"{p.a} and {p.b}" for p in ranking.pairs if p.answer == "same"]
    open_ = [f"{p.a} and {p.b}" for p in ranking.pairs if p.answer == "undecided"]
    lines = [
        f"{best[0]} is the fastest" if len(best) == 1 else f"{', '.join(best[:-1])} and {best[-1]} are the fastest"
    ]
    lines[0] += (
        f": all {len(ranking.pairs)} pairs judged together (Holm) at {ranking.confidence:.1%} confidence, "
        f"{_evidence(result, ranking.restarts)}."
    )
    if same:
        lines.append(f"The same within {_share(ranking.margin)}: {'; '.join(same)}.")
    return lines + ([f"No clear difference: {'; '.join(open_)}. {MORE_TIME}"] if open_ else [])


def _evidence(result: Comparison | Ranking, n: int) -> str:
    """Such as "5 restarts of both" or "50 rounds in one process"."""
    unit = f"{n} {result.unit or 'restart'}{'s' if n != 1 else ''}"
    if result.unit == "round":
        return f"{unit} in one process"
    return f"{unit} of {'all' if isinstance(result, Ranking) else 'both'}"


def _side(side: ComparedSide) -> str:
    parts = [side.target, *(f"--{k} {v}" for k, v in side.options.items())]
    parts += [f"at {side.revision}"] if side.revision else []
    parts += [f"with {' + '.join(side.rungs)}"] if side.rungs else []
    parts += [f"{k}={v}" for k, v in side.env.items()]
    return units.clean(" ".join(parts))


def _share(value: float | None) -> str:
    return units.NONE if value is None else f"{100 * value:.2g}%"
