"""A measurement on the terminal, in a table, in a CSV file."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rung.report import units

BARS = "▁▂▃▄▅▆▇█"
BINS = 40
MODES = {"call": "one call"}
FEWEST = 6  # samples: the median lies between the smallest and the largest in 1 - 2 / 2**6 of all cases, which is 95 % or more
WORK = (("flops", "FLOP/s"), ("bytes", "B/s"))


def bench_lines(result: dict[str, Any]) -> list[str]:
    """One measurement: median and its interval, how the samples lie, throughput, memory; compile time apart."""
    lines = [heading(result)]
    if not result["measured"]:
        lines.append(impression(result))
    for name, said in bench_rows(result):
        lines.append(f"{name:<14}{said}")
        if name == "range":
            lines.append(f"histogram     {histogram(result['samples'])}")
            lines.append(f"over time     {series(result['samples'])}")
    return lines + [f"note: {note}" for note in result["notes"]]


def heading(result: dict[str, Any]) -> str:
    """What was measured, and where: "ops:softmax, one call, on MI300X"."""
    device = result["environment"]["device"]["name"]
    return f"{result['workload']}, {MODES.get(result['mode'], result['mode'])}, on {device}" + (
        f", with {' + '.join(result['rungs'])}" if result["rungs"] else ""
    )


def impression(result: dict[str, Any]) -> str:
    """What to say of so few runs that they are no measurement."""
    few = "it runs" if len(result["samples"]) == 1 else "a first impression"
    return f"{few}: {units.duration(result['time']['value'])} a step. This is no measurement; leave --preset {result['preset']} out."


def bench_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, what there is to say) of everything but the samples themselves; a row without a name goes on with the one above."""
    first_run = units.seconds(result["first_run_seconds"])
    if not result["measured"]:
        return [("first run", first_run)]
    summary, step = result["summary"], result["time"]["value"]
    sure = "95 % interval or wider" if result.get("trend") else "95 % interval"
    count = len(result["samples"])
    of = f"{sure}, {count} samples" if _enough(result) else f"the range of {count} samples, too few for a 95 % interval"
    rows = [("median step", f"{units.duration_interval(result['time'])}, {of}"), *_timed_rows(result["timer"])]
    if not result["reached"]:
        rows.append(("", f"{_short_of(result)}: give it more --time"))
    rows += _climb_rows(units.section(result, "climb"))
    if summary["mean"]:
        rows.append(
            ("mean", f"{units.duration_interval(summary['mean'])}, standard deviation {units.duration(summary['std'])}")
        )
    known = [f"{p} {units.duration(summary[p]['value'])}" for p in ("p90", "p99") if summary[p]]
    few_for = [p for p in ("p90", "p99") if not summary[p]]
    spread = f"{units.duration(summary['min'])} to {units.duration(summary['max'])}" + "".join(f", {k}" for k in known)
    rows.append(("range", spread + (f" ({' and '.join(few_for)} would need more samples)" if few_for else "")))
    rows += [
        ("throughput", f"{units.digits(n / step * 1e9)} {what}/s")
        for what, n in (("samples", result["samples_per_step"]), ("tokens", result["tokens_per_step"]))
        if n
    ]
    return [
        *rows,
        *_work_rows(result),
        ("first run", f"{first_run} (compiling and loading; not part of the median)"),
        (
            "warm-up",
            f"{result['warm_up_runs']} runs and {len(result['discarded'])} discarded samples, {'then steady' if result['steady'] else 'and never steady'}",
        ),
        ("peak memory", units.data_size(units.peak(result["memory"]))),
        *_sensor_rows(units.section(result, "sensors")),
    ]


def _climb_rows(climb: dict[str, Any]) -> list[tuple[str, str]]:
    """What the recipe's own climb measured, and whether one process more agrees with that."""
    if not climb:
        return []
    count, spread = climb["restarts"], units.percent(climb["spread"])
    differ = f"whose processes differed by up to {spread}" if count > 1 else f"and processes differ by some {spread}"
    away = f"{units.percent(abs(climb['slower']))} {'slower' if climb['slower'] > 0 else 'faster'}"
    explained = "their intervals meet, with what processes differ by"
    meant = explained if climb["agrees"] else "more than that explains: compare load, clocks and settings with then"
    return [
        (
            "in the climb",
            f"{units.duration_interval(climb['time'])} in {count} restart{'s' if count > 1 else ''}, {differ}"
            + (f"; recipe: {units.clean(climb['status'])}" if climb.get("status") else ""),
        ),
        ("", f"this one process is {away}; {meant}"),
    ]


