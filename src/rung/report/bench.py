"""A measurement on the terminal, in a table, in a CSV file."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from itertools import pairwise

from msgspec import UNSET

from rung.measure.noise import NOISY
from rung.measure.stats import FEWEST
from rung.measure.steady import TELLING
from rung.records.bench import Bench, Climbed, Failed, TimerFacts, Work
from rung.records.measured import Sensors, Summary
from rung.report import units
from rung.report.over_ranks import over_ranks_lines, ranks_line, threads_line
from rung.report.tables import markdown

BARS = "▁▂▃▄▅▆▇█"
BINS = 40
MODES = {"call": "one call"}


def bench_lines(result: Bench) -> list[str]:
    """One measurement: median and its interval, how the samples lie, throughput, memory; compile time apart."""
    lines = [heading(result)]
    if not result.measured:
        lines.append(impression(result))
    for name, said in bench_rows(result):
        lines.append(f"{name:<14}{said}")
        if name == "range":
            lines.append(f"histogram     {histogram(result.samples)}")
            lines.append(f"over time     {series(result.samples)}")
    if result.over_ranks:
        lines += over_ranks_lines(result.over_ranks)
    return lines + [f"note: {note}" for note in result.notes]


def heading(result: Bench) -> str:
    """What was measured, and where: "ops:softmax, one call, on MI300X"."""
    rungs = f", with {' + '.join(result.rungs)}" if result.rungs else ""
    return f"{result.workload}, {MODES.get(result.mode, result.mode)}, on {result.environment.device.name}{rungs}"


def impression(result: Bench) -> str:
    """What to say of so few runs that they are no measurement."""
    few = "it runs" if len(result.samples) == 1 else "a first impression"
    return f"{few}: {units.duration(result.time.value)} per step. This is not a measurement. To measure, leave --preset {result.preset} out."


def bench_rows(result: Bench) -> list[tuple[str, str]]:
    """(name, what there is to say) of everything but the samples themselves; a row without a name goes on with the one above."""
    first_run = units.seconds(result.first_run_seconds)
    if not result.measured:
        return [("first run", first_run)]
    summary, step = result.summary, result.time.value
    sure = "95% interval or wider" if result.trend else "95% interval"
    count = len(result.samples)
    of = f"{sure}, {count} samples" if _enough(result) else f"the range of {count} samples, too few for a 95% interval"
    rows = [("median step", f"{units.duration_interval(result.time)}, {of}"), *_timed_rows(result.timer)]
    if result.over_ranks:
        rows.append(("ranks", f"{ranks_line(result.over_ranks)}; a step ends with the slowest"))
        rows += [("threads", said)] if (said := threads_line(result.environment)) else []
    if not result.reached:
        # Such scatter more samples of the same kind average away but slowly.
        scattered = summary.mean and summary.std > NOISY * summary.mean.value
        then = "measure on a quieter machine, or raise --time" if scattered else "raise --time"
        rows.append(("", f"{_short_of(result)}: {then}"))
    rows += _climb_rows(result.climb)
    if summary.mean:
        told = summary.mean.low > summary.min  # no mean lies below all samples: such an interval says nothing
        mean = units.duration_interval(summary.mean) if told else units.duration(summary.mean.value)
        rows.append(("mean", f"{mean}, standard deviation {units.duration(summary.std)}"))
    percentiles = {"p90": summary.p90, "p99": summary.p99}
    known = "".join(f", {p} {units.duration(at.value)}" for p, at in percentiles.items() if at)
    few_for = [p for p, at in percentiles.items() if not at]
    spread = f"{units.duration(summary.min)} to {units.duration(summary.max)}{known}"
    rows.append(("range", spread + (f" ({' and '.join(few_for)} would need more samples)" if few_for else "")))
    rows += [
        ("throughput", f"{units.digits(n / step * 1e9)} {what}/s")
        for what, n in (("samples", result.samples_per_step), ("tokens", result.tokens_per_step))
        if n
    ]
    return [
        *rows,
        *_work_rows(result.work),
        ("first run", f"{first_run} (compiling and loading; not part of the median)"),
        (
            "warm-up",
            f"{result.warm_up_runs} runs and {len(result.discarded)} discarded samples, {_steady(result)}",
        ),
        ("peak memory", units.data_size(units.peak(result.memory))),
        *_sensor_rows(result.sensors, "GPU of rank 0" if result.over_ranks else "GPU"),
    ]


def _steady(result: Bench) -> str:
    if result.steady:
        return "then steady"
    return "but never steady" if len(result.samples) >= TELLING else "and too few to tell whether it was steady"


def _climb_rows(climb: Climbed | None) -> list[tuple[str, str]]:
    """What the recipe's own climb measured, and whether one process more agrees with that."""
    if not climb:
        return []
    count, spread = climb.restarts, units.percent(climb.spread)
    differ = f"whose processes differed by up to {spread}" if count > 1 else f"and processes differ by about {spread}"
    away = f"{units.percent(abs(climb.slower))} {'slower' if climb.slower > 0 else 'faster'}"
    processes = abs(climb.slower) <= climb.spread
    explained = (
        f"no clear difference, given how much {'processes differ' if processes else 'the steps of both scatter'}"
    )
    meant = (
        explained
        if climb.agrees
        else "that is more than processes differ: compare load, clocks and settings with those of the climb"
    )
    return [
        (
            "in the climb",
            f"{units.duration_interval(climb.time)} in {count} restart{'s' if count > 1 else ''}, {differ}"
            + (f"; recipe: {units.clean(climb.status)}" if climb.status else ""),
        ),
        ("", f"this one process is {away}; {meant}"),
    ]


