"""Kernels that start early (programmatic dependent launch) and still read only what is complete.

Under `triton.enable_pdl` a generated kernel is launched when all blocks of the one before it have allowed that (`gdc_launch`). It has to
wait for the end of that one (`gdc_wait`) before it reads what that one writes. Inductor leaves the wait out, or puts it behind the first
read, where a kernel takes nothing from the node before (torch 2.10 to 2.13). That is right only if the kernel before has waited itself. A kernel
that reads nothing, as one that fills a buffer with zeros, never does. It can end before an older kernel ends. What follows it waits for
its end alone, in a CUDA graph also a kernel that is launched as usual, and reads too soon what the older kernel writes (CUDA programming guide,
programmatic dependent launch).

Here every generated kernel waits before its first access to memory. So when a kernel ends, all that were launched before it have ended.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import fx

from rung.rewrites.inductor_passes.base import InductorPass

SETTING = "triton.enable_pdl"


class WaitFirst(InductorPass):
    """For `torch._inductor.config.post_grad_custom_post_pass`, which runs before code is generated. It changes no node. The cache of compiled
    code tells by it what was compiled with these waits."""

    def __call__(self, graph: fx.Graph) -> None:
        wait_before_the_first_access()


def wait_before_the_first_access() -> None:
    """In this process, from now on, for every kernel that is generated under the setting. Nothing where torch has no such setting."""
    from torch._inductor.codegen.triton import TritonKernel
    from torch._inductor.virtualized import V

    generate = getattr(TritonKernel, "_handle_pdl_before_access", None)
    if generate is None or hasattr(generate, "__wrapped__"):
        return

    @functools.wraps(generate)
    def waiting(*arguments: Any, **named: Any) -> None:
        scheduler = V.graph.scheduler
        if scheduler is None:
            return generate(*arguments, **named)  # type: ignore[no-any-return]
        before, scheduler.previous_node = (
            scheduler.previous_node,
            None,
        )  # with no node before, Inductor waits whatever is accessed
        try:
            return generate(*arguments, **named)  # type: ignore[no-any-return]
        finally:
            scheduler.previous_node = before

    TritonKernel._handle_pdl_before_access = waiting
