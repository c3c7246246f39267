"""Cuts the text of a Chrome trace between its events, so that a trace of any size is read in small batches.

Where to cut is a guess that cannot go wrong unnoticed: what comes before a cut is a complete JSON list only if
the cut lies between two events of the list. Where the guess fails, brackets are counted.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from rung.trace.source import MAX_VALUE

E = TypeVar("E")

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*\{\s*"(?:ph|name|cat|pid|ts|args)"')
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(_STRING + rb"?|[\[\]{},]", re.DOTALL)
_REPLACEMENT = "\ufffd".encode()
_LEAST = 1 << 18  # bytes: a batch costs a fifth of a millisecond, however small
_DEEPEST = 10_000  # lists and objects in each other; no JSON reader follows so many
_GUESS = 1 << 14  # bytes before the end of a block in which to look for the last event's end
# Kineto prints the bandwidth of a copy of no duration as a bare inf or nan, which is not JSON.
_PERHAPS_NOT_A_NUMBER = re.compile(rb":\s*-?(?:nan|inf)", re.IGNORECASE)
_NOT_A_NUMBER = re.compile(_STRING + rb"|(:\s*)-?(?:nan|inf|infinity)\s*(?=[,}])", re.IGNORECASE | re.DOTALL)


class NotATrace(Exception):
    """The text is JSON or something else, but no Chrome trace."""


class CutOff(Exception):
    """The text ends or breaks before its end."""


class TooLong(Exception):
    """There is more of something than is read."""

    def __init__(self, most: int, what: str) -> None:
        super().__init__(most, what)
        self.most, self.what = most, what


class Text:
    """Gives the events of a Chrome trace, in lists, to `take`; keeps what stands around them in `top`.

    take: reads a JSON list, or raises one of BROKEN (msgspec.ValidationError: it is JSON, but no list of events).
        What it is given is only valid during the call.
    partial: end at the first damage, and say in `cut` what it was, instead of raising CutOff.
    longest: bytes that may stand before, after or between two events; TooLong is raised for more.
    replaced: how many characters of the events are no UTF-8, and were read as the replacement character.
    """

    def __init__(self, blocks: Iterator[bytes], partial: bool = False, longest: int = MAX_VALUE) -> None:
        self._blocks = blocks
        self._longest = longest
        self._partial = partial
        self._bare = False  # the file is a list of events without an object around it
        self.top: dict[str, Any] = {}
        self.cut = ""
        self.replaced = 0

    def read(self, take: Callable[[bytes | memoryview], None]) -> None:
        self._take = take
        try:
            rest = self._read_header()
            rest = self._read_batches(rest)
            self._read_end(rest)
        except CutOff as error:
            if not self._partial:
                raise
            self.cut = str(error)

    def _read_header(self) -> bytes:
        """Reads up to the list of events; returns what follows its opening bracket."""
        text, looked = b"", 0
        for block in self._pieces():
            text = (text + block) if text else block.removeprefix(b"\xef\xbb\xbf").lstrip()
            if text[:1] == b"[":  # Some tools write the list of events alone; the Chrome format allows it.
                self._bare = True
                return text[1:]
            if text and text[:1] != b"{":
                raise NotATrace("it is not JSON")
            for found in _KEY.finditer(text, looked):
                for before in (text[: found.start()], repaired(text[: found.start()])):
                    with contextlib.suppress(*BROKEN):
                        self.top.update(_object(before.rstrip().removesuffix(b",") + b"}"))
                        return text[found.end() :]
            looked = max(0, len(text) - 64)
        if not text.strip():
            raise NotATrace("")
        try:
            _object(text)
        except BROKEN as error:
            raise CutOff(str(error)) from None
        raise NotATrace("it has no list traceEvents")

    def _pieces(self) -> Iterator[bytes]:
        """The blocks, but each piece as large as all before it: what is looked at again and again stays linear."""
        waiting, size, total = [], 0, 0
        for block in self._blocks:
            waiting.append(block)
            size += len(block)
            self._limit(total + size)
            if size >= total:
                yield b"".join(waiting)
                total, size, waiting = total + size, 0, []
        if waiting:
            yield b"".join(waiting)

    def _read_batches(self, text: bytes) -> bytes:
        """Takes events as they come, and returns the text in which the list of events ends."""
        listed, wait = _Listed(text), _LEAST
        for block in self._blocks:
            if listed.size > wait:
                wait = _LEAST
                at = _guess(listed.data, listed.size)
                if not (at and listed.cut(at, self._taken)):
                    text = listed.text()
                    cuts, ended = _boundaries(text)
                    if ended:
                        return text + self._remaining(block)
                    if cuts:
                        self._take_or_fail(text[: cuts[-1]])
                        listed = _Listed(text[cuts[-1] + 1 :])
                    else:
                        wait = 2 * listed.size  # an event larger than a block: look again when there is twice as much
            listed.append(block)
            self._limit(listed.size)
        return listed.text()

    def _remaining(self, block: bytes) -> bytes:
        """This block and all that follow it."""
        found, size = [block], len(block)
        for more in self._blocks:
            found.append(more)
            size += len(more)
            self._limit(size)
        return b"".join(found)

    def _limit(self, size: int) -> None:
        if size > self._longest:
            raise TooLong(self._longest, "bytes in one value")

    def _read_end(self, text: bytes) -> None:
        whole = b'{"traceEvents":[' + text + (b"}" if self._bare else b"")
        for candidate in (whole, repaired(whole)):
            with contextlib.suppress(*BROKEN):
                keys = msgspec.json.decode(candidate, type=dict[str, msgspec.Raw])
                self._take_or_fail(bytes(keys.pop("traceEvents")).strip()[1:-1])
                self.top.update({key: msgspec.json.decode(value) for key, value in keys.items()})
                return
        if self._partial:
            cuts, _ = _boundaries(text)
            self._take_or_fail(text[: cuts[-1]] if cuts else b"")
        try:
            msgspec.json.decode(whole)
        except BROKEN as error:
            raise CutOff(str(error)) from None
        raise CutOff("the list of events does not end")

    def _taken(self, listed: bytes | memoryview) -> bool:
        """Whether this was a complete list. Not only where it is cut wrongly is it none."""
        try:
            self._take(listed)
            return True
        except msgspec.ValidationError as error:
            raise NotATrace(str(error)) from None
        except BROKEN:
            mended = repaired(listed)
            if mended == listed:
                return False
        try:
            self._take(mended)
            self.replaced += mended.count(_REPLACEMENT) - bytes(listed).count(_REPLACEMENT)
            return True
        except msgspec.ValidationError as error:
            raise NotATrace(str(error)) from None
        except BROKEN:
            return False

    def _take_or_fail(self, events: bytes) -> None:
        if self._taken(b"[" + events + b"]"):
            return
        why = "an event is not JSON"
        try:
            msgspec.json.decode(b"[" + events + b"]")
        except BROKEN as error:
            why = str(error)
        if self._partial:
            # The longest part that is a list of whole events: halve, as each try costs a reading.
            cuts, low = _boundaries(events)[0], 0
            high = len(cuts)
            while low < high:
                middle = (low + high + 1) // 2
                try:
                    msgspec.json.decode(repaired(b"[" + events[: cuts[middle - 1]] + b"]"))
                    low = middle
                except BROKEN:
                    high = middle - 1
            if low:
                self._taken(b"[" + events[: cuts[low - 1]] + b"]")
        raise CutOff(why)


class _Listed:
    """The beginning of a list of events in memory of its own, cut in place: copies would cost more than decoding."""

    def __init__(self, text: bytes) -> None:
        self.data = bytearray(b"[" + text)
        self.size = len(self.data)

    def text(self) -> bytes:
        """What is there, without the opening bracket."""
        return bytes(memoryview(self.data)[1 : self.size])

    def append(self, block: bytes) -> None:
        start, self.size = self.size, self.size + len(block)
        if self.size > len(self.data):
            # Not extended: a profiler that samples threads, as a worker of Dask has one, keeps frames for longer than they run, and with
            # them views of this memory.
            grown = bytearray(start + self.size)
            grown[:start] = memoryview(self.data)[:start]
            self.data = grown
        self.data[start : self.size] = block

    def cut(self, at: int, taken: Callable[[memoryview], bool]) -> bool:
        """Offers the list up to `at` and keeps what follows the next comma, if the list is taken."""
        comma, byte = self.data.find(b",", at, self.size), self.data[at]
        self.data[at] = ord("]")
        with memoryview(self.data) as view:
            if not taken(view[: at + 1]):
                view[at] = byte
                return False
            rest = self.size - comma
            view[:rest] = view[comma : self.size]
        self.data[0] = ord("[")
        self.size = rest
        return True


def repaired(text: bytes | memoryview) -> bytes:
    """The text with numbers that are none as null, and bytes that are no UTF-8 as the replacement character."""
    mended = bytes(text).decode("utf-8", "replace").encode()
    if not _PERHAPS_NOT_A_NUMBER.search(mended):
        return mended
    return _NOT_A_NUMBER.sub(lambda found: found[1] + b"null" if found[1] else found[0], mended)


def _object(text: bytes) -> dict[str, Any]:
    keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return {key: msgspec.json.decode(value) for key, value in keys.items()}


def _guess(data: bytearray, size: int) -> int:
    """Where an event near the end of the first `size` bytes seems to end and another to begin; 0 where none does."""
    window = _GUESS
    while True:
        start = max(0, size - window)
        last = 0
        for found in _BETWEEN.finditer(data, start, size):
            last = found.start() + 1
        if last or not start:
            return last
        window *= 8


def _boundaries(text: bytes) -> tuple[list[int], bool]:
    """Where the events of a list end whose opening bracket comes before `text`, and whether nothing is to be looked for after
    them: the list ends, or is nested more deeply than can be read."""
    depth = 0
    cuts: list[int] = []
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in (b"{", b"["):
            depth += 1
            if depth > _DEEPEST:
                return cuts, True
        elif token in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                if text[: found.start()].strip():
                    cuts.append(found.start())
                return cuts, True
        elif token == b"," and depth == 0:
            cuts.append(found.start())
    return cuts, False


def events_that_say(
    said: re.Pattern[bytes], text: bytes | memoryview, decode: Callable[[bytes | memoryview], list[E]]
) -> list[E]:
    """The events of a JSON list in which a pattern is found. None of other texts, which cost one search, and none of what is no list
    of events: the event reader refuses that."""
    if not said.search(text):
        return []
    try:
        return decode(text)
    except BROKEN:
        return []
