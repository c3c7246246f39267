"""A piece of each GPU's memory that all ranks of a host read and write, and the sum of what they put there, without NCCL or RCCL. torch's
`_symmetric_memory` is private, and used here alone."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rung.errors import WorkloadError
from rung.rungs.ranks import MOST_WITH_SHARED_MEMORY

T = TypeVar("T")

# Of the memory. A bucket of torch's usual size (25 MiB) goes through it at once, a larger one in pieces.
BYTES = 32 * 2**20

# Up to so many bytes each rank reads the whole of the others', and needs no second meeting. The bound is torch's own (intra_node_comm.cpp).
ONE_SHOT_BYTES = 256 * 2**10

# A rank's share of a sum is to be of whole vectors of 16 bytes, in elements of any size.
VECTOR = 16

# Has torch map memory without NVLink multicast: nothing here uses it.
NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


class SymmetricMemory:
    """Whoever puts something into its `room` and asks for the `sum` on one stream, as all ranks have to in the same order, may use it again on
    that stream without waiting."""

    dtypes = frozenset({torch.float32, torch.bfloat16})

    def __init__(self, device: torch.device, group: dist.ProcessGroup) -> None:
        """Of this rank alone, until it has met the others."""
        from torch.distributed import _symmetric_memory

        self._whole = _symmetric_memory.empty(BYTES // 4, dtype=torch.float32, device=device)
        self._group, self._least = group, VECTOR * group.size()

    def meet(self) -> None:
        """Shares it with the others. Every rank has to call it."""
        from torch.distributed import _symmetric_memory

        with _without_multicast():
            _symmetric_memory.rendezvous(self._whole, self._group.group_name)

    def room(self, dtype: torch.dtype) -> torch.Tensor:
        """What this rank writes to, one-dimensional."""
        whole = self._whole.view(dtype)
        return whole[: whole.numel() // self._least * self._least]

    def sum(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        """Over all ranks, of the first `count` elements of their rooms. It may lie in the room itself."""
        whole_vectors = -(-count // self._least) * self._least
        part = self.room(dtype)[:whole_vectors]  # what lies behind `count` is summed besides, and read by nobody
        small = part.numel() * part.element_size() <= ONE_SHOT_BYTES
        ops: Any = torch.ops.symm_mem
        add = ops.one_shot_all_reduce if small else ops.two_shot_all_reduce_
        found: torch.Tensor = add(part, "sum", self._group.group_name)
        return found[:count]

    def try_out(self) -> None:
        """Small and large sums of all dtypes. Every rank has to call it, and takes part in all of them, whatever it sees."""
        ranks, wrong = self._group.size(), []
        for dtype in sorted(self.dtypes, key=str):
            for count in (ONE_SHOT_BYTES // 8, ONE_SHOT_BYTES):
                self.room(dtype)[:count] = self._group.rank() + 1
                if not bool((self.sum(dtype, count) == ranks * (ranks + 1) / 2).all()):
                    wrong.append(f"a sum of {count} numbers in {str(dtype).removeprefix('torch.')} is wrong")
        if wrong:
            raise WorkloadError(wrong[0])


def shared_by_all_ranks(device: torch.device, group: dist.ProcessGroup) -> SymmetricMemory:
    """Every rank has to ask. Where one of them cannot have it, all raise the same WorkloadError. What one rank alone lacks is told to all before
    any of them waits for another's part; only in `meet` do the others wait, as long as torch does, for one whose driver refuses there."""
    hosts = sorted(set(_of_all_ranks(socket.gethostname(), group)))
    places = _of_all_ranks(device.index, group)
    if len(hosts) > 1:
        raise WorkloadError(f"the ranks cannot share memory: they are on {len(hosts)} hosts ({', '.join(hosts)}).")
    _agreed(lambda: _refuse(device, places), group)
    memory = _agreed(lambda: SymmetricMemory(device, group), group)
    _agreed(memory.meet, group)
    _agreed(memory.try_out, group)
    return memory


