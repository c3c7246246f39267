"""A trace for pages: two ranks, modules, operators with shapes, memory, curves; its names can be a stranger's."""

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import rung
from rung.analysis.diff import diff
from rung.analysis.per_step import per_step
from rung.analysis.pictures import pictures, roofs
from rung.records.bench import Bench
from rung.records.compare import Comparison
from rung.records.measured import Interval, Ratio
from rung.report import diff_page, trace_page
from rung.report.analyze import answer
from rung.report.templates import FOLDER
from rung.trace import Trace, read

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe\u2066",
    "line\u2028end\u2029",
    "a&amp;b&lt;c",
    "=cmd|' /C calc'!A0",
)


def document(
    names: tuple[str, ...] = ("Cijk_MT64", "softmax_kernel", "copy_kernel"), slow: float = 1.0, rank: int | None = None
) -> dict[str, Any]:
    """A torch.profiler file of 40 kernels; the first name's kernels take `slow` times as long."""
    events: list[dict[str, Any]] = []

    def add(kind: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        events.append(
            {
                "ph": "X",
                "cat": kind,
                "name": name,
                "pid": 0 if "device" in args else 7,
                "tid": tid,
                "ts": ts,
                "dur": dur,
                "args": args,
            }
        )

    at = 0.0
    for k in range(40):
        name = names[k % len(names)]
        add("python_function", "model.py(3): forward", at, 30, **{"Python id": 3 * k + 1})
        add(
            "python_function",
            f"nn.Module: {names[-1] if len(names) > 3 else 'Block'}_{k % 4}",
            at + 1,
            28,
            **{"Python id": 3 * k + 2},
        )
        shapes = {
            "Input Dims": [[64, 128], [128, 256]],
            "Input type": ["c10::BFloat16", "c10::BFloat16"],
            "Input Strides": [[128, 1], [256, 1]],
            "Concrete Inputs": ["", ""],
        }
        add("cpu_op", "aten::mm" if k % 3 == 0 else f"aten::op{k % 3}", at + 2, 20, **{"External id": k + 1}, **shapes)
        add("cuda_runtime", "hipLaunchKernel", at + 4, 3, correlation=k + 1, **{"External id": k + 1})
        dur = 20 * (slow if k % len(names) == 0 else 1)
        add("kernel", name, at + 10, dur, tid=0, device=0, stream=0, correlation=k + 1, **{"External id": k + 1})
        events.append(
            {
                "ph": "i",
                "s": "t",
                "name": "[memory]",
                "pid": 7,
                "tid": 1,
                "ts": at + 3,
                "args": {
                    "Device Id": 0,
                    "Device Type": 1,
                    "Addr": 1000 + k,
                    "Bytes": 2**20,
                    "Total Allocated": (k + 1) * 2**20,
                    "Total Reserved": 64 * 2**20,
                },
            }
        )
        at += 15 + dur
    facts = {
        "deviceProperties": [
            {
                "id": 0,
                "name": "AMD Instinct MI300X",
                "totalGlobalMem": 192 << 30,
                "numSms": 304,
                "warpSize": 64,
                "computeMajor": 9,
                "computeMinor": 4,
            }
        ]
    }
    if rank is not None:
        facts["distributedInfo"] = {"rank": rank, "world_size": 2}
    return facts | {"traceEvents": events}


def trace(tmp_path: Any, **how: Any) -> Trace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document(**how)))
    return read(path)


def recorded_climb(folder: Path, **recorded: dict[str, Any]) -> Path:
    """A run directory with nothing but traces: of each name the document of these options."""
    run = folder / "run"
    (run / "traces").mkdir(parents=True)
    for name, how in recorded.items():
        (run / "traces" / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(document(**how)).encode()))
    return run


def page_of(trace: Trace) -> str:
    trace, steps, note = per_step(trace)
    return trace_page.page(answer(trace, steps, note), pictures(trace, steps=steps))


def diff_page_of(base: Trace, new: Trace) -> str:
    return diff_page.page(diff(base, new, by=("category", "op", "module", "kernel")), (roofs(base), roofs(new)))


def without_own_scripts(page: str) -> str:
    """The page without Rung's scripts and their data: a script that is left is a stranger's."""
    for file in (FOLDER / "scripts").glob("*.js"):
        page = page.replace(f"<script>\n{file.read_text(encoding='utf-8')}</script>", "")
    return re.sub(r'<script type="application/json" id="record">[^<>]*</script>', "", page)


def samples(middle: float, count: int = 60, seed: int = 1) -> list[float]:
    """ns around a middle, with a tail."""
    noise = random.Random(seed)
    return [middle * noise.gauss(1, 0.004) for _ in range(count)] + [middle * 40]


def measurement() -> Bench:
    """What `rung bench` gives, of a function; its samples are made."""
    found = rung.bench(lambda: sum(range(1000)), name="sum", seconds=0.1).document
    time = Interval(value=1e6, low=0.999e6, high=1.001e6)
    return replace(found, samples=samples(1e6), discarded=[2e6] * 4, time=time)


def comparison() -> Comparison:
    """What `rung compare` gives of two functions, as if of five restarts."""
    found = rung.compare(lambda: sum(range(1000)), lambda: sum(range(2000)), seconds=0.1).document
    assert isinstance(found, Comparison)
    restarts = [{"a": samples(1e6, seed=k), "b": samples(0.9e6, seed=k + 9)} for k in range(5)]
    times = {side: Interval(value=ns, low=0.99 * ns, high=1.01 * ns) for side, ns in (("a", 1e6), ("b", 0.9e6))}
    compared = replace(found.comparison, speedup=Ratio(value=1.11, low=1.1, high=1.12))
    return replace(found, restarts=restarts, unit="restart", times=times, comparison=compared)
