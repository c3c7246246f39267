"""Measurements that were kept as files, and two of them against each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rung.errors import InputError
from rung.hardware.environment import differences
from rung.runs import to_json

SCHEMA = 1
TWO_TIMES = (
    "two processes at two times: what the machine did in between is part of the change; `rung compare A B` on the "
    "targets runs both together."
)


def document(rows: Sequence[dict[str, Any]]) -> str:
    """The file of a test session's measurements, each with its `test`."""
    return to_json({"schema": SCHEMA, "kind": "benchmarks", "benchmarks": rows})


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The measurements of a file that `--rung-save` or `rung bench --json` wrote, by the name of test or workload."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} could not be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is no JSON ({error}); give what `rung bench --json` or `pytest --rung-save` wrote."
        ) from error
    rows = found.get("benchmarks") if isinstance(found, dict) and "benchmarks" in found else found
    rows = [r for r in (rows if isinstance(rows, list) else [rows]) if not _is_partial(r)]
    if not rows or not all(_is_measurement(r) for r in rows):
        raise InputError(f"{path} holds no measurement; give what `rung bench --json` or `pytest --rung-save` wrote.")
    return {_name(r): r for r in rows}


def _is_partial(row: Any) -> bool:
    return isinstance(row, dict) and row.get("status", "complete") != "complete"


def _is_measurement(row: Any) -> bool:
    time = row.get("time") if isinstance(row, dict) else None
    return isinstance(time, dict) and all(
        isinstance(time.get(k), (int, float)) and time[k] > 0 for k in ("value", "low", "high")
    )


def _name(row: Mapping[str, Any]) -> str:
    point: Any = row.get("point")
    point = point if isinstance(point, dict) else {}
    return " ".join(
        [str(row.get("test") or row.get("target") or row.get("workload")), *(f"{k}={v}" for k, v in point.items())]
    )


def against(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How a measurement differs from an earlier one: `change` of the median (a share, positive where it is slower),
    and whether their 95 % intervals are `apart`; None without an earlier one."""
    if not base:
        return None
    old, new = base["time"], row["time"]
    apart = new["low"] > old["high"] or new["high"] < old["low"]
    return {"before": old["value"], "after": new["value"], "change": new["value"] / old["value"] - 1, "apart": apart}


def compare_saved(a: Path, b: Path) -> dict[str, Any]:
    """Two files of measurements: the change of everything that both have, and what differs in their environments.

    Returns plain values; `verdict` is slower or faster where every change that is beyond both intervals has that sign,
    `mixed` where there are both, and inconclusive where there is none.
    """
    old, new = read(a), read(b)
    if len(old) == len(new) == 1:  # two measurements are meant for each other, whatever they are called
        old = {next(iter(new)): next(iter(old.values()))}
    both = [name for name in new if name in old]
    if not both:
        raise InputError(f"{a} and {b} have no measurement in common.")
    rows = [{"name": name, **(against(new[name], old[name]) or {})} for name in both]
    signs = {"slower" if r["change"] > 0 else "faster" for r in rows if r["apart"]}
    first = both[0]
    return {
        "kind": "saved",
        "a": str(a),
        "b": str(b),
        "verdict": signs.pop() if len(signs) == 1 else "mixed" if signs else "inconclusive",
        "rows": rows,
        "only_in": {"a": [n for n in old if n not in new], "b": [n for n in new if n not in old]},
        "differs": differences([old[first].get("environment") or {}, new[first].get("environment") or {}]),
        "warnings": [TWO_TIMES],
    }
