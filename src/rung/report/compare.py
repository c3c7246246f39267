"""A comparison on the terminal: the verdict first, then what it rests on."""

from __future__ import annotations

from typing import Any

from rung.report import units
from rung.report.benchmarks import columns, difference_lines

SENTENCES = {
    "faster": "B is faster than A",
    "slower": "B is slower than A",
    "same": "B is the same as A within",
    "inconclusive": "it is not clear whether B is faster than A",
    "not equal": "B does not compute what A computes",
}
MORE_TIME = "Give it more time (--budget), or a machine with less noise, to see smaller changes."
NOT_COMPARED = "results not compared: whether the sides compute the same is not known; only their times are compared."
WORDS = {"undecided": "not clear"}
WAITED = 0.10  # a share of the time in which a side waited for a core, from which CPU time is shown beside wall time


def compare_lines(result: dict[str, Any]) -> list[str]:
    """The verdict, the sides, memory, and what a reader must know to believe it."""
    lines = [NOT_COMPARED] if result.get("results_compared") is False else []
    lines += [f"{name.upper()}  {said}" for name, said in sides_of(result).items()]
    if result["verdict"] == "not equal":
        return [*lines, *_not_equal(result)]
    if "ranking" in result:
        lines += ["", *columns(ranking_rows(result)), ""]
    lines += [f"{name:<7}{said}" for name, said in what_lines(result)]
    lines += difference_lines(result["differs"])
    lines += [f"note: {warning}" for warning in result["warnings"]]
    return lines + (_ranked(result) if "ranking" in result else _compared(result))


def verdict_lines(result: dict[str, Any]) -> list[str]:
    """The verdict, and what there is to know before the figures are read."""
    if result["verdict"] == "not equal":
        return _not_equal(result)
    lines = _ranked(result) if "ranking" in result else _compared(result)
    lines += [NOT_COMPARED] if result.get("results_compared") is False else []
    return lines + difference_lines(result["differs"])


def sides_of(result: dict[str, Any]) -> dict[str, str]:
    """What each side is."""
    sides = result["sides"] if "sides" in result else {name: result[name] for name in ("a", "b")}
    return {name: _side(side) for name, side in sides.items()}


def what_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, what there is to say) of times, memory, and what was verified."""
    rows, proof = [], result.get("verification")
    if result["verdict"] == "not equal":
        return []
    if "ranking" not in result:
        rows.append(
            ("step", ", ".join(f"{n.upper()} {units.duration_interval(t)}" for n, t in result["times"].items()))
        )
    if result["memory"]:
        rows.append(
            ("memory", ", ".join(f"{n.upper()} {units.data_size(units.peak(m))}" for n, m in result["memory"].items()))
        )
    if proof:
        at = " and in ".join("full precision" if p == "exact" else p for p in proof["precisions"])
        rows.append(("equal", f"yes: all {proof['checks']} comparisons of what a step gives and changes, in {at}"))
    return rows


def _not_equal(result: dict[str, Any]) -> list[str]:
    proof = result.get("verification")
    sentence = SENTENCES["not equal"].replace("B", result.get("not_equal", "B"), 1)
    return [f"{sentence}:", *(f"  {f}" for f in proof["failures"][:5])] if proof else []


def _compared(result: dict[str, Any]) -> list[str]:
    verdict, comparison = result["verdict"], result["comparison"]
    sentence = SENTENCES[verdict] + (f" {_share(result['margin'])}" if verdict == "same" else "")
    speedup, evidence = comparison["speedup"], _evidence(result, comparison["restarts"])
    sure = (
        f" at {comparison['confidence']:.1%} confidence"
        if units.span(speedup)
        else ", of which nothing tells how sure it is"
    )
    lines = [f"{sentence}: {units.interval(speedup)}{sure}, {evidence}."]
    visible = comparison["visible"]
    if visible is not None and visible < 1:  # more is no measurement
        lines.append(f"The smallest change that this could have seen: {_share(visible)}.")
    cpu, waited = result.get("cpu_time"), (result.get("waited") or {}).values()
    if cpu and max(waited, default=0.0) > WAITED:
        lines.append(
            f"In CPU time, which leaves out waiting for a core and adds up threads: {units.interval(cpu['speedup'])}."
        )
    if verdict == "inconclusive":
        lines.append(MORE_TIME)
    return lines


def ranking_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """A heading, and the sides from the fastest to the slowest, each against the first."""
    ranking, first = result["ranking"], next(iter(result["sides"])).upper()
    against = {p["b"]: p for p in ranking["pairs"] if p["a"] == first}
    rows: list[tuple[str, ...]] = [("rank", "", "median step", f"speedup over {first}", f"against {first}")]
    for name in sorted(ranking["ranks"], key=lambda n: (ranking["ranks"][n], result["times"][n.lower()]["value"])):
        pair = against.get(name)
        shared = list(ranking["ranks"].values()).count(ranking["ranks"][name]) > 1
        rows.append((
            f"{ranking['ranks'][name]}{'=' if shared else ''}", name, units.duration_interval(result["times"][name.lower()]),
            units.interval(pair["speedup"]) if pair else "", WORDS.get(pair["answer"], pair["answer"]) if pair else "",
        ))  # fmt: skip
    return rows


def _ranked(result: dict[str, Any]) -> list[str]:
    """Who is first, and which pairs could not be told apart."""
    ranking = result["ranking"]
    best = [name for name, place in ranking["ranks"].items() if place == 1]
    same = [f"{p['a']} and {p['b']}" for p in ranking["pairs"] if p["answer"] == "same"]
    open_ = [f"{p['a']} and {p['b']}" for p in ranking["pairs"] if p["answer"] == "undecided"]
    lines = [
        f"{best[0]} is the fastest" if len(best) == 1 else f"{', '.join(best[:-1])} and {best[-1]} are the fastest"
    ]
    lines[0] += (
        f": all {len(ranking['pairs'])} pairs judged together (Holm) at {ranking['confidence']:.1%} confidence, "
        f"{_evidence(result, ranking['restarts'])}."
    )
    if same:
        lines.append(f"The same within {_share(ranking['margin'])}: {'; '.join(same)}.")
    return lines + ([f"Not told apart: {'; '.join(open_)}. {MORE_TIME}"] if open_ else [])


def _evidence(result: dict[str, Any], n: int) -> str:
    """Such as "5 restarts of both" or "50 rounds in one process"."""
    unit = f"{n} {result.get('unit', 'restart')}{'s' if n != 1 else ''}"
    if result.get("unit") == "round":
        return f"{unit} in one process"
    return f"{unit} of {'all' if 'ranking' in result else 'both'}"


def _side(side: dict[str, Any]) -> str:
    parts = [side["target"], *(f"--{k} {v}" for k, v in side["options"].items())]
    parts += [f"with {' + '.join(side['rungs'])}"] if side["rungs"] else []
    parts += [f"{k}={v}" for k, v in side["env"].items()]
    return units.clean(" ".join(parts))


def _share(value: float) -> str:
    return f"{100 * value:.2g} %"
