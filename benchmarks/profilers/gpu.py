"""What the profilers cost on an NVIDIA GPU, what sampling costs, whether its watts are true, and what `rung doctor` says.

    python benchmarks/profilers/gpu.py FOLDER [--seconds 480] [--only doctor,sensors,torch,nsight,sampling]

Prints Markdown, and keeps what every command printed and wrote in FOLDER, files over 5 MB left out. Each part has a time
limit; one that fails says so, and the next begins; what no time is left for is left out, and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
sys.path.insert(0, str(SOURCE))
LARGEST = 5_000_000  # bytes of a file that is kept
ENOUGH = 200_000  # bytes of a text
TOOLS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute", "/opt/nvidia/nsight-systems")

# A load for the sensors, and steps for the sampling, told by the clock that the samples have.
LOAD = """
import sys, time, torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
until = time.monotonic() + float(sys.argv[1])
print("ready", flush=True)
while time.monotonic() < until:
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
"""
STEPS = """
import sys, time
from rung.hardware.device import synchronize
from rung.ladder.candidate import Candidate
c = Candidate()
c.open("tiny-transformer", {"size": sys.argv[1]}, [], None)
c.first()
for _ in range(5):
    c.call()
synchronize(c.device)
print("ready", flush=True)
until, out = time.monotonic() + float(sys.argv[2]), []
while time.monotonic() < until:
    begin = time.monotonic_ns()
    c.call()
    synchronize(c.device)
    out.append((begin, time.monotonic_ns() - begin))
with open(sys.argv[3], "w") as file:
    file.write("\\n".join(f"{a} {b}" for a, b in out))
"""


@dataclass(frozen=True)
class Done:
    code: int | None  # None: it did not end in time
    out: str
    err: str
    seconds: float

    @property
    def why(self) -> str:
        """In a few words, for a table."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        last = next((line for line in lines if line.startswith("rung: ")), lines[-1] if lines else "nothing was said")
        return f"{'stopped: too long' if self.code is None else f'exit {self.code}'}: {last[:160]}".replace("|", "/")


class Bench:
    """Where outputs go, and how much time is left for all of it."""

    def __init__(self, folder: Path, seconds: float, sizes: Sequence[str]) -> None:
        self.sizes = sizes
        self.folder, self.until = folder, time.monotonic() + seconds
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
                    "PATH": os.pathsep.join([os.environ.get("PATH", ""), *tool_folders()]), "COLUMNS": "110"}  # fmt: skip

    def left(self) -> float:
        return self.until - time.monotonic()

    def call(self, name: str, argv: Sequence[str], limit: float) -> Done:
        """Runs it to its end or for `limit` seconds, all that it started with it; keeps what it printed."""
        limit, begun = max(1.0, min(limit, self.left())), time.monotonic()
        process = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace", env=self.env, cwd=self.folder, start_new_session=True)  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # rung ends what it started itself
            try:
                out, err = process.communicate(timeout=6)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
            code = None
        seconds = time.monotonic() - begun
        (self.folder / f"{name}.txt").write_text(f"$ {' '.join(argv)[:2000]}\nexit {code}, {seconds:.2f} s\n\n{out[:ENOUGH]}\n{err[-ENOUGH:]}")  # fmt: skip
        return Done(code, out, err, seconds)

    def rung(self, name: str, words: Sequence[str], limit: float) -> Done:
        return self.call(name, [sys.executable, "-m", "rung.cli.main", *words], limit)

    def started(self, script: str, words: Sequence[str]) -> subprocess.Popen[str]:
        """A script of ours beside this one, once it says that it is ready."""
        process = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True,
                                   env=self.env, cwd=self.folder, start_new_session=True)  # fmt: skip
        limit = min(60.0, max(1.0, self.left()))
        late = threading.Timer(limit, process.kill)
        late.start()
        ready = process.stdout.readline() if process.stdout else ""
        late.cancel()
        if ready.strip() != "ready":
            process.kill()
            raise RuntimeError(f"the load did not start within {limit:.0f} s (what it said is on stderr)")
        return process


def tool_folders() -> list[str]:
    """Where NVIDIA puts its profilers, newest first."""
    found = [Path(TOOLS[0])]
    for root in TOOLS[1:]:
        for version in sorted(Path(root).glob("*"), reverse=True):
            found += [version, version / "bin"]
    return [str(path) for path in found if path.is_dir()]


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


