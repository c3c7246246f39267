"""Multi-rank traces with a known truth: torch.profiler files of ranks that meet in all-reduces."""

import json
from pathlib import Path

STEP_US = 10_000


class Rank:
    """One rank's file in the making. Times in microseconds; `shift` is how far its clock is ahead."""

    def __init__(self, rank: int, world: int, shift: float = 0.0) -> None:
        self.rank, self.world, self.shift = rank, world, shift
        self.events: list[dict] = []
        self.last_id = 0

    def add(self, cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: object) -> None:
        pid = 0 if cat in ("kernel", "gpu_memcpy") else 100 + self.rank
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(ts + self.shift, 3)}
        self.events.append(event | {"dur": round(dur, 3), "args": args})

    def step(self, number: int) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", number * STEP_US, STEP_US)

    def kernel(self, op: str, launch: float, ts: float, dur: float, kernel: str = "", **said: object) -> None:
        """An operator, its launch, and the kernel; `said` are the arguments of a collective. A collective has stream 9."""
        self.last_id += 1
        ids = {"External id": self.last_id, "correlation": self.last_id}
        self.add("cpu_op", op, launch - 1, 4, **{"External id": self.last_id}, **said)
        self.add("cuda_runtime", "cudaLaunchKernel", launch, 2, **ids)
        stream = 9 if said else 7
        self.add("kernel", kernel or f"{op}_kernel", ts, dur, tid=stream, device=0, stream=stream, **ids)

    def all_reduce(self, launch: float, ts: float, end: float, *, elements: int = 1_000_000, **said: object) -> None:
        args = {
            "Collective name": "allreduce", "Process Group Name": "0", "Group size": self.world, "dtype": "Float",
            "In msg nelems": elements, "Out msg nelems": elements, **said,
        }  # fmt: skip
        kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.kernel("record_param_comms", launch, ts, end - ts, kernel, **args)

    def write(self, folder: Path) -> None:
        info = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        document = {"distributedInfo": info, "deviceProperties": [], "traceEvents": self.events}
        (folder / f"rank{self.rank}.json").write_text(json.dumps(document))
