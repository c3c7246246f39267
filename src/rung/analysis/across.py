"""Where the time of a step goes over many ranks: the mean, and the ranks that stand out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rung.analysis.breakdown import largest_part
from rung.records.analyze import Across, Breakdown, OfRank, Shared, Spread


def across(parts: Sequence[OfRank]) -> Across | None:
    """The breakdowns of `overview`'s parts in one; None where no rank has any. Parts and kernels with most time come first."""
    every = {part.rank: part.breakdown for part in parts if part.breakdown}
    known = {rank: record for rank, record in every.items() if record.clock == "gpu"} or every
    if not known:
        return None
    others = [part.rank for part in parts if part.rank not in known]
    notes = [f"Rank {rank}: {note}" for rank, record in [*known.items()][:1] for note in record.notes or ()]
    if others:
        notes.append(f"No GPU event of rank {', '.join(map(str, others))}: the figures are of the other ranks.")

    def mean(of: Callable[[Breakdown], float | None]) -> float:
        return sum(of(record) or 0.0 for record in known.values()) / len(known)

    first_of_all = next(iter(known.values()))
    rows = [_spread(name, {rank: record.parts[name] for rank, record in known.items()}) for name in first_of_all.parts]
    step_ns = mean(lambda record: record.step_ns)
    first, share = largest_part({row.part: row.mean_ns for row in rows}, step_ns)
    return Across(
        ranks=len(known),
        clock=first_of_all.clock,
        step_ns=step_ns,
        parts=sorted(rows, key=lambda row: -row.mean_ns),
        bottleneck=first,
        share=share,
        kernels=mean(lambda record: record.kernels),
        launches=mean(lambda record: record.launches),
        gemms=mean(lambda record: record.gemms),
        notes=notes,
        top=_top(record.top or () for record in known.values()),
    )


def _spread(part: str, times: dict[int | None, float]) -> Spread:
    least, most = min(times, key=lambda rank: times[rank]), max(times, key=lambda rank: times[rank])
    mean_ns = sum(times.values()) / len(times)
    return Spread(
        part=part, mean_ns=mean_ns, least_ns=times[least], least_rank=least, most_ns=times[most], most_rank=most
    )


def _top(tops: Iterable[Sequence[tuple[str, str, float, float]]]) -> list[Shared]:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for top in tops:
        for name, category, ns, count in top:
            found.setdefault((name, category), []).append((ns, count))
    rows = [
        Shared(
            name=name,
            category=category,
            ranks=len(rows),
            mean_ns=sum(ns for ns, _ in rows) / len(rows),
            mean_count=sum(n for _, n in rows) / len(rows),
        )
        for (name, category), rows in found.items()
    ]
    return sorted(rows, key=lambda row: -row.mean_ns * row.ranks)
