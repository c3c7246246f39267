"""The result of a climb as a small readable file: which rungs, made for what, measured where."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rung.errors import InputError
from rung.ladder.rungs import chosen

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1


@dataclass(frozen=True)
class Recipe:
    """rungs: names, in the order in which they are applied; workload and options: what was climbed, as typed;
    the rest is for the record."""

    rungs: tuple[str, ...]
    workload: str = ""
    options: dict[str, str] = field(default_factory=dict)
    mode: str = ""
    numerics: str = ""
    made_on: dict[str, str] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """The recipe as TOML."""
        lines = [f"schema = {SCHEMA}"]
        lines += [f"{k} = {json.dumps(v)}" for k, v in (("workload", self.workload), ("mode", self.mode), ("numerics", self.numerics))]  # fmt: skip
        lines += ["rungs = [" + ", ".join(json.dumps(r) for r in self.rungs) + "]"]
        for table, values in (("options", self.options), ("made_on", self.made_on), ("measured", self.measured)):
            if values:
                lines += ["", f"[{table}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str, where: str = "the recipe") -> Recipe:
        try:
            data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{where} is not valid TOML: {error}.") from error
        rungs = data.get("rungs")
        if data.get("schema") != SCHEMA or not isinstance(rungs, list):
            raise InputError(f"{where} is no recipe of this version: it needs schema = {SCHEMA} and a list `rungs`.")
        chosen([str(r) for r in rungs])
        tables = [data.get(k, {}) for k in ("options", "made_on", "measured")]
        if not all(isinstance(t, dict) for t in tables):
            raise InputError(f"{where} is damaged: options, made_on and measured must be tables.")
        known = {k: data[k] for k in ("workload", "options", "mode", "numerics", "made_on", "measured") if k in data}
        return cls(tuple(str(r) for r in rungs), **known)

    def options_for(self, target: str, typed: dict[str, str]) -> dict[str, str]:
        """The options to run `target` with: those that were climbed, if it is what was climbed, and what is typed."""
        same = target.rpartition("/")[2] == self.workload.rpartition("/")[2]
        return {**(self.options if same else {}), **typed}

    @classmethod
    def read(cls, path: Path) -> Recipe:
        try:
            return cls.parse(path.read_text(), str(path))
        except OSError as error:
            raise InputError(f"{path} could not be read: {error.strerror}.") from error