def _short_of(result: dict[str, Any]) -> str:
    """Why it was not the precision that ended it: an interval that is narrow may be of a stretch that was not steady."""
    within, time = f"within ±{100 * result['precision']:.2g} %", result["time"]
    narrow = time["high"] - time["low"] <= 2 * result["precision"] * time["value"]
    return f"{within}, but not steady" if narrow and not result["steady"] else f"not yet {within}"


def _work_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """FLOP/s and bytes/s and how near they come to the chip's, as far as they are known."""
    work, rows = units.section(result, "work"), []
    if work.get("flops_per_second"):
        share = f", {units.percent(work['of_peak'])} of the chip's {work['precision']} rate" if work["of_peak"] else ""
        rows.append(("arithmetic", units.rate(work["flops_per_second"], "FLOP/s") + share))
    if work.get("bytes_per_second"):
        of = work["of_bandwidth"]
        share = f", {units.percent(of)} of the chip's memory bandwidth" if of else ""
        rows.append(
            (
                "memory",
                units.rate(work["bytes_per_second"], "B/s")
                + share
                + (": caches served the rest" if of and of > 1 else ""),
            )
        )
    return rows


def _timed_rows(timer: dict[str, Any] | None) -> list[tuple[str, str]]:
    """How it was timed, where there is a choice."""
    if not timer or (timer["name"] == "clock" and not timer["cold"]):
        return []
    said = {
        "clock": "the CPU's clock around every call",
        "events": "events between the steps, as the host launches them",
        "graph": f"slope between graphs of {timer.get('calls', 0)} and {2 * timer.get('calls', 0)} calls: launches hidden",
        "batch": f"{timer.get('calls', 0)} calls at a time, queued up beforehand: launches hidden",
    }[timer["name"]]
    if timer["name"] == "graph" and timer["cold"]:
        said = f"what {timer['calls']} calls add to a graph of as many flushes: launches hidden"
    caches = (
        f"cold caches ({units.data_size(timer['cold'])} written before every call)" if timer["cold"] else "hot caches"
    )
    rows = [("timed by", f"{said}; {caches}")]
    if timer["name"] in ("graph", "batch"):
        rows.append(("", f"launching one from the host takes {units.duration(timer['launch_ns'])}"))
    return rows


def _sensor_rows(seen: dict[str, Any]) -> list[tuple[str, str]]:
    if not seen:
        return []
    parts = []
    if seen.get("power") is not None:
        limit = f" of {units.digits(seen['limit'])} W" if seen.get("limit") else ""
        parts.append(f"{units.digits(seen['power'])} W{limit}")
    if seen.get("energy_per_step") is not None:
        parts.append(f"{units.energy(seen['energy_per_step'])} a step")
    if seen.get("core"):
        clock = seen["core"]
        span = f" ({clock['low']:.0f} – {clock['high']:.0f})" if clock["low"] != clock["high"] else ""
        parts.append(f"{clock['median']:.0f} MHz{span}")
    if seen.get("celsius"):
        parts.append(f"{seen['celsius']['high']:.0f} °C")
    return [("GPU", f"{', '.join(parts)} ({seen['source']}, {units.seconds(seen['seconds'])})")] if parts else []


