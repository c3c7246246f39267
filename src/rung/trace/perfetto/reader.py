"""Reads the Perfetto protobuf trace (.pftrace) that rocprofv3, rocprof-sys and our own writer make."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from rung.errors import InputError
from rung.trace.perfetto import packet as parts
from rung.trace.perfetto import packets as wire
from rung.trace.perfetto.batch import NONE, Batch
from rung.trace.perfetto.event import BEGIN, COUNTER, END, INSTANT, Event
from rung.trace.perfetto.packet import scan
from rung.trace.perfetto.protobuf import Malformed, varint
from rung.trace.perfetto.resolve import resolve
from rung.trace.perfetto.split import Ints
from rung.trace.perfetto.state import Clocks, Sequence, Tracks
from rung.trace.perfetto.table import COUNTER_CATEGORY, Rows
from rung.trace.source import BLOCK, MAX_WHOLE, Source, too_large
from rung.trace.table import Trace
from rung.trace.unread import Unread

_FEW = 100  # packets that are read faster one by one
_LARGE = 4 * BLOCK  # bytes of a block that is read one by one: the columns of tiny fields take many times their memory
_LOST = -1  # the type of an event whose names were lost


def sniff(head: bytes, path: Path) -> bool:
    """Whether a file with these first bytes, unpacked, is a Perfetto trace. Its name says nothing."""
    return wire.looks_like_packets(head)


def read(path: str | Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in a Perfetto protobuf file, plain or gzip.

    Slices become events where both ends are there (or their annotations state them), instants events of no
    duration. Raises InputError when the file is missing, empty, cut off or something else, or unpacks to more than
    `max_bytes`. With `partial`, what is whole before the cut is read, and the loss counted in `unread`.
    """
    path = Path(path)
    source = Source(path, partial=partial, max_bytes=max_bytes)
    reader = _Reader(path, MAX_WHOLE if max_bytes is None else max_bytes, source.max_value)
    cut = False
    try:
        reader.take(wire.packets(iter(source), source.max_value))
    except wire.TooLong:
        raise too_large(path, source.max_value, "bytes in one packet") from None
    except wire.Cut as error:
        if not partial and not reader.whole:
            raise _not_a_trace(path, str(error)) from None
        if not partial:
            raise InputError(
                f"{path} is cut off or damaged ({error}): record or copy it again, or read what is whole with --partial."
            ) from None
        cut = True
    if cut or source.cut:
        reader.unread["cut off or damaged from here on"] += 1
    if not reader.packets and not partial:
        raise InputError(f"{path} is empty: record the trace again.")
    if reader.packets and not reader.whole:
        raise _not_a_trace(path, "none of its packets can be read")
    return reader.trace()


