"""Writes Perfetto packets as the recorder inside rocprofv3 does, independently of the code under test.

Names are interned in the packet that first uses them; the first packet of a sequence clears its state and declares
its clocks; each slice is a begin with annotations and an end without a name, on a track numbered by a hash.
"""

import struct


def varint(value):
    value %= 2**64
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def block(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def double(field, value):
    return varint(field << 3 | 1) + struct.pack("<d", value)


BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
MAIN_CLOCK, OWN_CLOCK = 6, 64


class Recorder:
    def __init__(self, sequence=1, own_clock=False, zero=0):
        self.sequence, self.own_clock = sequence, own_clock
        self.packets = []
        self._last = zero
        self.clear(first=True)

    def clear(self, first=False):
        self.tables = {1: {}, 2: {}, 3: {}, 29: {}}
        clocks = [(MAIN_CLOCK, self._last, 0), (OWN_CLOCK, 0, 1)]
        snapshot = b"".join(
            block(1, number(1, clock) + number(2, time) + number(3, incremental)) for clock, time, incremental in clocks
        )
        defaults = number(58, OWN_CLOCK if self.own_clock else MAIN_CLOCK)
        body = block(6, snapshot + number(2, MAIN_CLOCK)) + block(59, defaults) + number(41, 1)
        self.put(number(13, 1) + body + (number(42, 1) + number(87, 1) if first else b""))

    def put(self, body):
        # The service appends who wrote the packet.
        self.packets.append(block(1, body + number(10, self.sequence) + number(3, 1000) + number(79, 4242)))

    def process(self, uuid, pid, name="python3"):
        self.put(block(60, number(1, uuid) + block(3, number(1, pid) + block(6, name)) + block(2, name)))

    def thread(self, uuid, parent, pid, tid):
        self.put(block(60, number(1, uuid) + number(5, parent) + block(4, number(1, pid) + number(2, tid))))

    def track(self, uuid, name, parent=0, counter=False):
        self.put(block(60, number(1, uuid) + number(5, parent) + block(2, name) + (block(8, b"") if counter else b"")))

    def begin(self, ts, track, category, name, flow=1, **annotations):
        self._event(ts, BEGIN, track, category, name, annotations, flow)

    def end(self, ts, track):
        self._event(ts, END, track)

    def instant(self, ts, track, category, name, **annotations):
        self._event(ts, INSTANT, track, category, name, annotations)

    def counter(self, ts, track, value):
        self._event(ts, COUNTER, track, extra=number(30, value))

    def slice(self, start, stop, track, category, name, **annotations):
        said = {"begin_ns": start, "end_ns": stop, "delta_ns": stop - start}
        self.begin(start, track, category, name, **said, **annotations)
        self.end(stop, track)

    def _event(self, ts, kind, track, category=None, name=None, annotations=(), flow=None, extra=b""):
        fresh = b""

        def iid(table, text):
            nonlocal fresh
            known = self.tables[table]
            if text not in known:
                known[text] = len(known) + 1
                fresh += block(table, number(1, known[text]) + block(2, text))
            return known[text]

        body = number(3, iid(1, category)) if category else b""
        for key in annotations:
            value = annotations[key]
            said = number(1, iid(3, key))
            if isinstance(value, float):
                # add_perfetto_annotation names these in full
                said = double(5, value) + block(10, key)
            elif isinstance(value, int):
                said += number(3, value) if value >= 0 else number(4, value)
            elif key == "agent_type":
                said += number(17, iid(29, value))
            else:
                said += block(6, value)
            body += block(4, said)
        body += number(9, kind)
        body += number(10, iid(2, name)) if name is not None else b""
        body += number(11, track) + extra
        if flow is not None:
            body += varint(47 << 3 | 1) + struct.pack("<Q", flow)
        if self.own_clock and ts >= self._last:
            time = number(8, ts - self._last)
            self._last = ts
        else:  # a time that would run backwards is written in full
            time = number(8, ts) + number(58, MAIN_CLOCK)
        names = block(12, fresh) if fresh else b""
        self.put(time + number(13, 2) + block(11, body) + names)

    def bytes(self):
        return b"".join(self.packets)