# --- the parts ---------------------------------------------------------------------------------------------------------


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


def sensors(bench: Bench, seconds: float = 20.0) -> Iterator[str]:
    """NVML through Rung and nvidia-smi, both beside the same load; the window leaves its first and last 3 s out."""
    from rung.profilers.sampling import Sampling

    query = "timestamp,index,power.draw,power.draw.instant,memory.used,clocks.sm,temperature.gpu"
    log = bench.folder / "nvidia-smi.csv"
    load = bench.started(LOAD, [str(seconds)])
    with log.open("w") as out:
        smi = subprocess.Popen(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-lms", "50"],
                               stdout=out, stderr=subprocess.STDOUT)  # fmt: skip
        try:
            with Sampling(bench.folder / "nvml", 20.0) as sampling:
                load.wait(timeout=seconds + 30)
        finally:
            smi.terminate()
            smi.wait()
            end(load)
    table = sampling.table().filter(gpu=0)
    first, last = table["realtime_ns"].min() / 1e9 + 3, table["realtime_ns"].max() / 1e9 - 3
    ours = table.filter((table["realtime_ns"] / 1e9 >= first) & (table["realtime_ns"] / 1e9 <= last))
    theirs = [row for row in smi_rows(log) if first <= row[0] <= last]
    if len(theirs) < 10 or len(ours) < 10:
        yield f"too few samples: {len(ours)} of ours, {len(theirs)} of nvidia-smi; see {log.name}."
        return
    span = (ours["monotonic_ns"].max() - ours["monotonic_ns"].min()) / 1e9
    energy = ours["energy_j"].max() - ours["energy_j"].min()
    ordinary = statistics.fmean(row[1] for row in theirs)
    instant = [row[2] for row in theirs if row[2] is not None]
    rows = [
        ("mean power: NVML's readings, nvidia-smi's power.draw", ours["power_w"].mean(), ordinary, "W"),
        ("mean power: NVML's energy counter by time, power.draw", energy / span, ordinary, "W"),
        ("energy: counter, power.draw over the same time", energy, ordinary * span, "J"),
        ("memory in use (median)", ours["used_bytes"].median() / 2**20, statistics.median(r[3] for r in theirs), "MiB"),
        ("core clock (median)", ours["core_mhz"].median(), statistics.median(r[4] for r in theirs), "MHz"),
        ("temperature (highest)", ours["celsius"].max(), max(r[5] for r in theirs), "°C"),
    ]
    if instant:
        rows.insert(3, ("mean power: energy counter by time, power.draw.instant", energy / span, statistics.fmean(instant), "W"))  # fmt: skip
    yield from (f"{span:.1f} s of bf16 products of 8192³, {len(ours)} samples of ours, {len(theirs)} of nvidia-smi.", "",
             "| what | Rung | nvidia-smi | difference | within 5 %? |", "|---|---|---|---|---|")  # fmt: skip
    for what, mine, other, unit in rows:
        share = mine / other - 1 if other else float("nan")
        verdict = "agree" if abs(share) <= 0.05 else "DISAGREE"
        yield f"| {what} | {mine:.1f} {unit} | {other:.1f} {unit} | {share:+.1%} | {verdict} |"
    yield from ("", f"Sampling at 20 rounds a second: {sampling.overhead}.")


