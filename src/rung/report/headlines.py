"""Each analysis in one sentence, for the page of a trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rung.analysis.kernel_names import readable
from rung.analysis.roofline import coverage
from rung.report import breakdowns, distributed, units
from rung.report.tables import shortened

if TYPE_CHECKING:
    import polars as pl

Row = dict[str, Any]
FEW = 3
LONGEST = 60  # characters of a name in a sentence


@dataclass(frozen=True)
class Per:
    """What a sentence's figures are of: "" or " a step", and the mean of so many GPUs or ranks, as a sum over all of them is
    longer than the step. time_ns: of a step, of all GPUs together."""

    step: str
    gpus: int
    ranks: int
    time_ns: float

    @classmethod
    def of(cls, timeline: pl.DataFrame, steps: int) -> Per:
        rows = [row for row in timeline.to_dicts() if row["step"] is None]
        time = sum(row["total_ns"] for row in rows) / steps
        return cls(" a step" if steps > 1 else "", len(rows) or 1, len({row["rank"] for row in rows}) or 1, time or 1.0)

    @property
    def gpu(self) -> str:
        """Such as " a step and GPU"."""
        return self._each("GPU", self.gpus)

    @property
    def rank(self) -> str:
        return self._each("rank", self.ranks)

    def _each(self, what: str, number: int) -> str:
        return self.step if number == 1 else f"{self.step} and {what}" if self.step else f" a {what}"


def headlines(table: Callable[[str], pl.DataFrame], steps: int = 1, without: Collection[str] = ()) -> dict[str, str]:
    """The sentences of the analyses that have something to say. table: gives an analysis's table by its name, with the
    figures of one of the recorded `steps`. without: those that need not be asked.
    """
    per = Per.of(table("timeline"), steps)
    asked = {name: say for name, say in HEADLINES.items() if name not in without}
    said = {name: say(table(name), per) if name in _PER_STEP else say(table(name)) for name, say in asked.items()}
    return {name: text for name, text in said.items() if text}


def _percent(share: Any) -> str:
    known = units.number(share)
    if known is None:
        return units.NONE
    return "under 0.1%" if 0 < known < 0.0005 else units.percent(round(known, 2 if known >= 0.0995 else 3))


def _named(text: str) -> str:
    return shortened(units.one_line(text), LONGEST)


def _many(number: float, one: str, more: str = "s") -> str:
    return f"{units.count(number)} {one}{'' if number == 1 else more}"


def _ranked(parts: Iterable[tuple[str, float]]) -> str:
    """The first few of them: "gemm 54%, attention 22%"; those below 1 % are not worth a word."""
    return ", ".join(f"{_named(name)} {_percent(share)}" for name, share in list(parts)[:FEW] if share >= 0.01)


def _sum(frame: pl.DataFrame, column: str) -> float:
    return float(frame[column].sum())


def _sums(frame: pl.DataFrame, by: str, share: str = "share") -> list[tuple[str, float]]:
    sums: dict[str, float] = {}
    for name, value in frame.select(by, share).iter_rows():
        sums[str(name)] = sums.get(str(name), 0.0) + (value or 0.0)
    return sorted(sums.items(), key=lambda item: -item[1])


def _targets(frame: pl.DataFrame) -> str:
    missed = [row for row in frame.to_dicts() if row["met"] is False]
    said = ", ".join(f"{row['metric']} {_percent(row['share'])} (target {_goal(row['target'])})" for row in missed)
    return f"not met: {said}" if said else "all met" if frame.height else ""


def _goal(target: str) -> str:
    """ ">= 60%" → "at least 60%" """
    return target.replace(">=", "at least").replace("<", "below")


def _categories(frame: pl.DataFrame) -> str:
    rows = frame.select("category", "detail", "share").iter_rows()
    return _ranked((f"{breakdowns.kind(category)} {detail}".strip(), share) for category, detail, share in rows)


def _kernels(frame: pl.DataFrame) -> str:
    if frame.height <= 10:
        return ""
    return (
        f"the first 10 of {units.count(frame.height)} names take {_percent(frame['cumulative_share'][9])} of GPU time"
    )


def _ops(frame: pl.DataFrame) -> str:
    known = [(op, share) for op, share in _sums(frame, "op") if not op.startswith("(")]
    return _ranked(known)


def _modules(frame: pl.DataFrame) -> str:
    last = frame.with_columns(module=frame["module"].str.split(" / ").list.last())
    return _ranked((name, share) for name, share in _sums(last, "module") if not name.startswith("("))


def _launches(frame: pl.DataFrame, per: Per) -> str:
    if frame.is_empty():
        return ""
    events, launches, short = (_sum(frame, name) / per.gpus for name in ("kernels", "launches", "short_kernels"))
    said = [f"{_many(events, 'GPU event')}{per.gpu}"]
    if launches:
        said[0] += f" in {_many(launches, 'launch', 'es')}"
        said.append(f"the GPU waits for the host {_percent(_sum(frame, 'host_bound_ns') / per.time_ns)} of the time")
    if short / events >= 0.01:
        share = _percent(frame["short_share"].mean())
        said.append(f"{_percent(short / events)} of the events are shorter than 10 µs ({share} of GPU time)")
    return ", ".join(said)


def _idle(frame: pl.DataFrame, per: Per) -> str:
    if frame.is_empty() or set(frame["cause"]) == {"no launches"}:
        return ""
    causes = _ranked(_sums(frame, "cause"))
    first = frame.row(0, named=True)
    doing = first["during"] or first["call_site"]
    longest = f"; {_percent(first['share'])} of it in {_named(doing)}" if doing and first["share"] >= 0.2 else ""
    return f"{units.duration(_sum(frame, 'time_ns') / per.gpus)}{per.gpu}: {causes}{longest}"


def _streams(frame: pl.DataFrame) -> str:
    rows = [row for row in frame.to_dicts() if row["total_ns"]]
    waits = [(row, row["collective_ns"] / row["total_ns"]) for row in rows]
    row, share = max(waits, key=lambda wait: wait[1] * wait[0]["total_ns"], default=({}, 0.0))
    of = f" of rank {row['rank']}" if share >= 0.01 and row["rank"] is not None else ""
    return f"stream {row['stream']}{of} waits {_percent(share)} of its time while another runs a collective" if share >= 0.01 else ""  # fmt: skip


def _syncs(frame: pl.DataFrame, per: Per) -> str:
    if frame.is_empty():
        return ""
    first = frame.row(0, named=True)
    by = f" in {_named(first['op'])}" if first["op"] else ""
    number = _sum(frame, "count") / per.ranks
    calls = f"{units.count(number)} call{'s that wait' if number != 1 else ' that waits'}"
    return f"{units.duration(_sum(frame, 'time_ns') / per.ranks)} of host time{per.rank} in {calls} for the GPU; {_percent(first['share'])} in {_named(first['call'])}{by}"  # fmt: skip


def _runtime(frame: pl.DataFrame, per: Per) -> str:
    often = [
        row for row in frame.to_dicts() if row["role"] == "query" and row["per_launch"] >= 1 and row["count"] >= 100
    ]
    named = (f"{_named(row['name'])} {units.count(row['count'] / per.ranks)} times{per.rank} ({units.digits(row['per_launch'], 2)} a launch)" for row in often[:2])  # fmt: skip
    return ", ".join(named)


def _memory(frame: pl.DataFrame) -> str:
    row: Row = max(
        (r for r in frame.to_dicts() if r["device"] is not None), key=lambda r: r["peak_bytes"] or 0, default={}
    )
    if not row:
        return ""
    return f"peak {units.data_size(row['peak_bytes'])} of {units.data_size(row['reserved_bytes'])} reserved"


def _memory_peak(frame: pl.DataFrame) -> str:
    return _ranked(_sums(frame, "op"))


def _copies(frame: pl.DataFrame, per: Per) -> str:
    rows = [row for row in frame.to_dicts() if row["share"] >= 0.01 or row["blocking"] >= 2]
    said = []
    for row in rows[:FEW]:
        rate = f" at {units.digits(row['gb_per_s'])} GB/s" if units.number(row["gb_per_s"]) else ""
        size = f" {units.data_size(row['moved_bytes'] / per.gpus)}{per.gpu}{rate}" if row["moved_bytes"] else ""
        blocking = ", the host waits for it" if row["blocking"] else ""
        said.append(f"{row['direction']}{size} ({_percent(row['share'])} of GPU time{blocking})")
    return ", ".join(said)


def _compilation(frame: pl.DataFrame) -> str:
    return ", ".join(f"{row['sign']} {_many(row['count'], 'time')}" for row in frame.to_dicts()[:FEW])


def _roofline(frame: pl.DataFrame, per: Per) -> str:
    known = [row for row in frame.iter_rows(named=True) if row["floor_ns"] is not None and row["time_ns"]]
    if not known:
        return ""
    facts = coverage(frame)
    rest = {
        "outside_ns": "launched outside of the trace",
        "graph_ns": "replayed by graphs",
        "collective_ns": "collectives",
    }
    left, why = max((facts[key] / facts["total_ns"], text) for key, text in rest.items())
    beside = ((facts["inferred_share"], "inferred"), (left, why))
    aside = ", ".join(f"{_percent(share)} {text}" for share, text in beside if share >= 0.01)
    base = f"models cover {_percent(facts['share'])} of GPU time" + (f" ({aside})" if aside else "")
    time, floor = (sum(row[name] for row in known) for name in ("time_ns", "floor_ns"))
    worst = max(known, key=lambda row: row["time_ns"] - row["floor_ns"])
    lost = f"{units.duration((worst['time_ns'] - worst['floor_ns']) / per.gpus)}{per.gpu}"
    inputs = units.clean(worst["inputs"] or "")
    return (
        f"{base}, what they cover is at {_percent(floor / time)} of its roof; most above its floor: "
        f"{_named(worst['op'])} {shortened(inputs, LONGEST)}, by {lost}"
    )


def _counters(frame: pl.DataFrame) -> str:
    """How the time of the kernels divides among what bounds them, and why the longest is as it is."""
    rows = [row for row in frame.iter_rows(named=True) if row["time_ns"]]
    if not rows:
        return ""
    total = sum(row["time_ns"] for row in rows)
    bounds: dict[str, float] = {}
    for row in rows:
        bounds[row["bound"] or "unclear"] = bounds.get(row["bound"] or "unclear", 0.0) + row["time_ns"] / total
    first = rows[0]
    ranked = _ranked(sorted(bounds.items(), key=lambda item: -item[1]))
    return f"kernel time by what bounds it: {ranked}; {shortened(readable(units.clean(first['kernel'])), 40)}: {first['because']}"  # fmt: skip


def _serving(frame: pl.DataFrame) -> str:
    """Of each phase, in the order of the time it takes."""
    phases = [row for row in frame.to_dicts() if row["phase"] not in ("all", "idle")]
    said = []
    for row in sorted(phases, key=lambda row: -row["time_ns"])[:FEW]:
        rates = [
            f"{units.count(round(row[f'{what}_tokens_per_s']))} {what} tokens a second"
            for what in ("prompt", "decode")
            if row[f"{what}_tokens_per_s"]
        ]
        said.append(
            f"{row['phase']} {_percent(row['share'])} of the time" + (f" ({', '.join(rates)})" if rates else "")
        )
    return "; ".join(said)


# What to say of an analysis's table; "" where there is nothing to say. In the order of the page.


_KINDS = {"launch": "launch latency and gaps"}  # of the path; the others are words already


def critical_path_line(table: pl.DataFrame) -> str:
    """ "set by computation 94%, host 5%; most of it: aten::_softmax 35%" """
    rows = table.to_dicts()
    if not rows or rows[0]["what"] == "none":
        return rows[0]["name"] if rows else ""
    shares: dict[str, float] = {}
    for row in rows:
        shares[row["what"]] = shares.get(row["what"], 0.0) + row["path_share"]
    if not any(shares.values()):  # nothing in it took any time
        return ""
    order = sorted(shares.items(), key=lambda item: -item[1])
    said = ", ".join(
        f"{_KINDS.get(what, what)} {units.percent(round(share, 2))}" for what, share in order if share >= 0.005
    )
    of = "" if rows[0]["of"] == "recording" else f" in {rows[0]['of']}"
    where = f" of rank {rows[0]['rank']}" if rows[0]["rank"] is not None else ""
    name = f"the host before {rows[0]['name']}" if rows[0]["what"] == "host" else rows[0]["name"]
    return f"the pace{of} is set by {said}; first: {shortened(readable(name), 60)}{where}, {units.percent(round(rows[0]['path_share'], 2))}"


def what_if_line(table: pl.DataFrame) -> str:
    """ "the end comes at most 34.5% sooner if aten::_softmax takes no time (27.6% at its floor), 33.2% if aten::bmm takes none" """
    said: list[str] = []
    kinds = {"host": "the host", "communication": "collectives", "memcpy": "copies"}
    for row in table.to_dicts()[:3]:
        if row["saved_share"] < 0.01:
            continue
        name = shortened(readable(row["name"]), 40) if row["name"] else kinds.get(row["what"], row["what"])
        name = "unnamed collectives" if (row["what"], name) == ("communication", "unnamed") else name
        floor = row["floor_saved_share"]
        at_floor = f" ({units.percent(round(floor, 3))} at its floor)" if floor is not None else ""
        verb = "takes none" if said else "takes no time"
        sooner = "" if said else " sooner"
        said.append(f"{units.percent(round(row['saved_share'], 3))}{sooner} if {name} {verb}{at_floor}")
    return f"the end comes at most {', '.join(said)}" if said else ""


HEADLINES: dict[str, Callable[..., str]] = {
    "targets": _targets,
    "serving": _serving,
    "critical_path": critical_path_line,
    "what_if": what_if_line,
    "communication": lambda frame, per: distributed.communication_line(frame, per.rank, per.ranks),
    "stragglers": distributed.stragglers_line,
    "slow_groups": distributed.slow_groups_line,
    "skew": distributed.skew_line,
    "scaling": distributed.scaling_line,
    "categories": _categories,
    "ops": _ops,
    "modules": _modules,
    "kernels": _kernels,
    "launches": _launches,
    "idle": _idle,
    "streams": _streams,
    "syncs": _syncs,
    "runtime": _runtime,
    "compilation": _compilation,
    "memory": _memory,
    "memory_peak": _memory_peak,
    "copies": _copies,
    "roofline": _roofline,
    "counters": _counters,
}
_PER_STEP = (
    "communication",
    "launches",
    "idle",
    "syncs",
    "runtime",
    "copies",
    "roofline",
)  # whose figures are of a step
