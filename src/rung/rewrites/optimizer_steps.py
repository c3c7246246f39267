"""How often optimizers of this process have stepped.

Their fused kernels write to weights without raising version counters, so whoever keeps a copy of a weight asks here, too. Collectives
(`torch.distributed.broadcast`), kernels of one's own and steps in graphs that others recorded are seen by neither.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_taken = 0
_counted = False


def steps_taken() -> int:
    """Since it was first asked."""
    global _counted
    if not _counted:
        _counted = True
        # Here, where compiling is near: disabling loads Dynamo, which takes as long as torch itself.
        register_optimizer_step_post_hook(torch.compiler.disable(_count))
    return _taken


def step_taken() -> None:
    """By a graph that was replayed."""
    global _taken
    _taken += 1


def _count(*_: object) -> None:
    step_taken()
