"""Damage of the kinds that files meet: for fuzzing the readers. `python tests/trace/mutations.py FILES` runs it at length."""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import tempfile
import time
from pathlib import Path

from rung.analysis.analyses import ANALYSES, table
from rung.analysis.overview import overview
from rung.errors import InputError
from rung.hardware.device import peak_resident
from rung.trace import Trace, read

_JUNK = [b"}", b"]", b"{", b"[", b'"', b",", b"\\", b"\xff", b"nan", b"-", b"1e999", b"null", b'},{"ph":"X"', b"\0"]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to four damages: bytes changed, put in, taken out, repeated or cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        length = rng.choice([1, 1, 4, 60, 2000])
        kind = rng.randrange(6)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at:at] = rng.choice(_JUNK)
        elif kind == 2:
            del changed[at : at + length]
        elif kind == 3:
            changed[at:at] = changed[at : at + length]
        elif kind == 4:
            changed[at : at + length] = rng.randbytes(min(length, 8))
        elif rng.random() < 0.3:
            del changed[at:]
    return bytes(changed)


def sample(data: bytes, size: int) -> bytes:
    """Less of a large file, so that a case costs little."""
    if len(data) <= size or data.startswith(b"SQLite"):
        return data
    if b'"traceEvents"' not in data[:size]:
        return data[:size]
    first = data[: data.rindex(b'"ph"', 0, size // 2)]
    last = data[data.index(b'"ph"', len(data) - size // 2) :]
    return first + last  # an event's beginning and another one's end: still a trace


def attempt(path: Path, data: bytes, rng: random.Random, analyze: bool = False) -> str:
    """One case: "read", "refused", and any other exception goes on. analyze: what was read answers every analysis, too."""
    packed = rng.random() < 0.25
    whole = gzip.compress(data, 1) if packed else data
    path.write_bytes(mutated(whole, rng))
    try:
        trace = read(path, partial=rng.random() < 0.5, max_bytes=200_000_000, cache=False)
    except InputError as error:
        if "\n" in str(error) or len(str(error)) > 500:
            raise AssertionError(f"This is not a sentence: {error}") from None
        return "refused"
    assert isinstance(trace, Trace)
    assert trace.events.height == 0 or trace.events["dur"].min() >= 0
    if analyze:
        for name in ANALYSES:
            table(name, trace)
        overview(trace, steps=1)
    return "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--analyze", action="store_true", help="work out every analysis of what is read")
    parser.add_argument("--size", type=int, default=60_000, help="bytes of each file that are used")
    options = parser.parse_args()
    texts = []
    for file in options.files:
        data = file.read_bytes()
        texts.append(sample(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, options.size))
    counts: dict[str, int] = {}
    slowest, failures = 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for case in range(options.seed, options.seed + options.cases):
            rng = random.Random(case)
            start = time.process_time()
            try:
                outcome = attempt(Path(folder) / "case", rng.choice(texts), rng, options.analyze)
            except Exception as error:
                failures += 1
                outcome = type(error).__name__
                print(f"case {case}: {type(error).__name__}: {error}", file=sys.stderr)
            slowest = max(slowest, time.process_time() - start)
            counts[outcome] = counts.get(outcome, 0) + 1
    memory = peak_resident() // 2**20
    print(f"{options.cases} cases: {counts}; slowest {slowest:.2f} CPU-s; peak {memory} MB")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
