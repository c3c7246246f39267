"""Records multi-rank traces with known faults: a small transformer trained with DDP, one process a GPU.

    python benchmarks/analysis/record_ddp.py OUT --ranks 2 4           # NCCL or RCCL, as many GPUs as ranks
    python benchmarks/analysis/record_ddp.py OUT --ranks 2 --cpu       # gloo, anywhere

OUT gets a folder for each number of ranks and variant, with one gzipped torch.profiler trace a rank in it, and a
README that says what was injected where, and on which machine. It needs torch and this repository alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
from rung.workload.tiny_transformer import make

STEPS = 3  # recorded; the profiler's own warm-up comes before
WARM_UP = 4
SLOW_STEP = 1  # of the recorded ones, for the fault that comes only once
SLEEP_S = 0.04
VARIANTS = {
    "plain": "nothing injected; gradients reduced in buckets while the backward pass runs",
    "one-bucket": "nothing injected; one bucket for all gradients, so that nothing hides their reduction",
    "slow-gpu": "the last rank does extra matrix products in the second block's forward, in every step",
    "slow-host": f"the last rank's host sleeps {SLEEP_S * 1e3:g} ms before the second block's forward, in the second recorded step",
}


class Faulty(nn.Module):
    """A block, preceded by what `fault` does."""

    def __init__(self, block: nn.Module, fault: Any) -> None:
        super().__init__()
        self.block, self.fault = block, fault

    def forward(self, x: Tensor) -> Tensor:
        self.fault(x)
        return self.block(x)


def extra_work(x: Tensor) -> None:
    size, times = (4096, 24) if x.is_cuda else (512, 24)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        a = torch.ones(size, size, device=x.device, dtype=torch.bfloat16 if x.is_cuda else torch.float32)
        for _ in range(times):
            torch.mm(a, a)


def run(rank: int, ranks: int, port: int, options: argparse.Namespace) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    on_gpu = not options.cpu
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=device)
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for variant in options.variants:
        folder = Path(options.out) / f"ranks{ranks}-{variant}"
        if rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        record(variant, rank, ranks, device, folder / f"rank{rank}.json.gz")
        dist.barrier()
    dist.destroy_process_group()


def record(variant: str, rank: int, ranks: int, device: torch.device, path: Path) -> None:
    """Trains a few steps of one variant, all ranks together, and writes this rank's trace."""
    on_gpu = device.type == "cuda"
    # Large enough that a GPU, and not its host, sets the pace, and few enough layers for a small trace.
    shape = {"hidden_dim": 1024, "num_layers": 3, "seq_len": 512, "batch_size": 16}
    if not on_gpu:
        shape = {"hidden_dim": 128, "num_layers": 3, "seq_len": 64, "batch_size": 4}
    workload = make(**shape)
    torch.manual_seed(0)
    model = workload.model().to(device)
    here = {"step": -1}  # the recorded step, below 0 while warming up
    if rank == ranks - 1 and variant.startswith("slow"):

        def fault(x: Tensor) -> None:
            if variant == "slow-gpu":
                extra_work(x)
            elif here["step"] == SLOW_STEP:
                time.sleep(SLEEP_S)

        model.blocks[1] = Faulty(model.blocks[1], fault)
    parallel = DistributedDataParallel(
        model,
        device_ids=[device.index] if on_gpu else None,
        bucket_cap_mb=4096 if variant == "one-bucket" else (25 if on_gpu else 0.5),
        gradient_as_bucket_view=True,
    )
    assert workload.loss is not None
    assert workload.optimizer is not None
    optimizer = workload.optimizer(parallel.parameters())
    batches = [
        {name: tensor.to(device) for name, tensor in workload.inputs(ranks * seed + rank).items()} for seed in range(2)
    ]

    def step(number: int) -> None:
        here["step"] = number
        batch = batches[number % 2]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
            loss = workload.loss(workload.forward(parallel, batch), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for number in range(-WARM_UP - 1, -1):
        step(number)
    if on_gpu:
        torch.cuda.synchronize()
    dist.barrier()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with profile(
        activities=activities, schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1), record_shapes=True
    ) as profiler:
        for number in range(-1, STEPS):
            step(number)
            if on_gpu and number == -1:
                torch.cuda.synchronize()  # nothing of the warm-up step is left in the recording
            profiler.step()
    raw = path.with_suffix(".raw")
    profiler.export_chrome_trace(str(raw))
    write_small(raw, path)
    raw.unlink()


def write_small(raw: Path, path: Path) -> None:
    """The same trace without flow arrows, which repeat what the correlation ids say."""
    with open(raw, encoding="utf-8") as file:
        trace = json.load(file)
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("ph") not in ("s", "t", "f")]
    trace["traceName"] = path.name  # without the path on the machine that recorded it
    # No time stamp in the gzip header: the same trace gives the same bytes.
    with open(path, "wb") as out, gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=9, mtime=0) as file:
        file.write(json.dumps(trace, separators=(",", ":")).encode())


def readme(options: argparse.Namespace) -> str:
    if options.cpu:
        machine = f"CPU ({platform.machine()}), gloo"
    else:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        kind = f"ROCm {torch.version.hip}, RCCL" if torch.version.hip else f"CUDA {torch.version.cuda}, NCCL"
        machine = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, {kind} {nccl}"
    lines = [
        "# Multi-rank traces with known faults",
        "",
        f"Recorded by benchmarks/analysis/record_ddp.py on {machine}, torch {torch.__version__}, Python {platform.python_version()}.",
        f"TinyTransformer under DistributedDataParallel{'' if options.cpu else ', bfloat16 autocast'}; {STEPS} recorded steps; one file a rank;",
        "flow arrows left out of the files.",
        "",
        "| folder | what was injected |",
        "|---|---|",
        *(f"| ranksN-{variant} | {VARIANTS[variant]} |" for variant in options.variants),
    ]
    return "\n".join(lines) + "\n"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--cpu", action="store_true", help="gloo on the CPU, small shapes")
    options = parser.parse_args()
    if not options.cpu and torch.cuda.device_count() < max(options.ranks):
        parser.error(f"{max(options.ranks)} ranks need as many GPUs; there are {torch.cuda.device_count()} (or: --cpu)")
    options.out.mkdir(parents=True, exist_ok=True)
    for ranks in options.ranks:
        begin = time.perf_counter()
        mp.spawn(run, args=(ranks, free_port(), options), nprocs=ranks)
        print(f"{ranks} ranks: {time.perf_counter() - begin:.0f} s")
    (options.out / "README.md").write_text(readme(options), encoding="utf-8")
    for path in sorted(options.out.rglob("*.json.gz")):
        print(f"{path.stat().st_size:>10,}  {path.relative_to(options.out)}")


if __name__ == "__main__":
    main()
