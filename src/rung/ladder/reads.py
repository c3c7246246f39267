"""What a step has to bring of its weights from memory: no more than what products were seen to read, or an optimizer to step."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from rung.records.record import Part

# Operations that read all of each factor. A look-up (an embedding) and a product of groups (of experts, to which nothing may
# have been sent) read what they are told to, and are left out with all that is not known.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear", "convolution", "_scaled_mm", "_int_mm")
COPIES = ("_to_copy", "clone")  # autocast's of a weight: what reads them reads the weight
TIMES = 3  # that an optimizer without state moves what it steps: weight and gradient read, weight written


class MemoryRead(Part, kw_only=True):
    """Facts of a workload (`rung.records.workload.Facts`)."""

    weights_read: dict[str, int]
    stepped_bytes: int


def memory_read(weights: Iterable[torch.Tensor], step: Callable[[], Any], optimizer: Any = None) -> MemoryRead:
    """weights_read: elements that the products of one step read, by the bytes of an element; stepped_bytes: what its optimizer
    moves at least, none where it is no torch.optim.Optimizer, of which nobody knows what it steps. Both are empty where the step
    cannot be followed."""
    try:
        with _Reads(list(weights)) as seen:
            step()
    except Exception:  # a workload that cannot be followed is still a workload
        return MemoryRead(weights_read={}, stepped_bytes=0)
    groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else []
    stepped = chain.from_iterable(group["params"] for group in groups)
    dense = (w for w in stepped if w.grad is not None and w.grad.layout is torch.strided)
    return MemoryRead(weights_read=seen.elements(), stepped_bytes=sum(TIMES * w.nbytes for w in dense))


class _Reads(TorchDispatchMode):
    """Notes which elements of the weights products read; a weight that is used as a part, as one expert's of a stack, counts as
    that part, and one that is used twice counts once."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self._weights = sorted((w for w in weights if _plain(w)), key=torch.Tensor.data_ptr)
        self._addresses = [w.data_ptr() for w in self._weights]
        self._spans: list[set[tuple[int, int]]] = [set() for _ in self._weights]
        # By address: they are kept, so that nothing else comes to lie there.
        self._copies: dict[int, tuple[torch.Tensor, int, tuple[int, int]]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in PRODUCTS and result.numel():
            for index, span in filter(None, map(self._part, pytree.tree_leaves(args))):
                self._spans[index].add(span)
        elif name in COPIES and (of := self._part(args[0])) and _plain(result):
            self._copies[result.data_ptr()] = result, *of
        return result

    def _part(self, tensor: Any) -> tuple[int, tuple[int, int]] | None:
        """Which weight a tensor is of, or a copy of, and from which element to which."""
        if not _plain(tensor):
            return None
        if tensor.data_ptr() in self._copies:
            _, index, (first, last) = self._copies[tensor.data_ptr()]
            return index, (first, min(last, first + tensor.numel()))
        index = bisect.bisect_right(self._addresses, tensor.data_ptr()) - 1
        if index < 0:
            return None
        weight = self._weights[index]
        first = (tensor.data_ptr() - weight.data_ptr()) // weight.element_size()
        last = min(first + tensor.numel(), weight.numel())
        return (index, (first, last)) if first < last else None

    def elements(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for weight, spans in zip(self._weights, self._spans, strict=True):
            size = str(weight.element_size())
            if spans:
                found[size] = found.get(size, 0) + _covered(spans)
        return found


def _plain(tensor: Any) -> bool:
    """A wrapped tensor has no address; an empty one shares its address with others."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    return type(tensor) in kinds and tensor.layout is torch.strided and tensor.numel() > 0


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    found, end = 0, 0
    for first, last in sorted(spans):
        found += max(0, last - max(first, end))
        end = max(end, last)
    return found
