"""Variables that change speed or numerics: are they set, is that the default, does it matter?"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rung.hardware.doctor.gpus import Here
from rung.hardware.doctor.machine import Machine
from rung.hardware.doctor.software import rocm_version
from rung.records.doctor import NOTE, OK, WARN, Level, Line
from rung.toml import shipped

_FAMILIES = ("PYTORCH_", "TORCH", "HIP", "HSA_", "GPU_", "MIOPEN_", "AMD_")


def known() -> tuple[Mapping[str, Any], ...]:
    """The rows of variables.toml."""
    return tuple(shipped("hardware/doctor/variables.toml")["variable"])


def lines(machine: Machine, here: Here) -> Iterator[Line]:
    rocm = rocm_version(machine)
    for row in known():
        if row["name"] in machine.environ:
            yield _chosen(row, machine.environ[row["name"]], _default(row, here, rocm))
        elif row.get("shown") and row["for"] in (here.vendor, "any"):
            yield _unset(row, _default(row, here, rocm), _needed(row, here, rocm))
    yield from _misspelt(machine)


def in_effect(machine: Machine, here: Here) -> dict[str, str]:
    """The value of every known variable that something reads here: as it is set, else the default that holds."""
    rocm = rocm_version(machine)
    rows = [row for row in known() if row["for"] in (here.vendor, "any") and not row.get("unread")]
    return {row["name"]: machine.environ.get(row["name"], _default(row, here, rocm)) for row in rows}


def _misspelt(machine: Machine) -> Iterator[Line]:
    """Names that are set and nearly known: nobody reads them, and nothing says so."""
    names = [row["name"] for row in known() if not row.get("unread")]
    for name in sorted(set(machine.environ) - {row["name"] for row in known()}):
        meant = difflib.get_close_matches(name, names, 1, 0.93) if name.startswith(_FAMILIES) else []
        if meant:
            yield Line("variables", name, "set", WARN, None, f"not a name that is known here: is {meant[0]} meant?",
                       (f"unset {name}",))  # fmt: skip


def _unset(row: Mapping[str, Any], default: str, needed: Mapping[str, Any] | None) -> Line:
    value = f"unset ({_word(default)})"
    if needed and needed["value"] != default:
        return Line("variables", row["name"], value, WARN, True, needed["matters"],
                    (f"export {row['name']}={needed['value']}",), _source(row))  # fmt: skip
    return Line("variables", row["name"], value, OK, True, row["when"], tuple(row.get("change", ())), _source(row))


def _chosen(row: Mapping[str, Any], value: str, default: str) -> Line:
    same = value == default
    level: Level = OK if same else WARN if row.get("unread") or value in row.get("slow", ()) else NOTE
    matters = "already the default, so it changes nothing" if same else f"{row['does']}; {row['when']}"
    if not same:
        matters += f" (default {default or 'unset'})" if not row.get("unread") else ""
    return Line("variables", row["name"], value or "(empty)", level, same, matters,
                () if same else (f"unset {row['name']}",), _source(row))  # fmt: skip


def _default(row: Mapping[str, Any], here: Here, rocm: tuple[int, ...] | None) -> str:
    """The value that holds without the variable, on this GPU and version of ROCm."""
    values = (str(case["value"]) for case in row.get("else", ()) if _holds(case, here, rocm))
    return next(values, str(row["default"]))


def _needed(row: Mapping[str, Any], here: Here, rocm: tuple[int, ...] | None) -> Mapping[str, Any] | None:
    """The value that has to be set on these GPUs and this version of ROCm, and why."""
    case: Mapping[str, Any] | None = row.get("needed")
    return case if case and here.count >= case.get("gpus", 1) and _holds(case, here, rocm) else None


def _holds(case: Mapping[str, Any], here: Here, rocm: tuple[int, ...] | None) -> bool:
    """Whether a row's case is of the architecture of all GPUs here, and of this version of ROCm."""
    if "arch" in case and not (here.archs and all(re.fullmatch(case["arch"], arch) for arch in here.archs)):
        return False
    return "rocm" not in case or (rocm is not None and rocm >= tuple(int(part) for part in case["rocm"].split(".")))


def _word(default: str) -> str:
    return f"default {default}" if default else "no value by default"


def _source(row: Mapping[str, Any]) -> str:
    return "; ".join(row[key] for key in ("source", "versions") if key in row)
