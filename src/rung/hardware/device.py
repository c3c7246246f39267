"""The device that a workload runs on, behind one small interface: ROCm and CUDA through torch.cuda, and the CPU."""

from __future__ import annotations

import contextlib
import platform
import re
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rung.errors import UsageError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Device:
    """kind: 'cuda' (torch's name for ROCm and CUDA alike) or 'cpu'; vendor: 'amd', 'nvidia' or 'cpu';
    arch: 'gfx942', 'sm90' or the machine's instruction set; memory in bytes."""

    kind: str
    index: int
    vendor: str
    name: str
    arch: str
    memory: int
    units: int

    @property
    def torch_name(self) -> str:
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"


# What torch's newer setting for float32 products is called in its older one.
_PRECISIONS = {"tf32": "high", "bf16": "medium"}


def release_cache(device: Device) -> None:
    """Gives the memory back that torch's allocator keeps on a GPU for later: other processes cannot use it."""
    import torch

    if device.is_gpu:
        torch.cuda.empty_cache()


def matmul_precision_name() -> str:
    """`torch.get_float32_matmul_precision()`, also where the newer setting was used: the older getter raises then."""
    import torch

    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return _PRECISIONS.get(torch.backends.cuda.matmul.fp32_precision, "highest")


def check_device(wanted: str) -> None:
    """Raises UsageError where the text is no name of a device. Whether it is there, torch has to be asked."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", wanted):
        raise UsageError(f"unknown device {wanted!r}: use cpu, cuda or cuda:N (ROCm GPUs are cuda:N in torch, too).")


def pick(wanted: str | None = None) -> Device:
    """The best device there is, or the one asked for (`cpu`, `cuda`, `cuda:1`)."""
    if wanted is not None:
        check_device(wanted)
    if wanted == "cpu":  # a plain function may need no torch, and to load it takes seconds
        return cpu()
    import torch

    if wanted is None and not torch.cuda.is_available():
        return cpu()
    if not torch.cuda.is_available():
        raise UsageError(f"--device {wanted}: this torch ({torch.__version__}) sees no GPU; use --device cpu.")
    index = int(str(wanted).partition(":")[2] or 0) if wanted else 0
    if index >= torch.cuda.device_count():
        raise UsageError(f"--device {wanted}: there are {torch.cuda.device_count()} GPUs, counted from 0.")
    p = torch.cuda.get_device_properties(index)
    amd = torch.version.hip is not None
    arch = str(getattr(p, "gcnArchName", "")).partition(":")[0] if amd else f"sm{p.major}{p.minor}"
    return Device(
        "cuda",
        index,
        "amd" if amd else "nvidia",
        p.name or arch,
        arch,
        p.total_memory,
        p.multi_processor_count,
    )


def cpu() -> Device:
    """This machine's processor; units are the threads that torch would use, or its cores where torch is not loaded."""
    import psutil

    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else psutil.cpu_count() or 1
    return Device("cpu", 0, "cpu", _cpu_name(), platform.machine(), psutil.virtual_memory().total, threads)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def synchronize(device: Device) -> None:
    """Waits until all work on the device is done: every stream, not the current one alone."""
    if device.is_gpu:
        import torch

        torch.cuda.synchronize(device.index)


@contextlib.contextmanager
def recording(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, device: Device) -> Iterator[None]:
    """What is launched inside becomes the graph; nothing runs. Where that fails the process can go on.

    When a capture is broken off, torch leaves its generator marked as one that is being recorded, and then every random
    number raises ("Offset increment outside graph capture"): it gets a state of its own again, with its seed and offset.
    The stream of the capture stays the current one, too, where its end raises: the one before is put back.
    Other threads go on: one that pins memory for the next batches calls the driver at any time, and by torch's default, `global`,
    that would end both the capture and the thread.
    The workspace of cuBLAS or hipBLASLt, which torch keeps for each stream, becomes the graph's own: another may be freed while the graph
    still writes to it.
    """
    import torch

    before = torch.cuda.current_stream(device.index)
    _forget_workspaces()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            yield
    except BaseException:
        with contextlib.suppress(Exception):  # the capture that was broken off may be what is reported here
            synchronize(device)
        torch.cuda.set_stream(before)
        generator = torch.cuda.default_generators[device.index]
        generator.graphsafe_set_state(generator.clone_state())
        raise
    finally:
        _forget_workspaces()


def _forget_workspaces() -> None:
    """The next product of each stream gets a workspace of its own. What still runs on a stream is done before its memory is another's."""
    import torch

    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # which a torch for CPUs lacks
    if forget:
        forget()


def peak_memory(device: Device) -> dict[str, int]:
    """The most memory in use so far, in bytes: of torch's allocator on a GPU, of the process on a CPU."""
    if device.is_gpu:
        import torch

        return {
            "allocated": torch.cuda.max_memory_allocated(device.index),
            "reserved": torch.cuda.max_memory_reserved(device.index),
        }
    return {"resident": peak_resident()}


def peak_resident() -> int:
    """The most memory of the host that this process has had at once, in bytes."""
    # getrusage's maximum outlives exec: a small process that a large one started would be given the large one's.
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_in_use(device: Device) -> int:
    """Bytes in use at this moment: of torch's allocator on a GPU, resident of the process on a CPU."""
    if device.is_gpu:
        import torch

        return int(torch.cuda.memory_allocated(device.index))
    import psutil

    return int(psutil.Process().memory_info().rss)


def shared_memory(device: Device) -> tuple[int, int]:
    """Bytes of a GPU that are in use now: by all processes together, whosever they are, and by torch's allocator in this one. Both are 0
    on a CPU."""
    if not device.is_gpu:
        return 0, 0
    import torch

    free, total = torch.cuda.mem_get_info(device.index)
    return int(total - free), int(torch.cuda.memory_reserved(device.index))


def expandable_segments() -> int:
    """How many segments of torch's allocator on the GPU can grow: none where it was not asked to, or cannot."""
    import torch

    return sum(bool(segment.get("is_expandable")) for segment in torch.cuda.memory_snapshot())


def reset_peak_memory(device: Device) -> None:
    """Starts a new high-water mark. The CPU's belongs to the process and cannot be reset."""
    if device.is_gpu:
        import torch

        torch.cuda.reset_peak_memory_stats(device.index)


def to_device(batch: Any, device: Device) -> Any:
    """The same batch with every tensor on the device."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda t: t.to(device.torch_name) if isinstance(t, torch.Tensor) else t, batch)


def autocast(device: Device, dtype: torch.dtype | None) -> Any:
    """torch.autocast for the device; without a dtype, a context that does nothing."""
    import contextlib

    import torch

    return torch.autocast(device.kind, dtype=dtype) if dtype is not None else contextlib.nullcontext()