def enable_for_products(model: torch.nn.Module) -> None:
    """Lets Inductor fuse products of a tensor-parallel model with their exchange (`torch._inductor.config._micro_pipeline_tp`). Every rank has to
    call it, and where one of them cannot share memory, all raise the same WorkloadError. Multicast stays off in this process: torch maps
    memory at the first of these products."""
    os.environ[NO_MULTICAST] = "1"
    for group in _groups_of(model):
        _agreed(functools.partial(_have_products_fused, group), group)  # has to come before the group shares memory
        shared_by_all_ranks(next(model.parameters()).device, group)


def enabled_for_products(model: torch.nn.Module) -> bool:
    """Whether it was called for this model."""
    try:
        from torch.distributed._symmetric_memory import is_symm_mem_enabled_for_group
    except ImportError:
        return False
    groups = _groups_of(model)
    return bool(groups) and all(is_symm_mem_enabled_for_group(group.group_name) for group in groups)


def _have_products_fused(group: dist.ProcessGroup) -> None:
    """torch says that there is no need to call this any more. Up to 2.13 at least, its pass still leaves out the groups for which nobody did."""
    from torch.distributed import _symmetric_memory

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        _symmetric_memory.enable_symm_mem_for_group(group.group_name)


def _groups_of(model: torch.nn.Module) -> list[dist.ProcessGroup]:
    """The groups of ranks that share out a model's weights, in the same order on each of them."""
    meshes = dict.fromkeys(p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh"))
    return [group for mesh in meshes for group in mesh.get_all_groups()]


def _refuse(device: torch.device, places: list[int]) -> None:
    """Raises WorkloadError where it can be told beforehand. places: the ranks' GPUs by their number, all 0 where each is shown its own alone."""
    if device.type != "cuda":
        raise WorkloadError("it is GPUs that do, and the model is on a CPU")
    if len(places) > MOST_WITH_SHARED_MEMORY:
        raise WorkloadError(f"they are {len(places)}, and at most {MOST_WITH_SHARED_MEMORY} can")
    for name in ("one_shot_all_reduce", "two_shot_all_reduce_"):
        if not _has_operator(name):
            raise WorkloadError(f"torch {torch.__version__} has no symm_mem::{name} for this GPU")
    for other in set(places) - {device.index}:
        if other < torch.cuda.device_count() and not torch.cuda.can_device_access_peer(device.index, other):
            raise WorkloadError(f"GPU {device.index} cannot read the memory of GPU {other}")


def _has_operator(name: str) -> bool:
    """On GPUs of either vendor: ROCm's are torch's `CUDA`, too."""
    try:
        from torch.distributed import _symmetric_memory  # noqa: F401  (declares some of them)

        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"symm_mem::{name}", "CUDA"))
    except (ImportError, RuntimeError):  # which says so of one that is not declared
        return False


def _agreed(attempt: Callable[[], T], group: dist.ProcessGroup) -> T:
    """What it gives. Where it fails in any rank, all of them raise WorkloadError."""
    made, why = [], ""
    try:
        made.append(attempt())
    except Exception as error:  # whatever it is, the other ranks are told instead of waiting
        why = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    refusals = {rank: said for rank, said in enumerate(_of_all_ranks(why, group)) if said}
    if refusals:
        rank, said = next(iter(refusals.items()))
        who = "the ranks cannot share" if len(refusals) == group.size() else f"rank {rank} cannot share"
        raise WorkloadError(f"{who} memory: {said}.")
    return made[0]


def _of_all_ranks(value: T, group: dist.ProcessGroup) -> list[T]:
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, value, group)
    return found


@contextlib.contextmanager
def _without_multicast() -> Iterator[None]:
    before = os.environ.get(NO_MULTICAST)
    os.environ[NO_MULTICAST] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_MULTICAST]
        else:
            os.environ[NO_MULTICAST] = before