def histogram(samples: Sequence[float]) -> str:
    """The distribution in one line, from the fastest sample to the slowest but the last 2 %."""
    ordered = sorted(samples)
    low, high = ordered[0], ordered[min(len(ordered) - 1, int(0.98 * len(ordered)))]
    if high <= low:
        return BARS[-1]
    counts = [0] * min(BINS, max(5, len(ordered) // 3))
    for value in ordered:
        counts[min(len(counts) - 1, int((value - low) / (high - low) * len(counts)))] += 1
    top = max(counts)
    bars = "".join(BARS[round(c / top * (len(BARS) - 1))] if c else " " for c in counts)
    ends = [units.duration(low), units.duration(high)]
    if ends[0] == ends[1]:  # so close together that only further digits tell them apart
        ends = [f"{low:,.{decimals}f} ns" for low, decimals in ((v, 2 if high < 1e5 else 0) for v in (low, high))]
    return f"{ends[0]} |{bars}| {ends[1]}"


def series(samples: Sequence[float]) -> str:
    """The medians of up to 40 stretches of time in one line, between the fastest and the slowest of them."""
    count = min(BINS, len(samples))
    edges = [k * len(samples) // count for k in range(count + 1)]
    middles = [statistics.median(samples[a:b]) for a, b in pairwise(edges)]
    low, high = min(middles), max(middles)
    reach = (high - low) or 1.0
    bars = "".join(BARS[round((m - low) / reach * (len(BARS) - 1))] for m in middles)
    return f"{units.duration(low)} |{bars}| {units.duration(high)} ({units.percent((high - low) / low)} apart)"


def sweep_lines(results: Sequence[dict[str, Any]]) -> list[str]:
    """A grid as a Markdown table; FLOP/s and bytes/s have a column where they are known at any point."""
    known = [(amount, unit) for amount, unit in WORK if any(_rate(r, amount) for r in results)]
    heads = [*results[0]["point"], "median step", "95 % interval", "samples/s", *(u for _, u in known), "peak memory"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for r in results:
        cells = list(r["point"].values())
        if "error" in r:
            cells += [r["status"], *[""] * (len(heads) - len(cells) - 1)]
        else:
            time = r["time"]
            rate = units.digits(r["samples_per_step"] / time["value"] * 1e9) if r["samples_per_step"] else units.NONE
            cells += [units.duration(time["value"]), between(r), rate,
                      *(units.rate(_rate(r, amount), unit) for amount, unit in known),
                      units.data_size(units.peak(r["memory"]))]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def between(result: dict[str, Any]) -> str:
    """The interval of a median, in a column of such: a few samples have a range and no interval, a single one has neither."""
    if len(result["samples"]) < 2:
        return units.NONE
    ends = f"{units.duration(result['time']['low'])} – {units.duration(result['time']['high'])}"
    return ends if _enough(result) else f"{ends} (range of {len(result['samples'])})"


def _rate(result: dict[str, Any], amount: str) -> float | None:
    return units.number(units.section(result, "work").get(f"{amount}_per_second"))


def _enough(result: dict[str, Any]) -> bool:
    """Whether an interval of the median can be of 95 %."""
    return len(result["samples"]) >= FEWEST


def markdown_lines(result: dict[str, Any]) -> list[str]:
    """One measurement as a Markdown table, its environment and notes below."""
    environment, summary = result["environment"], result["summary"]
    rows = [(f"median ({'95 % interval' if _enough(result) else 'range'})", units.duration_interval(result["time"]))]
    if climb := units.section(result, "climb"):
        rows.append((f"in the climb ({climb['restarts']} restarts)", units.duration_interval(climb["time"])))
    rows += [(p, units.duration_interval(summary[p])) for p in ("mean", "p90", "p99") if summary[p]]
    rows += [
        ("standard deviation", units.duration(summary["std"])),
        ("range", f"{units.duration(summary['min'])} – {units.duration(summary['max'])}"),
        ("samples", str(summary["count"])),
        *_work_rows(result),
        ("peak memory", units.data_size(units.peak(result["memory"]))),
        ("first run", units.seconds(result["first_run_seconds"])),
        ("device", environment["device"]["name"]),
        *((name, environment[key]) for name, key in (("torch", "torch"), ("revision", "git")) if environment.get(key)),
    ]
    title = f"{result['workload']}" + (f", with {' + '.join(result['rungs'])}" if result["rungs"] else "")
    cells = [(a, units.clean(b).replace("|", "\\|")) for a, b in [("step", title), *rows]]
    lines = [f"| {a} | {b} |" for a, b in cells]
    warned = [] if result["measured"] else ["", f"This is no measurement (--preset {result['preset']})."]
    return [lines[0], "|---|---|", *lines[1:], *warned, *(f"\nnote: {units.clean(n)}" for n in result["notes"])]


def partial_line(summary: dict[str, Any]) -> str:
    """What is known of a measurement that did not end."""
    n = summary["count"]
    return f"until then: {n} sample{'s' if n > 1 else ''}, median {units.duration(summary['median']['value'])}."


def samples_csv(results: Sequence[dict[str, Any]]) -> str:
    """Every sample as a row: the point of a sweep, the step's number, nanoseconds, and where the work of a step is known
    its FLOP/s and bytes/s."""
    out = io.StringIO()
    names = list(results[0].get("point", {}))
    known = [field for field, _ in WORK if any(_amount(r, field) for r in results)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["workload", *names, "step", "ns", *(f"{field}_per_second" for field in known)])
    for r in results:
        amounts = [_amount(r, field) for field in known]
        writer.writerows(
            [r.get("workload", r["target"]), *r["point"].values(), k, ns, *(a and a / ns * 1e9 for a in amounts)]
            for k, ns in enumerate(r["samples"])
        )
    return out.getvalue()


def _amount(result: dict[str, Any], field: str) -> float | None:
    return units.number(units.section(result, "work").get(field))
