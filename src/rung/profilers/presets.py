"""What a preset asks for: `presets.toml`, and a file of the user's own of the same form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from rung.errors import InputError, UsageError
from rung.profilers.counters import own_file, own_path
from rung.profilers.plan import OVERHEADS, SOURCES, Format, Method, Source
from rung.profilers.tools import EXECUTABLES, PROFILERS, Profiler, find
from rung.records import profile as records
from rung.toml import Row, shipped

Sensor = Literal["power", "vram"]


@dataclass(frozen=True)
class Preset:
    """tool: a name of PROFILERS; counters: the name of a set, or ''; sample: sensors; the rest as in plan.Request."""

    name: str
    says: str = ""
    tool: str = "rocprofv3"
    sources: tuple[str, ...] = ("kernels", "hip", "copies")
    counters: str = ""
    formats: tuple[str, ...] = ()
    sampling: str = ""
    rate: int = 1000
    sample: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()

    @property
    def overhead(self) -> str:
        """A class of plan.OVERHEADS."""
        if self.tool == "ncu":
            return "replay"
        if self.counters or self.tool == "rocprof-compute":
            return "high"
        return "medium" if {"hip", "hsa"} & set(self.sources) else "low"

    @property
    def read_by(self) -> str:
        others = {
            "rocprof-sys": "ui.perfetto.dev",
            "nsys": "the Nsight Systems viewer",
            "rocprof-compute": "its own tables",
        }
        said = ["rung analyze", *([others[self.tool]] if self.tool in others else [])]
        said += ["ui.perfetto.dev"] if "pftrace" in self.formats else []
        return ", ".join([*said, *(["the samples by hand (CSV)"] if self.sampling else [])])

    def collects(self) -> str:
        found = [] if self.tool in ("rocprof-compute", "ncu") else list(self.sources)
        if self.tool == "rocprof-compute":
            measured = "--roof-only" in self.extra
            found.append("counters of the roofline, measured roofs" if measured else "counters of every block")
        if self.counters:
            found.append(f"counters ({self.counters})")
        if self.sampling:
            found.append(f"program counter at {self.rate} Hz")
        return ", ".join([*found, *self.formats, *self.sample])

    def record(self) -> records.ListedPreset:
        """As a row of a list."""
        return records.ListedPreset(
            name=self.name,
            with_=self.tool,
            says=self.says,
            collects=self.collects(),
            overhead=self.overhead,
            read_by=self.read_by,
        )


_LISTS = ("sources", "formats", "sample", "extra")
Word = Annotated[str, Meta(pattern=r"^[^\x00]*$")]  # no argument and no variable can hold a null


class _Table(Row, kw_only=True, frozen=True, rename={"with_": "with"}):
    """A preset as a file has it. like: another, from which it has what it does not say itself."""

    says: str = ""
    with_: Profiler = "rocprofv3"
    like: str = ""
    sources: tuple[Source, ...] = ()
    counters: str = ""
    formats: tuple[Format, ...] = ()
    sampling: Method | Literal[""] = ""
    rate: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    sample: tuple[Sensor, ...] = ()
    env: Mapping[Annotated[str, Meta(pattern=r"^[^=\x00]+$")], Word] = msgspec.field(default_factory=dict)
    extra: tuple[Word, ...] = ()


_CHOICES = {"sources": SOURCES, "with": PROFILERS, "formats": get_args(Format), "sampling": get_args(Method), "sample": get_args(Sensor)}  # fmt: skip


def presets() -> dict[str, Preset]:
    """All presets by name, the user's own last."""
    return _presets(own_path("RUNG_PRESETS", "presets.toml"))


def listed() -> records.Presets:
    """All presets, and the profilers that are here."""
    here = {name: find(name) for name in EXECUTABLES}
    return records.Presets(
        presets=[preset.record() for preset in presets().values()],
        overheads=OVERHEADS,
        profilers={
            name: records.Installed(path=str(tool.path), version=tool.version_text) if tool else None
            for name, tool in here.items()
        },
    )


@lru_cache(maxsize=4)
def _presets(own: str | None) -> dict[str, Preset]:
    mine = own_file(Path(own)) if own else {}
    for name, table in mine.items():
        _check(f"{own}: [{name}]", table)
    tables = {**shipped("profilers/presets.toml"), **mine}
    return {name: _preset(name, tables) for name in tables}


def _preset(name: str, tables: Mapping[str, Any]) -> Preset:
    table = dict(tables[name])
    if other := table.pop("like", ""):
        if other not in tables or "like" in tables[other]:
            raise InputError(
                f"the preset {name} is like {other!r}, which is not a preset of its own: correct its `like`."
            )
        table = {**tables[other], **table}
    table |= {key: tuple(table[key]) for key in _LISTS if key in table}
    return Preset(name, tool=table.pop("with", "rocprofv3"), **table)


def _check(where: str, table: Any) -> None:
    """InputError where a preset of the user's has what is none."""
    if not isinstance(table, dict):
        raise InputError(f"{where} is not a table: write [name] and its keys below.")
    try:
        msgspec.convert(table, _Table)
    except msgspec.ValidationError as error:
        said = str(error)
        key = re.search(r"\$\.(\w+)", said)
        there = ""
        if key and key[1] in _CHOICES:
            there = f"; {key[1]} may be {', '.join(_CHOICES[key[1]])}"
        elif "unknown field" in said:
            there = f"; keys are {', '.join(field.encode_name for field in msgspec.structs.fields(_Table))}"
        raise InputError(f"{where} is not a preset: {said[:1].lower()}{said[1:]}{there}.") from None


def preset(name: str) -> Preset:
    """UsageError for a name that is none."""
    found = presets()
    if name not in found:
        raise UsageError(f"there is no preset {name!r}: `rung profile --list` shows {', '.join(found)}.")
    return found[name]
