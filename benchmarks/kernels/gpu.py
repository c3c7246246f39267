"""Rung's Triton kernels on the GPU at hand: bandwidth, beside eager, Inductor and Liger-Kernel (if installed); errors.

    python benchmarks/kernels/gpu.py [--only rope] [--dtype bfloat16] [--parts copy,speed,errors]

Bandwidth counts what has to be read and written once, no more; its share is of a copy's, measured here, and above 100 %
where a small shape stays in the caches. The backward pass is timed alone. Times are medians; what takes less than a
millisecond is timed as recorded in a graph, where the host has no part in it. What cannot be recorded, because it waits
for the GPU (Liger-Kernel's losses do), is timed as it comes, the host included: a time with an asterisk. Its loss
computes gradients going forward. Prints Markdown; a part that fails says so, and the others go on.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
from cases import Case, cases, liger

from rung.errors import UsageError
from rung.hardware import pick
from rung.measure.timers import timer_for

Step = Callable[[], object]
DEVICE = pick()
SHORT = 1e-3  # seconds of one call, the host's part included: below, that part shows


@dataclass(frozen=True)
class Time:
    """microseconds: of the GPU alone, or with the host's launches in it (`hosted`)."""

    microseconds: float
    hosted: bool = False

    def __str__(self) -> str:
        return f"{self.microseconds:.1f}{'*' if self.hosted else ''}"


def passes(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> tuple[Step, Step]:
    """The forward pass, which keeps what the backward pass needs, and the backward pass.

    A backward pass runs on the stream of its forward pass, and its leaves' gradients on that of the first pass which read
    them. So that it can be recorded on a stream, the first call there runs the forward pass, on leaves of its own; that is
    one of those that a timer makes before it records.
    """
    kept: dict[Any, Any] = {}

    def backward() -> object:
        stream = torch.cuda.current_stream() if inputs[0].is_cuda else None
        if stream not in kept:
            own = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
            y = fn(*own)
            kept[stream] = y, [x for x in own if x.requires_grad], torch.randn_like(y)
        y, wanted, grad = kept[stream]
        return torch.autograd.grad(y, wanted, grad, retain_graph=True)

    return lambda: fn(*inputs), backward


def timed(step: Step) -> Time:
    """Median time of a call."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    short = time.perf_counter() - begin < SHORT
    try:
        timer = timer_for(step, DEVICE, "graph" if short else "events")
    except UsageError:
        timer = timer_for(step, DEVICE, "events")
    timer.block(2)
    median = statistics.median(timer.block(15).samples) / 1e3
    return Time(median, short and timer.name != "graph")


def copy_bandwidth() -> float:
    """GB/s of a copy from memory to memory: bytes read and bytes written."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() / timed(lambda: b.copy_(a)).microseconds / 1e3


def compiled(case: Case) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(lambda *inputs: case.eager(*inputs), dynamic=False)


def or_failed(call: Callable[[], Any], what: str) -> Any:
    """What it returns, or None with a line on stderr."""
    try:
        return call()
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:160]
        print(f"{what}: {type(error).__name__}: {reason}", file=sys.stderr, flush=True)
        return None
    finally:  # what a failed call leaves behind is held by its traceback, in a circle
        gc.collect()
        torch.cuda.empty_cache()