def _short_of(result: Bench) -> str:
    """Why it was not the precision that ended it: an interval that is narrow may be of a stretch that was not steady."""
    within, time = f"within ±{100 * result.precision:.2g}%", result.time
    narrow = time.high - time.low <= 2 * result.precision * time.value
    return f"{within}, but not steady" if narrow and not result.steady else f"not yet {within}"


def _work_rows(work: Work) -> list[tuple[str, str]]:
    """FLOP/s and bytes/s and how near they come to the chip's, as far as they are known."""
    rows = []
    if work.flops_per_second:
        share = f", {units.percent(work.of_peak)} of the chip's {work.precision} rate" if work.of_peak else ""
        rows.append(("arithmetic", units.rate(work.flops_per_second, "FLOP/s") + share))
    if work.bytes_per_second:
        of = work.of_bandwidth
        share = f", {units.percent(of)} of the chip's memory bandwidth" if of else ""
        cached = ": caches served the rest" if of and of > 1 else ""
        rows.append(("memory", units.rate(work.bytes_per_second, "B/s") + share + cached))
    return rows


def _timed_rows(timer: TimerFacts | None) -> list[tuple[str, str]]:
    """How it was timed, where there is a choice."""
    if not timer or (timer.name == "clock" and not timer.cold):
        return []
    calls = timer.calls or 0
    said = {
        "clock": "the CPU's clock around every call",
        "events": "events between the steps, as the host launches them",
        "graph": f"slope between graphs of {calls} and {2 * calls} calls: launches hidden",
        "batch": f"{calls} calls at a time, queued up beforehand: launches hidden",
    }[timer.name]
    if timer.name == "graph" and timer.cold:
        said = f"what {calls} calls add to a graph of as many flushes: launches hidden"
    caches = f"cold caches ({units.data_size(timer.cold)} written before every call)" if timer.cold else "hot caches"
    rows = [("timed by", f"{said}; {caches}")]
    if timer.name in ("graph", "batch"):
        rows.append(("", f"launching one from the host takes {units.duration(timer.launch_ns)}"))
    return rows


def _sensor_rows(seen: Sensors | None, name: str) -> list[tuple[str, str]]:
    if not seen:
        return []
    parts = []
    if seen.power is not None:
        limit = f" of {units.digits(seen.limit)} W" if seen.limit else ""
        parts.append(f"{units.digits(seen.power)} W{limit}")
    if seen.energy_per_step is not UNSET:
        parts.append(f"{units.energy(seen.energy_per_step)} a step")
    if clock := seen.core:
        span = f" ({clock.low:.0f} – {clock.high:.0f})" if clock.low != clock.high else ""
        parts.append(f"{clock.median:.0f} MHz{span}")
    if seen.celsius:
        parts.append(f"{seen.celsius.high:.0f} °C")
    return [(name, f"{', '.join(parts)} ({seen.source}, {units.seconds(seen.seconds)})")] if parts else []


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
    return f"{units.duration(low)} |{bars}| {units.duration(high)} ({_apart(low, high)})"


def _apart(low: float, high: float) -> str:
    return (
        f"{units.percent((high - low) / low)} apart" if high < 3 * low else f"one {units.ratio(high / low)} the other"
    )


