"""From the document of a command to its entry in the history."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from rung import __version__
from rung.records.history import Entry, Measured

Document = Mapping[str, Any]
# What is left out of a kept document: samples, and what the run directory has.
_LARGE = {
    "bench": ("samples", "discarded", "environment"),
    "compare": ("restarts", "environment"),
    "climb": ("attempts", "plan"),
    "profile": ("analysis",),
}
_LARGE_IN_RESULT = ("restarts", "history", "breakdown", "recipe_text", "shapes")


@dataclass(frozen=True)
class Call:
    """How a command was called. target: as typed; call: whether it is a plain function; base: the git revision of which `rung compare
    --base` took A; inputs: what makes the arguments of the functions that it compared, as typed."""

    command: str = ""
    target: str = ""
    call: bool = False
    base: str = ""
    inputs: str = ""


def entry_of(of: str, document: Document, call: Call) -> Entry:
    """The entry of what a command has just done.

    Args:
        of: bench, compare, climb or profile.
        document: What --json prints, as plain values.
    """
    make = {"bench": _bench, "compare": _compare, "climb": _climb, "profile": _profile}[of]
    entry = make(document, call)
    entry.command, entry.folder, entry.host = call.command, os.getcwd(), os.uname().nodename
    entry.environment = {**(entry.environment or {}), "rung": __version__}
    if isinstance(device := entry.environment.get("device"), Mapping):
        entry.device = str(device.get("name", ""))
    return entry


def full_target(target: str) -> str:
    """With the absolute path of its file: `model.py:make` of two folders are two workloads, and so are `model:make` of two folders that
    have a `model.py`."""
    found = re.fullmatch(r"(kernelbench:)?(.+?\.py)(:[^:/]*)?", target)
    if not found:
        module, colon, name = target.partition(":")
        file = os.path.abspath(module.replace(".", os.sep) + ".py")
        return f"{file}:{name}" if colon and os.path.isfile(file) else target
    return f"{found[1] or ''}{os.path.abspath(found[2])}{found[3] or ''}"


def _entry(of: str, document: Document, **known: Any) -> Entry:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    kept = {name: value for name, value in document.items() if name not in _LARGE[of]}
    blank = {"created": now, "status": "complete", "answer": "", "command": "", "host": "", "device": "", "folder": ""}
    return Entry(**(blank | {"of": of, "document": kept} | known))


def _bench(document: Document, call: Call) -> Entry:
    entry = _entry(
        "bench",
        document,
        target=document["target"],
        status=document["status"],
        answer=document.get("error", ""),
        environment=document.get("environment") or {},
    )
    if document["status"] != "complete" or not document["measured"]:
        return entry  # a first impression is no measurement
    timer = document["timer"] or {}
    variant = {
        "mode": document["mode"],
        "rungs": "+".join(document["rungs"]),
        "timer": timer.get("name", "").replace("clock", ""),
        "caches": "cold" if timer.get("cold") else "",
        "ranks": str(len((document.get("over_ranks") or {}).get("ranks") or ()) or ""),
    }
    point = {name: value for name, value in (document.get("point") or {}).items() if name != "ranks"}
    options = {**document["options"], **point}
    figure = _Figure(full_target(document["target"]), options, variant)
    entry.measured = [*figure.of("time", "ns", document["time"]), *_memory(figure, document["memory"])]
    return entry


def _compare(document: Document, call: Call) -> Entry:
    sides = document.get("sides") or {name: document[name] for name in ("a", "b")}
    targets = {name: call.target if name == "a" and call.base else side["target"] for name, side in sides.items()}
    entry = _entry(
        "compare",
        document,
        target=" | ".join(dict.fromkeys(targets.values())),
        answer=document["verdict"],
        environment=document.get("environment") or {},
    )
    variants = {name: _variant(side, call, call.base if name == "a" else "") for name, side in sides.items()}
    here = {"process": "one"} if document.get("unit") == "round" else {}  # else fresh ones
    here |= {"ranks": str(document["ranks"])} if document.get("ranks") else {}
    figures = {
        name: _Figure(full_target(targets[name]), side["options"], variants[name] | here)
        for name, side in sides.items()
    }
    for name, time in (document.get("times") or {}).items():
        entry.measured += figures[name].of("time", "ns", time)
        entry.measured += _memory(figures[name], (document.get("memory") or {}).get(name))
    if found := document.get("comparison"):
        a, b = figures["a"], figures["b"]
        over = {"over": a.target} if a.target != b.target else {}
        over |= {f"over {name}": value for name, value in variants["a"].items() if value != variants["b"].get(name)}
        entry.measured += _Figure(b.target, b.options, b.variant | over).of("speedup", "x", found["speedup"])
    return entry


def _variant(side: Document, call: Call, base: str) -> dict[str, str]:
    env = {name: value for name, value in side["env"].items() if not (base and name == "PYTHONPATH")}
    return {
        "rungs": "+".join(side["rungs"]),
        "mode": "call" if call.call else "",
        "revision": base,
        "inputs": full_target(call.inputs),
        **{f"${name}": value for name, value in env.items()},
    }


def _climb(document: Document, call: Call) -> Entry:
    manifest, result = document["manifest"], document.get("result") or {}
    kept = result.get("kept") or []
    answer = ", ".join(filter(None, [" + ".join(kept) or "no recipe", result.get("status")]))
    small = {name: value for name, value in result.items() if name not in _LARGE_IN_RESULT}
    entry = _entry(
        "climb",
        {**document, "result": small or None},
        target=manifest["target"],
        status=manifest["status"],
        answer=answer,
        directory=os.path.abspath(document["directory"]),
        environment=manifest["environment"],
    )
    entry.created = manifest.get("created") or entry.created
    options = manifest.get("options") or {}
    variant = {"mode": manifest["workload"]["mode"], "numerics": manifest["numerics"]}
    if (ranks := manifest.get("facts", {}).get("ranks", 1)) > 1:
        variant["ranks"] = str(ranks)
    texts = {name: str(value) for name, value in options.items()}
    target = full_target(manifest["target"])
    for side in ("baseline", "plain", "best"):
        figure = _Figure(target, texts, variant | {"side": side})
        if time := (result.get("times") or {}).get(side):
            entry.measured += figure.of("time", "ns", time)
    if kept and result.get("speedup"):
        entry.measured += _Figure(target, texts, variant).of("speedup", "x", result["speedup"])
    return entry


def _profile(document: Document, call: Call) -> Entry:
    return _entry(
        "profile",
        document,
        target=call.target,
        answer=f"{document['plan']['profiler']}: {document['plan']['collects']}",
        directory=os.path.abspath(document["folder"]),
    )


@dataclass(frozen=True)
class _Figure:
    target: str
    options: dict[str, str]
    variant: dict[str, str]

    def of(self, name: str, unit: str, estimate: Document) -> list[Measured]:
        """The figure with its interval. One whose ends are the same, or of which one is not known, says nothing of how sure it is."""
        value, low, high = (estimate.get(end) for end in ("value", "low", "high"))
        if value is None or not (0 < value < math.inf):
            return []
        known = low is not None and high is not None and -math.inf < low < high < math.inf
        return [
            Measured(
                name=name,
                target=self.target,
                options=dict(sorted(self.options.items())),
                variant={key: value for key, value in sorted(self.variant.items()) if value},
                unit=unit,
                value=value,
                low=low if known else None,
                high=high if known else None,
            )
        ]


def _memory(figure: _Figure, memory: Document | None) -> list[Measured]:
    """The peak: what was allocated on the device, else what is resident."""
    peak = (memory or {}).get("allocated", (memory or {}).get("resident"))
    return figure.of("memory", "bytes", {"value": float(peak)}) if peak else []
