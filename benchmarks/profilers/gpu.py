"""What the profilers cost on an NVIDIA GPU, what sampling costs, whether its watts are true, and what `rung doctor` says.

    python benchmarks/profilers/gpu.py FOLDER [--seconds 480] [--only doctor,sensors,torch,nsight,sampling]

Prints Markdown, and keeps what every command printed and wrote in FOLDER, files over 5 MB left out. Each part has a time
limit; one that fails says so, and the next begins; what no time is left for is left out, and says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import overheads
import turns
import watts
from commands import Bench

LARGEST = 5_000_000  # bytes of a file that is kept


def doctor(bench: Bench) -> Iterator[str]:
    yield from ("| run | wall time | it says |", "|---|---|---|")
    for number in (1, 2, 3):
        done = bench.rung(f"doctor-{number}", ["doctor", "--json"], 30)
        if done.code != 0:
            yield f"| {number} | {done.seconds:.2f} s | {done.why} |"
            return
        yield f"| {number} | {done.seconds:.2f} s | {json.loads(done.out)['summary']} |"
        if number == 1:
            (bench.folder / "doctor.json").write_text(done.out)
    bench.rung("doctor-page", ["doctor", "--all", "--wait", "30"], 60)
    yield from ("", "The page is in doctor-page.txt, the lines in doctor.json.")


def small_enough(folder: Path) -> list[str]:
    """Removes what is too large to be kept, and says so."""
    gone = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size > LARGEST:
            gone.append(f"{path.relative_to(folder)} ({path.stat().st_size / 1e6:.1f} MB)")
            path.unlink()
    return [f"Not kept, over {LARGEST / 1e6:.0f} MB: {', '.join(gone)}."] if gone else []


PARTS: dict[str, tuple[str, Callable[[Bench], Iterator[str]]]] = {
    "doctor": ("rung doctor", doctor),
    "sensors": ("Power and energy against nvidia-smi", watts.sensors),
    "torch": ("What torch.profiler costs", overheads.torch_profiler),
    "nsight": ("What Nsight costs", overheads.nsight),
    "sampling": ("What sampling costs", turns.sampling),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=480.0, help="for all of it (default: 480)")
    parser.add_argument("--sizes", default="small,medium", help="of the tiny transformer (default: small,medium)")
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ",".join(PARTS))
    parsed = parser.parse_args()
    parsed.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(parsed.folder.resolve(), parsed.seconds, tuple(parsed.sizes.split(",")))
    lines: list[str] = []

    def say(*more: str) -> None:
        lines.extend(more)
        print("\n".join(more), flush=True)
        (bench.folder / "report.md").write_text("\n".join(lines) + "\n")

    machine = "import torch; print(torch.cuda.get_device_name(0), torch.__version__, torch.version.cuda)"
    found = bench.call("machine", [sys.executable, "-c", machine], 90)
    say(f"# Profilers: {found.out.strip() or found.why}", "")
    for name in parsed.only.split(","):
        title, part = PARTS[name]
        say(f"## {title}", "")
        begun = time.monotonic()
        try:
            for line in part(bench):
                say(line)
        except Exception as error:
            say(f"failed: {type(error).__name__}: {error}")
        say("", f"({time.monotonic() - begun:.0f} s)", "")
    say(*small_enough(bench.folder))


if __name__ == "__main__":
    main()