def _not_a_trace(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not a Perfetto trace ({why}): give a .pftrace file written by rocprofv3 or by rung.")


class _Reader:
    def __init__(self, path: Path, most: int, longest: int) -> None:
        """most: bytes that may be deflated in packets, in all. longest: of one packet."""
        self.path, self._most, self._longest, self._inflated = path, most, longest, 0
        self.unread = Unread()
        self.packets = self.whole = 0
        self._sequences: dict[int, Sequence] = {}
        self._clocks, self._tracks, self._rows = Clocks(), Tracks(), Rows()
        # Begun and not ended: an end has no name, it ends the innermost slice of its track.
        self._open: dict[int, list[tuple[int, int, bool]]] = {}
        # Packets that end a slice, less their time: track, clock and sequence. Valid until any state changes.
        self._ends: dict[bytes, tuple[int, int | None, Sequence]] = {}

    def take(self, blocks: Iterator[wire.Block], nested: bool = False) -> None:
        for data, starts, stops in blocks:
            self.packets += len(starts)
            if len(starts) < _FEW or len(data) > _LARGE:
                self._one_by_one(data, starts, stops, nested)
                continue
            batch = Batch(data, starts, stops)
            borders = [0, *(np.flatnonzero(np.diff(batch.plain)) + 1).tolist(), len(starts)]
            for first, last in pairwise(borders):
                if last - first >= _FEW and batch.plain[first] and self._run(batch, first, last):
                    self.whole += last - first
                else:
                    self._one_by_one(data, starts[first:last], stops[first:last], nested)

    def _one_by_one(self, data: bytes, starts: list[int], stops: list[int], nested: bool) -> None:
        for at, stop in zip(starts, stops, strict=True):
            try:
                self._packet(data, at, stop, nested)
                self.whole += 1
            except InputError:
                raise
            except Malformed:
                self.unread["damaged packet"] += 1

    def _run(self, batch: Batch, first: int, last: int) -> bool:
        """Takes plain packets that follow each other; False, and nothing done, where they need a closer look."""
        numbers, which = np.unique(batch.sequence[first:last], return_inverse=True)
        sequences = [self._sequences[number] for number in numbers.tolist() if number in self._sequences]
        if len(sequences) < len(numbers):
            return False
        kind = batch.type[first:last]
        lost = batch.needs_state[first:last] & ~np.array([one.valid for one in sequences])[which]
        kind = np.where(lost, _LOST, kind)
        chosen = np.flatnonzero((kind == BEGIN) | (kind == INSTANT))
        events = resolve(batch, first + chosen, which[chosen], sequences)
        if events is None:
            return False
        instant = (kind[chosen] == INSTANT).tolist()
        if any(at and name == COUNTER_CATEGORY for at, name in zip(instant, events.categories, strict=True)):
            return False
        tracks: list[int] = batch.track[first:last].view(np.uint64).tolist()
        for at in np.flatnonzero(~batch.has_track[first:last]).tolist():
            tracks[at] = sequences[which[at]].track
        times = self._times(batch.time[first:last], batch.clock[first:last], which, sequences)
        rows = chosen.tolist()
        row = self._rows.extend(
            events, [tracks[at] for at in rows], [times[at] for at in rows], [0 if at else None for at in instant]
        )
        self._pair(row, kind.tolist(), tracks, times)
        return True

    def _times(self, time: Ints, clock: Ints, which: Ints, sequences: list[Sequence]) -> list[int]:
        main = self._clocks.main
        usual = np.array([one.clock is None or one.clock == main for one in sequences])
        if ((clock == main) | (clock == NONE) & usual[which]).all():
            return time.tolist()
        times: list[int] = time.tolist()
        for position, sequence in enumerate(sequences):
            rows = np.flatnonzero(which == position)
            default = main if sequence.clock is None else sequence.clock
            numbers = [default if number == NONE else number for number in clock[rows].tolist()]
            for number in set(numbers):
                of_clock = [row for row, other in zip(rows.tolist(), numbers, strict=True) if other == number]
                found = self._clocks.column([times[row] for row in of_clock], number, sequence)
                for row, ns in zip(of_clock, found, strict=True):
                    times[row] = ns
        return times

    def _pair(self, row: int, kinds: list[int], tracks: list[int], times: list[int]) -> None:
        """Gives slices their ends. row: that of the first slice or instant."""
        durations, opened = self._rows.columns["dur"], self._open
        for kind, track, ns in zip(kinds, tracks, times, strict=True):
            if kind == BEGIN:
                opened.setdefault(track, []).append((row, ns, durations[row] is None))
                row += 1
            elif kind == END and (begun := opened.get(track)):
                at, start, unknown = begun.pop()
                if unknown:
                    durations[at] = ns - start
            elif kind == END:
                self.unread["end without a begin"] += 1
            elif kind == INSTANT:
                row += 1
            elif kind == _LOST:
                self.unread["event whose names were lost"] += 1
            else:
                self._not_in_table(kind)

    def _packet(self, data: bytes, at: int, stop: int, nested: bool) -> None:
        time, short = 0, False
        if at < stop and data[at] == 0x40:
            # The time comes first. The ends of a track differ in nothing else.
            time, at = varint(data, at + 1, stop)
            short = stop - at < 40
            if short:
                rest = data[at:stop]
                known = self._ends.get(rest)
                if known is not None:
                    self._end(known[0], self._clocks.ns(time, known[1], known[2]))
                    return
        (time, clock, number, flags, dropped), spans = scan(data, at, stop, time)
        sequence = self._sequences.get(number)
        if sequence is None:
            sequence = self._sequences[number] = Sequence()
        elif dropped:
            # The first packet of a sequence says so too, where nothing is lost.
            self.unread["packets lost by the recorder"] += 1
            sequence.valid = False
        if flags & parts.CLEARED:
            sequence.clear()
        if dropped or flags & parts.CLEARED or len(spans) > 1 or parts.EVENT not in spans:
            self._ends.clear()
            self._state(data, spans, sequence)
        if parts.EVENT in spans:
            ns = self._clocks.ns(time, clock, sequence)
            if flags & parts.NEEDS_STATE and not sequence.valid:
                self.unread["event whose names were lost"] += 1
            else:
                event = Event(data, *spans[parts.EVENT], sequence)
                self._event(event, ns)
                if short and event.type == END and len(self._ends) < 10_000:
                    self._ends[rest] = event.track, clock, sequence
        if parts.COMPRESSED in spans:
            if nested:
                raise Malformed("packets compressed twice")
            inner = self._counted(wire.inflated(data, *spans[parts.COMPRESSED]))
            self.take(wire.packets(inner, self._longest), nested=True)

    def _state(self, data: bytes, spans: parts.Spans, sequence: Sequence) -> None:
        if parts.SNAPSHOT in spans:
            self._clocks.snapshot(data, *spans[parts.SNAPSHOT], sequence)
        if parts.DEFAULTS in spans:
            sequence.defaults(data, *spans[parts.DEFAULTS])
        if parts.INTERNED in spans:
            sequence.intern(data, *spans[parts.INTERNED])
        if parts.DESCRIPTOR in spans:
            self._tracks.describe(data, *spans[parts.DESCRIPTOR])

    def _counted(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self._inflated += len(block)
            if self._inflated > self._most:
                raise too_large(self.path, self._most)
            yield block

    def _event(self, event: Event, ns: int) -> None:
        if event.type == BEGIN:
            row = self._rows.add(event, ns, None)
            self._open.setdefault(event.track, []).append((row, ns, self._rows.columns["dur"][row] is None))
        elif event.type == END:
            self._end(event.track, ns)
        elif event.type == INSTANT:
            if event.category == COUNTER_CATEGORY:
                self._rows.add_counters(event)
            else:
                self._rows.add(event, ns, 0)
        else:
            self._not_in_table(event.type)

    def _not_in_table(self, kind: int) -> None:
        self.unread["counter event" if kind == COUNTER else "event of another type"] += 1

    def _end(self, track: int, ns: int) -> None:
        begun = self._open.get(track)
        if not begun:
            self.unread["end without a begin"] += 1
            return
        row, start, unknown = begun.pop()
        if unknown:
            self._rows.columns["dur"][row] = ns - start

    def trace(self) -> Trace:
        events, counters, agents = self._rows.frames(self._tracks, self.unread)
        meta: dict[str, object] = {}
        if agents:
            meta["agents"] = agents
        if self._clocks.unknown:
            meta["times of an unknown clock"] = self._clocks.unknown
        names = sorted({track.process for track in self._tracks.by_uuid.values() if track.process})
        if names:
            meta["processes"] = names
        return Trace(
            events=events,
            source=str(self.path),
            unread=dict(self.unread),
            unread_ns=dict(self.unread.ns),
            format="pftrace",
            counters=counters,
            meta=meta,
        )