def sweep_lines(results: Sequence[Bench | Failed]) -> list[str]:
    """A grid as a Markdown table; samples, FLOP and bytes a second have a column where they are known at any point."""
    counted = ["samples/s"] if any(isinstance(r, Bench) and r.samples_per_step for r in results) else []
    known = [unit for unit in ("FLOP/s", "B/s") if any(_rates(_work(r))[unit] for r in results)]
    heads = [*(results[0].point or {}), "median step", "95% interval", *counted, *known, "peak memory"]
    rows = [heads]
    for r in results:
        cells = list((r.point or {}).values())
        if isinstance(r, Failed):
            cells += [r.status, *[""] * (len(heads) - len(cells) - 1)]
        else:
            step, rates = r.time.value, _rates(r.work)
            throughput = units.digits(r.samples_per_step / step * 1e9) if r.samples_per_step else units.NONE
            cells += [units.duration(step), between(r), *(throughput for _ in counted), *(units.rate(rates[unit], unit) for unit in known),
                      units.data_size(units.peak(r.memory))]  # fmt: skip
        rows.append(cells)
    return markdown(rows)


def between(result: Bench) -> str:
    """The interval of a median, in a column of such: a few samples have a range and no interval, a single one has neither."""
    if len(result.samples) < 2:
        return units.NONE
    ends = f"{units.duration(result.time.low)} – {units.duration(result.time.high)}"
    return ends if _enough(result) else f"{ends} (range of {len(result.samples)})"


def _work(result: Bench | Failed) -> Work:
    """What is known of the work of a step: nothing where it failed."""
    return result.work if isinstance(result, Bench) else Work()


def _rates(work: Work) -> dict[str, float | None]:
    return {"FLOP/s": units.number(work.flops_per_second), "B/s": units.number(work.bytes_per_second)}


def _enough(result: Bench) -> bool:
    """Whether an interval of the median can be of 95 %."""
    return len(result.samples) >= FEWEST


def markdown_lines(result: Bench) -> list[str]:
    """One measurement as a Markdown table, its environment and notes below."""
    environment, summary, climb = result.environment, result.summary, result.climb
    of = "95% interval" if _enough(result) else "range"
    rows = [(f"median ({of})", units.duration_interval(result.time))]
    if climb:
        restarts = f"{climb.restarts} restart{'s' if climb.restarts != 1 else ''}"
        rows.append((f"in the climb ({restarts})", units.duration_interval(climb.time)))
    figures = (("mean", summary.mean), ("p90", summary.p90), ("p99", summary.p99))
    rows += [(name, units.duration_interval(figure)) for name, figure in figures if figure]
    rows += [
        ("standard deviation", units.duration(summary.std)),
        ("range", f"{units.duration(summary.min)} – {units.duration(summary.max)}"),
        ("samples", str(summary.count)),
        *_work_rows(result.work),
        ("peak memory", units.data_size(units.peak(result.memory))),
        ("first run", units.seconds(result.first_run_seconds)),
        ("device", environment.device.name),
    ]
    rows += [(name, said) for name, said in (("torch", environment.torch), ("revision", environment.git)) if said]
    title = result.workload + (f", with {' + '.join(result.rungs)}" if result.rungs else "")
    cells = [(a, units.clean(b).replace("|", "\\|")) for a, b in [("step", title), *rows]]
    lines = [f"| {a} | {b} |" for a, b in cells]
    warned = [] if result.measured else ["", f"This is not a measurement (--preset {result.preset})."]
    return [lines[0], "|---|---|", *lines[1:], *warned, *(f"\nnote: {units.clean(n)}" for n in result.notes)]


def partial_line(summary: Summary) -> str:
    """What is known of a measurement that did not end."""
    n = summary.count
    return f"until then: {n} sample{'s' if n > 1 else ''}, median {units.duration(summary.median.value)}."


def samples_csv(results: Sequence[Bench | Failed]) -> str:
    """Every sample as a row: the point of a sweep, the step's number, nanoseconds, and where the work of a step is known
    its FLOP/s and bytes/s."""
    out = io.StringIO()
    known = [name for name in ("flops", "bytes") if any(_amounts(r)[name] for r in results)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["workload", *(results[0].point or ()), "step", "ns", *(f"{name}_per_second" for name in known)])
    for r in results:
        named, work = r.workload if isinstance(r, Bench) else r.target, _amounts(r)
        amounts = [work[name] for name in known]
        writer.writerows(
            [named, *(r.point or {}).values(), k, ns, *(a and a / ns * 1e9 for a in amounts)]
            for k, ns in enumerate(r.samples)
        )
    return out.getvalue()


def _amounts(result: Bench | Failed) -> dict[str, float | None]:
    """Of a step, by how the CSV's columns begin."""
    work = _work(result)
    return {"flops": units.number(work.flops), "bytes": units.number(work.bytes)}