def speed(case: Case, shape: tuple[int, ...], dtype: torch.dtype, copy: float) -> None:
    what = f"{case.name} {shape}"
    inputs = case.inputs(shape, dtype)
    contenders = {"ours": case.ours, "eager": case.eager, "inductor": compiled(case), "liger": case.liger}
    times: dict[str, tuple[Time, ...]] = {}
    for name, fn in contenders.items():
        if fn is not None:
            found = or_failed(lambda fn=fn: tuple(timed(s) for s in passes(fn, inputs)), f"{what}, {name}")
            if found:
                times[name] = found
    for k, (label, count) in enumerate((("forward", case.forward), ("backward", case.backward))):
        ours = times.get("ours")
        cells = [str(ours[k]) if ours else "failed"]
        if ours:
            rate = count * inputs[0].numel() * inputs[0].element_size() / ours[k].microseconds / 1e3
            cells += [f"{rate:.0f}", f"{rate / copy:.0%}"]
        else:
            cells += ["", ""]
        cells += [str(times[n][k]) if n in times else "" for n in ("eager", "inductor", "liger")]
        cells += [
            f"{times[n][k].microseconds / ours[k].microseconds:.2f}" if ours and n in times else ""
            for n in ("inductor", "liger")
        ]
        size = " x ".join(map(str, shape))
        print(f"| {case.name} | {size} | {label} | " + " | ".join(cells) + " |", flush=True)


def errors(case: Case, dtype: torch.dtype) -> None:
    """Largest error, and root mean square error, against float64, relative to the root mean square of the values."""
    shape = case.shapes[0]
    inputs = case.inputs(shape, dtype)

    def run(fn: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        y = fn(*given)
        grad = torch.randn(y.shape, device="cuda").to(dtype).to(y.dtype)
        return [y, *torch.autograd.grad(y, [x for x in given if x.requires_grad], grad)]

    def wide(x: torch.Tensor) -> torch.Tensor:
        return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x

    truth = run(case.eager, tuple(map(wide, inputs)))
    cells = []
    for name, fn in (("ours", case.ours), ("eager", case.eager), ("inductor", compiled(case)), ("liger", case.liger)):
        if fn is None:
            cells.append("")
            continue
        found = or_failed(lambda fn=fn: run(fn, inputs), f"errors of {case.name}, {name}")
        if found is None:
            cells.append("failed")
            continue
        largest, typical = [], []
        for a, b in zip(found, truth, strict=True):
            scale = b.square().mean().sqrt() + 1e-30
            difference = (a.detach().double() - b) / scale
            largest.append(float(difference.abs().max()))
            typical.append(float(difference.square().mean().sqrt()))
        cells.append(f"{max(largest):.1e} / {max(typical):.1e}")
    print(f"| {case.name} | {str(dtype).removeprefix('torch.')} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kernels whose names begin so, divided by commas")
    parser.add_argument("--dtype", default="bfloat16", help="of the speed table")
    parser.add_argument("--parts", default="copy,speed,errors")
    options = parser.parse_args()
    begin = time.perf_counter()
    # A backward pass is timed again and again on one forward pass.
    torch._functorch.config.donated_buffer = False
    import triton

    versions = f"torch {torch.__version__}, Triton {triton.__version__}"
    print(f"{DEVICE.name}, {versions}, Liger-Kernel {'yes' if liger() else 'not installed'}")
    wanted = [c for c in cases() if not options.only or c.name.startswith(tuple(options.only.split(",")))]
    parts, dtype = options.parts.split(","), getattr(torch, options.dtype)
    copy = copy_bandwidth()
    print(f"\nA copy of 1 GiB moves {copy:.0f} GB/s.")
    if "speed" in parts:
        print(f"\n{options.dtype}, times in us; share: of the copy's bandwidth; last columns: their time over ours")
        print(
            "\n| kernel | shape | pass | ours | GB/s | share | eager | Inductor | Liger | Inductor / ours | Liger / ours |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for case in wanted:
            for shape in case.shapes:
                or_failed(lambda c=case, s=shape: speed(c, s, dtype, copy), f"{case.name} {shape}")
    if "errors" in parts:
        print(
            "\nErrors against float64 at the small shape, results and all gradients: largest / root mean square, relative"
        )
        print("to the root mean square of the values\n\n| kernel | dtype | ours | eager | Inductor | Liger |\n|---|---|---|---|---|---|")  # fmt: skip
        for case in wanted:
            for kind in (torch.float32, torch.bfloat16):
                or_failed(lambda c=case, d=kind: errors(c, d), f"errors of {case.name}")
    print(f"\n{time.perf_counter() - begin:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
