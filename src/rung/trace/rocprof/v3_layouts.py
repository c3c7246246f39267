"""The CSV files of rocprofv3, from ROCm 6.0 to 7.x and as `rocpd convert` writes them: which one is it, what is where.

Titles are in the one spelling of `_tool_csv.plain`. Versions add, move and rename columns; they are found by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

START, END = "start_timestamp", "end_timestamp"


@dataclass(frozen=True)
class Layout:
    """One sort of file. needs: the titles that tell it from others; kind: of its events, None where it has none."""

    what: str
    needs: frozenset[str]
    kind: str | None = None
    name: tuple[str, ...] = ()  # where the event's name stands: the first of these that is there
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of SCHEMA → titles, the first with a value

    @property
    def titles(self) -> frozenset[str]:
        """All that is read of such a file; empty where everything is."""
        if self.kind is None:
            return frozenset()
        return self.needs.union(self.name, *self.columns.values(), _BESIDE)


_BESIDE = (START, END, "dispatch_id", "address", "starting_address")

_IDS = {"correlation": ("correlation_id",), "tid": ("thread_id",), "pid": ("process_id",)}
_STREAM = ("stream_id", "queue_id")  # the program's stream from 7.0; before, the HSA queue

LAYOUTS = (
    Layout(
        "counter collection",
        frozenset({"counter_name", "counter_value", "correlation_id", "kernel_name"}),
        "kernel",
        ("kernel_name",),
        {**_IDS, "stream": _STREAM, "agent": ("agent_id",)},
    ),
    Layout(
        "kernel trace",
        frozenset({"kind", "kernel_name", START, END}),
        "kernel",
        ("kernel_name",),
        {**_IDS, "stream": _STREAM, "agent": ("agent_id",)},
    ),
    Layout("API trace", frozenset({"domain", "function", START, END}), "runtime", ("function",), _IDS),
    Layout(
        "memory copy trace",
        frozenset({"direction", "source_agent_id", "destination_agent_id", START, END}),
        "memcpy",
        ("direction",),
        {**_IDS, "stream": ("stream_id",)},
    ),
    Layout(
        "scratch memory trace",
        frozenset({"operation", "alloc_flags", START, END}),
        "allocation",
        ("operation",),
        {**_IDS, "stream": ("queue_id",), "agent": ("agent_id",), "bytes": ("allocation_size",)},
    ),
    Layout(
        "memory allocation trace",
        frozenset({"operation", "allocation_size", START, END}),
        "allocation",
        ("operation",),
        {**_IDS, "agent": ("agent_id",), "bytes": ("allocation_size",)},
    ),
    Layout("agent info", frozenset({"node_id", "agent_type"})),
    Layout("statistics", frozenset({"name", "calls", "totaldurationns", "minns"})),
    Layout("PC samples", frozenset({"sample_timestamp", "exec_mask"})),
)

# How the domain of a call tells its kind.
DOMAINS = {"MARKER": "annotation", "HIP": "runtime", "HSA": "runtime", "RCCL": "runtime", "ROC": "runtime"}


def layout_of(titles: Collection[str]) -> Layout | None:
    """The sort of file that has these titles."""
    there = set(titles)
    return next((layout for layout in LAYOUTS if layout.needs <= there), None)