def smi_rows(log: Path) -> list[tuple[float, float, float | None, float, float, float]]:
    """Seconds of the day's clock, power, instant power, MiB, MHz, °C of GPU 0."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        try:
            stamp, _, fraction = cells[0].partition(".")
            at = time.mktime(time.strptime(stamp, "%Y/%m/%d %H:%M:%S")) + float(f"0.{fraction or 0}")
            power, used, clock, celsius = (float(cells[i]) for i in (2, 4, 5, 6))
        except (ValueError, IndexError):
            continue
        instant = float(cells[3]) if cells[3].replace(".", "").isdigit() else None
        if cells[1] == "0":
            found.append((at, power, instant, used, clock, celsius))
    return found


def sampling(bench: Bench) -> Iterator[str]:
    """Steps go on in one process; sensors are read in another, on and off in turns of a second."""
    yield from ("| steps of | rate | steps on, off | median off | on / off, 95 % | CPU time of a core | a round |",
             "|---|---|---|---|---|---|---|")  # fmt: skip
    small, large = bench.sizes[0], bench.sizes[-1]
    for size, rate, seconds in ((small, 10.0, 14.0), (small, 100.0, 10.0), (large, 10.0, 14.0)):
        if bench.left() < seconds + 12:
            yield f"| {size} | {rate:g} Hz | left out: no time was left | | | | |"
            continue
        try:
            yield turns(bench, size, rate, seconds)
        except Exception as error:
            yield f"| {size} | {rate:g} Hz | {type(error).__name__}: {error} | | | | |"


def turns(bench: Bench, size: str, rate: float, seconds: float, turn: float = 1.0) -> str:
    from rung.profilers.sampling import Sampling

    times = bench.folder / f"steps-{size}-{rate:g}.txt"
    steps = bench.started(STEPS, [size, str(seconds), str(times)])
    periods: list[tuple[int, int, bool]] = []
    costs, on = [], True
    try:
        while steps.poll() is None:
            begun = time.monotonic_ns()
            if on:
                with Sampling(bench.folder / "turns", rate) as watched:
                    time.sleep(turn)
                costs.append(watched.overhead)
            else:
                time.sleep(turn)
            periods.append((begun, time.monotonic_ns(), on))
            on = not on
        steps.wait(timeout=10)
    finally:
        end(steps)
    marks = [tuple(map(int, line.split())) for line in times.read_text().splitlines()]
    # A tenth of a second at each end of a turn is nobody's: a thread begins, files are written.
    groups = [(on, [ns for at, ns in marks if begin + 10**8 <= at <= finish - 10**8]) for begin, finish, on in periods]
    groups = [(on, found) for on, found in groups if len(found) >= 3]
    pairs = [(a, b) if first else (b, a) for (first, a), (second, b) in zip(groups[::2], groups[1::2], strict=False)
             if first != second]  # fmt: skip
    ratios = [statistics.median(a) / statistics.median(b) for a, b in pairs]
    if len(ratios) < 3:
        raise RuntimeError(f"only {len(ratios)} pairs of turns had steps")
    low, high = interval(ratios)
    off = statistics.median(ns for _, b in pairs for ns in b)
    counts = sum(len(a) for a, _ in pairs), sum(len(b) for _, b in pairs)
    cpu, read = (statistics.median(getattr(c, key) for c in costs) for key in ("cpu_share", "read_seconds"))
    return (f"| {size} | {rate:g} Hz | {counts[0]}, {counts[1]} | {off / 1e6:.3f} ms | {statistics.median(ratios):.4f} "
            f"({low:.4f} to {high:.4f}) | {cpu:.2%} | {read * 1e3:.2f} ms |")  # fmt: skip


def interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Of the median, by the bootstrap over turns."""
    random.seed(0)
    medians = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


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
    if done.code != 0:
        return f"| {size} | {what} | {done.why} | | | {done.seconds:.1f} s | {wrote / 1e6:.2f} MB |"
    record = json.loads((out / "profile.json").read_text())
    cost = record["overhead"]
    what += replays(out / "recording" / "ncu.csv")
    if not cost:
        return f"| {size} | {what} | no times | | | {done.seconds:.1f} s | {wrote / 1e6:.2f} MB |"
    return (f"| {size} | {what} | {cost['bare_ns'] / 1e6:.3f} ms | {cost['recorded_ns'] / 1e6:.3f} ms | "
            f"{cost['recorded_ns'] / cost['bare_ns']:.2f} | {done.seconds:.1f} s | {wrote / 1e6:.2f} MB |")  # fmt: skip


def replays(path: Path) -> str:
    """How many kernels ncu ran, and how often each."""
    if not path.is_file():
        return ""
    from rung.trace import read

    passes = read(path).counters.filter(counter="profiler__replayer_passes")["value"]
    return f", {len(passes)} kernels of at most {passes.max():.0f} passes" if len(passes) else ""


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
    "sensors": ("Power and energy against nvidia-smi", sensors),
    "torch": ("What torch.profiler costs", torch_profiler),
    "nsight": ("What Nsight costs", nsight),
    "sampling": ("What sampling costs", sampling),
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
