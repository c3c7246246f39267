"""Reads the Chrome trace that torch.profiler (Kineto) writes, on ROCm and on CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rung.errors import InputError
from rung.trace.kineto.columns import Columns
from rung.trace.kineto.events import Events
from rung.trace.kineto.text import CutOff, NotATrace, Text, TooLong
from rung.trace.names import Demangler
from rung.trace.source import Source, too_large
from rung.trace.table import Trace

# What a trace says of its run, less what may hold secrets or another trace's paths.
_FACTS = (
    "schemaVersion", "baseTimeNanoseconds", "displayTimeUnit", "distributedInfo", "traceName", "trace_id",
    "roctracer_version", "hip_runtime_version", "hip_driver_version", "cupti_version", "cuda_runtime_version",
    "cuda_driver_version", "record_shapes", "with_stack", "with_flops", "with_modules", "profile_memory",
)  # fmt: skip


def sniff(head: bytes, path: Path) -> bool:
    """Whether this is the beginning of a Chrome trace: its object with the list of events, or the list alone."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"[":
        return b'"ph"' in text or not text[1:].strip(b" \r\n\t]")
    return text[:1] == b"{" and any(
        key in text for key in (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"', b'"displayTimeUnit"')
    )


def read(path: str | Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in `path`: Chrome trace JSON as torch.profiler exports it, plain or gzip.

    Compression is told by content, not by the file's name. A trace without events is a valid empty trace.
    Raises InputError when the file is missing, empty, cut off or something else.

    partial: read what is whole before the first damage; `meta["cut"]` says what the damage was, and `unread`
        counts it. meta holds the facts that the file states about its run; `replaced` says how many characters of its events
        are no UTF-8; `mangled_names` how many names stay unreadable;
        `linked_by_flow` how many GPU events got their correlation id from an arrow (kineto_flows.py).
    """
    source = Source(path, partial=partial, max_bytes=max_bytes)
    names = Demangler()
    columns = Columns(rename=names)
    text = Text(iter(source), partial=partial, longest=source.max_value)
    events = Events(columns, text.top, most=source.max_events)
    try:
        text.read(events.take)
    except TooLong as error:
        raise too_large(source.path, error.most, error.what) from None
    except NotATrace as error:
        if not source.size or str(error) == "":
            raise InputError(f"{path} is empty: record the trace again.") from None
        raise _not_a_trace(path, str(error)) from None
    except CutOff as error:
        raise InputError(
            f"{path} is not complete JSON, it seems cut off or damaged ({error}): copy or record the trace again, "
            "or read what is whole with --partial."
        ) from None
    if events.seen and not events.phases:
        raise _not_a_trace(path, "its events have no phase (ph)")
    unread = dict(events.unread)
    meta: dict[str, Any] = {key: text.top[key] for key in _FACTS if key in text.top}
    if cut := source.cut or (text.cut and f"the JSON is damaged or cut off ({text.cut})"):
        unread["events after the cut, number unknown"] = 1
        meta["cut"] = cut
    frame, by_flow = events.flows.linked(columns.frame())
    if by_flow:
        meta["linked_by_flow"] = by_flow
    if text.replaced:
        meta["replaced"] = (
            f"{text.replaced:,} characters in it are not UTF-8, names with them are read with \ufffd instead."
        )
    if names.unread:
        meta["mangled_names"] = names.unread
    devices = text.top.get("deviceProperties")
    return Trace(
        events=frame,
        devices=[device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else [],
        source=str(path),
        unread=unread,
        unread_ns=dict(events.unread_ns),
        format="kineto",
        collectives=events.collectives.frame(),
        grids=events.grids.frame(),
        meta=meta,
        memory=events.memory.frame(),
    )


def _not_a_trace(path: str | Path, why: str) -> InputError:
    return InputError(
        f"{path} is not a torch.profiler trace ({why}): give a file written by torch.profiler's export_chrome_trace."
    )
