"""What stands for a recorded graph where there is no GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Each operation that torch runs, and runs again in a replay."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.ran.append((function, args, kwargs or {}, found))
        return found

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, found in self.ran:
            again = pytree.tree_leaves(function(*args, **kwargs))
            for old, new in zip(pytree.tree_leaves(found), again, strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
