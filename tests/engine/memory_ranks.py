"""A rank that asks for memory that all ranks share, on a machine that is not what it should be."""

import os
import socket
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from rung.engine import symmetric_memory
from rung.engine.symmetric_memory import shared_by_all_ranks
from rung.errors import WorkloadError
from rung.hardware.ranks import Ranks


class Operators:
    """torch's operators as gloo computes them. They refuse what torch's refuse: a share of a rank that is not of whole vectors."""

    def __init__(self, wrong: float) -> None:
        self.called: list[tuple[str, int]] = []
        self._wrong = wrong

    def one_shot_all_reduce(self, part: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
        return self._sum("one", part.clone())

    def two_shot_all_reduce_(self, part: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
        return self._sum("two", part)

    def _sum(self, shots: str, part: torch.Tensor) -> torch.Tensor:
        assert part.storage_offset() == 0
        assert part.numel() * part.element_size() % (16 * Ranks.here.world) == 0
        self.called.append((shots, part.numel()))
        dist.all_reduce(part)
        return part.add_(self._wrong)


class Rank:
    def join(self) -> None:
        Ranks.here.join(on_gpu=False)

    def asked(self, lacking: str = "", rank: int = -1) -> str:
        """Why it is not shared, where one rank, or all (-1), lack something: `GPU`, `host`, `operator`, `memory`, `handle` or `sum`. Afterwards
        the ranks exchange something, as they could not where one still waited for another in the first exchange."""
        here = lacking if rank in (-1, Ranks.here.rank) else ""
        why = ""
        with ExitStack() as around:
            _stand_in(around, here)
            try:
                shared_by_all_ranks(torch.device("cpu"), dist.group.WORLD)
            except WorkloadError as error:
                why = str(error)
        dist.all_reduce(torch.zeros(1))
        return why

    def summed(self, dtype: str, count: int) -> dict[str, Any]:
        """The sum of 1 to `count` on each rank, by which operator, and over how many elements."""
        with ExitStack() as around:
            operators = _stand_in(around, "")
            memory = shared_by_all_ranks(torch.device("cpu"), dist.group.WORLD)
            operators.called.clear()
            memory.room(getattr(torch, dtype))[:count] = torch.arange(1, count + 1) % 8
            found = memory.sum(getattr(torch, dtype), count)
            expected = Ranks.here.world * (torch.arange(1, count + 1) % 8)
            return {"called": operators.called, "right": torch.equal(found.long(), expected)}

    def taken_by_the_pass(self) -> list[bool]:
        """Whether Inductor's pass that fuses products takes the group of a tensor-parallel model, before and after it was enabled."""
        mesh = init_device_mesh("cpu", (Ranks.here.world,))
        model = parallelize_module(torch.nn.Sequential(torch.nn.Linear(4, 4)), mesh, {"0": ColwiseParallel()})
        name = mesh.get_group().group_name
        found = [_symmetric_memory.is_symm_mem_enabled_for_group(name)]
        with ExitStack() as around:
            around.enter_context(patch.dict(os.environ))
            _stand_in(around, "")
            symmetric_memory.enable_for_products(model)
        return [*found, _symmetric_memory.is_symm_mem_enabled_for_group(name)]


def _stand_in(around: ExitStack, lacking: str) -> Operators:
    """A machine with all that it takes but for one thing; without a GPU where that is to be `GPU`."""
    operators = Operators(wrong=1.0 if lacking == "sum" else 0.0)

    def failing(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(f"no {lacking} today\nin two lines")

    if lacking != "GPU":
        around.enter_context(patch.object(symmetric_memory, "_refuse", failing if lacking == "operator" else _nothing))
    if lacking == "host":
        around.enter_context(patch.object(socket, "gethostname", lambda: "elsewhere"))
    empty = failing if lacking == "memory" else _zeros
    around.enter_context(patch.object(_symmetric_memory, "empty", empty))
    around.enter_context(patch.object(_symmetric_memory, "rendezvous", failing if lacking == "handle" else _nothing))
    around.enter_context(patch.object(torch.ops, "symm_mem", operators))
    return operators


def _nothing(*arguments: Any) -> None:
    pass


def _zeros(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype)
