"""Reads a large .pftrace that is made as rocprofv3 makes it: CPU seconds, bytes and events a second, peak memory.

    PYTHONPATH=src python benchmarks/trace/read_pftrace.py [--megabytes 50] [--repeat 3]

Each call of the runtime launches one kernel, on one of four streams; both are annotated. The encoder is that of the tests, which shares
no code with the reader. The best of the repetitions is shown: what else runs on a machine can only add.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

from rung.trace.perfetto.reader import read

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/trace/perfetto"))
from perfetto_encoder import Recorder

PROCESS, MAIN, STREAM = 0xF123_4567_89AB_CDEF, 0x7E57_0000_1111_2222, 0x8000_0000_0000_0001


def make(path: Path, size: int) -> int:
    """Writes a trace of at least so many bytes; how many events it has."""
    recorder = Recorder(zero=1_000)
    recorder.process(PROCESS, 4242)
    recorder.thread(MAIN, PROCESS, 4242, 4242)
    for stream in range(4):
        recorder.track(STREAM + stream, f'STREAM [" {stream} "] ', PROCESS)
    events = written = 0
    with open(path, "wb") as file:
        while written < size:
            n, at = events // 2, 1_000_000_000_000 + 10_000 * events
            recorder.slice(at, at + 4_000, MAIN, "hip_api", "hipLaunchKernel", tid=4242, kind=1, operation=9, corr_id=n)
            recorder.slice(
                at + 5_000, at + 17_000, STREAM + n % 4, "kernel_dispatch", f"void kernel_{n % 200}<float>(float*)", kind=11,
                agent="Agent-4", agent_type="GPU", corr_id=n, queue=1 + n % 4, tid=4242, kernel_id=n % 200, dispatch_id=n,
                VGPR_Count=16, SGPR_Count=32, workgroup_size=256, grid_size=65536,
            )  # fmt: skip
            events += 2
            if len(recorder.packets) > 10_000:
                written += file.write(recorder.bytes())
                recorder.packets.clear()
        file.write(recorder.bytes())
    return events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.pftrace"
        events = make(path, int(options.megabytes * 1e6))
        size, best = path.stat().st_size, float("inf")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(options.repeat):
            began = time.process_time()
            found = read(path)
            best = min(best, time.process_time() - began)
            assert found.events.height == events
            assert not found.unread
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        "| file | events | CPU-s | MB/s | events/s | peak, MB | of it before reading |\n|---|---|---|---|---|---|---|"
    )
    print(
        f"| {size / 1e6:.1f} MB | {events:,} | {best:.2f} | {size / 1e6 / best:.1f} | {events / best:,.0f} | {peak / 1024:.0f} "
        f"| {before / 1024:.0f} |"
    )


if __name__ == "__main__":
    main()
