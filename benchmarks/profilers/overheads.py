"""What torch.profiler and Nsight cost a step, as `rung profile` tells it: a row of a table each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from commands import Bench, Done

from rung.errors import InputError
from rung.trace import read

TABLE = (
    "| size | profiler | a step without | recorded | ratio | whole command | wrote |",
    "|---|---|---|---|---|---|---|",
)
COST = ("", "Without: the same steps in the same process before (torch), or in a process of their own (nsys, ncu). "
        "The whole command includes the start of Python, torch and CUDA, and the analysis.")  # fmt: skip


def torch_profiler(bench: Bench) -> Iterator[str]:
    def with_torch(what: str, steps: int, *options: str) -> tuple[str, list[str]]:
        return f"torch: {what}", ["--with", "torch", "--steps", str(steps), *options]

    plain, memory = with_torch("shapes (default)", 10), with_torch("--memory --flops", 10, "--memory", "--flops")
    everything = with_torch("everything (stacks, modules, memory, FLOP)", 5, "--modules", "--memory", "--flops")
    small = [plain, with_torch("--no-shapes", 10, "--no-shapes"), memory, with_torch("--stacks", 5, "--stacks"),
             everything, with_torch("shapes, --power --vram", 10, "--power", "--vram")]  # fmt: skip
    bench.rung("list", ["profile", "--list"], 30)
    yield from TABLE
    for size, many in ((bench.sizes[0], small), (bench.sizes[-1], [plain, everything])):
        for what, options in many:
            yield from row(bench, size, what, ["--size", size, *options], 75)
    yield from COST


def nsight(bench: Bench) -> Iterator[str]:
    """Of a small model: ncu keeps and restores the program's memory for every pass of every kernel."""
    least = ["--hidden-dim", "128", "--num-layers", "1", "--steps", "1"]
    yield from TABLE
    for what, options in (
        ("ncu: preset nsight-counters", ["--preset", "nsight-counters"]),
        ("ncu: preset nsight-full, --kernels gemm", ["--preset", "nsight-full", "--kernels", "gemm"]),
        ("nsys: preset nsight", ["--preset", "nsight"]),
    ):
        bench.rung(f"dry-{options[1]}", ["profile", "tiny-transformer", "--dry-run", *least, *options], 30)
        yield from row(bench, "1 layer of 128", what, [*least, *options], 60)
    small, size = "ncu: preset nsight-counters", bench.sizes[0]
    yield from row(bench, size, small, ["--size", size, "--steps", "1", "--preset", "nsight-counters"], 60)
    yield from COST


def row(bench: Bench, size: str, what: str, options: Sequence[str], limit: float) -> Iterator[str]:
    tool = what.partition(":")[0]
    if tool != "torch" and not shutil.which(tool, path=bench.env["PATH"]):
        yield f"| {size} | {what} | {tool} is not on PATH | | | | |"
        return
    if bench.left() < 25:
        yield f"| {size} | {what} | left out: no time was left | | | | |"
        return
    name = "".join(c if c.isalnum() or c == "-" else "-" for c in f"{size}-{what}")
    out, limit = bench.folder / name, min(limit, bench.left())
    # The profiler is stopped by rung itself, early enough that its run without one and its answer fit.
    words = ["profile", "tiny-transformer", "--out", str(out), "--deadline", f"{limit - 15:.0f}", *options]
    yield profiled(bench, size, what, out, bench.rung(f"{name}-page", words, limit))


def profiled(bench: Bench, size: str, what: str, out: Path, done: Done) -> str:
    wrote = sum(path.stat().st_size for path in (out / "recording").rglob("*") if path.is_file())
    what += replays(out / "recording" / "ncu.csv")
    end = f"{done.seconds:.1f} s | {wrote / 1e6:.2f} MB |"
    if done.code != 0:
        return f"| {size} | {what} | {done.why} | | | {end}"
    cost = json.loads((out / "profile.json").read_text())["overhead"]
    if not cost:
        return f"| {size} | {what} | no times | | | {end}"
    bare, recorded = cost["bare_ns"], cost["recorded_ns"]
    return f"| {size} | {what} | {bare / 1e6:.3f} ms | {recorded / 1e6:.3f} ms | {recorded / bare:.2f} | {end}"


def replays(path: Path) -> str:
    """How many kernels ncu ran, and how often each; of a recording that was stopped, those until then."""
    try:
        passes = read(path).counters.filter(counter="profiler__replayer_passes")["value"]
    except InputError:
        return ""
    if not len(passes):
        return ""
    least, most = int(passes.min()), int(passes.max())
    each = f"{most} pass{'es' if most > 1 else ''} each" if least == most else f"{least} to {most} passes each"
    return f", {len(passes)} kernels of {each}"
