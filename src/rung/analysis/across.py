"""Where the time of a step goes over many ranks: the mean, and the ranks that stand out."""

from __future__ import annotations

from typing import Any

from rung.analysis.breakdown import largest_part


def across(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The breakdowns of `overview`'s parts in one; None where no rank has any. Times are ns a step.

    step_ns, kernels, launches, gemms: means. parts: each with its mean_ns, and least_ns and most_ns with the ranks that have
    them. bottleneck, share: of the means. top: the kernels with most time, the mean_ns and mean count of the `ranks` that
    have them among their own first. notes: the first rank's. A rank without GPU events beside those with some is left out, and
    named in the notes: its times are the host's.
    """
    every = {part["rank"]: part["breakdown"] for part in parts if part["breakdown"]}
    known = {rank: record for rank, record in every.items() if record["clock"] == "gpu"} or every
    if not known:
        return None
    others = [part["rank"] for part in parts if part["rank"] not in known]
    notes = [f"Rank {rank}: {note}" for rank, record in list(known.items())[:1] for note in record["notes"]]
    if others:
        notes.append(f"No GPU event of rank {', '.join(map(str, others))}: the figures are of the other ranks.")

    def mean(key: str) -> float:
        return sum(float(record[key]) for record in known.values()) / len(known)

    rows = []
    for name in next(iter(known.values()))["parts"]:
        times = {rank: record["parts"][name] for rank, record in known.items()}
        least, most = min(times, key=lambda rank: times[rank]), max(times, key=lambda rank: times[rank])
        rows.append(
            {"part": name, "mean_ns": sum(times.values()) / len(times)}
            | {"least_ns": times[least], "least_rank": least, "most_ns": times[most], "most_rank": most}
        )
    step_ns = mean("step_ns")
    first, share = largest_part({row["part"]: row["mean_ns"] for row in rows}, step_ns)
    return {
        "ranks": len(known),
        "clock": next(iter(known.values()))["clock"],
        "step_ns": step_ns,
        "parts": sorted(rows, key=lambda row: -row["mean_ns"]),
        "bottleneck": first,
        "share": share,
        **{key: mean(key) for key in ("kernels", "launches", "gemms")},
        "notes": notes,
        "top": _top([record["top"] for record in known.values()]),
    }


def _top(tops: list[list[list[Any]]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for top in tops:
        for name, category, ns, count in top:
            found.setdefault((name, category), []).append((ns, count))
    rows = [
        {"name": name, "category": category, "ranks": len(rows)}
        | {"mean_ns": sum(ns for ns, _ in rows) / len(rows), "mean_count": sum(n for _, n in rows) / len(rows)}
        for (name, category), rows in found.items()
    ]
    return sorted(rows, key=lambda row: -row["mean_ns"] * row["ranks"])
