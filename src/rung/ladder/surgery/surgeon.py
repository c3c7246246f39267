"""The backend: runs the passes on each captured graph, counts, checks, and hands over."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from rung.ladder.surgery.sdpa import fuse_attention
from rung.ladder.surgery.siblings import fuse_gate_up, fuse_qkv

_RUNNERS: dict[str, Callable[[fx.Graph], tuple[int, list[str]]]] = {
    "sdpa": fuse_attention,
    "fused-qkv": fuse_qkv,
    "fused-gate-up": fuse_gate_up,
}

PASSES = tuple(_RUNNERS)


@dataclass
class _Record:
    matches: dict[str, int]
    skipped: list[str]


class Surgeon:
    """A Dynamo backend: ``torch.compile(fn, backend=Surgeon(["sdpa"], "inductor"), dynamic=False)``."""

    def __init__(
        self,
        passes: Sequence[str],
        inner: Literal["inductor", "eager"] = "inductor",
        inductor_options: dict[str, Any] | None = None,
    ) -> None:
        unknown = sorted(set(passes) - set(PASSES))
        if unknown:
            raise ValueError(f"unknown passes {unknown}; known: {list(PASSES)}")
        if inner not in ("inductor", "eager"):
            raise ValueError(f"inner is 'inductor' or 'eager', not {inner!r}")
        self.passes = tuple(passes)
        self.inner = inner
        self.inductor_options = dict(inductor_options or {})
        self._records: dict[str, _Record] = {}

    @property
    def matches(self) -> dict[str, int]:
        """Rewrites by pass, summed over the graphs; a graph compiled again counts once."""
        return {name: sum(r.matches.get(name, 0) for r in self._records.values()) for name in self.passes}

    @property
    def graphs(self) -> int:
        return len(self._records)

    @property
    def skipped(self) -> list[str]:
        """Why near misses were left alone, in words that begin with the name of the pass."""
        return list(dict.fromkeys(reason for record in self._records.values() for reason in record.skipped))

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        key = _fingerprint(gm, example_inputs)
        record = _Record(dict.fromkeys(self.passes, 0), [])
        # Checkpointed regions and other wrapped bodies are graph modules of their own inside this one.
        for part in [module for module in gm.modules() if isinstance(module, fx.GraphModule)]:
            for name in self.passes:
                self._run(name, part, record)
        gm.recompile()
        self._records[key] = record
        if self.inner == "eager":
            return gm.forward
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(gm, example_inputs, config_patches=self.inductor_options or None)

    def _run(self, name: str, part: fx.GraphModule, record: _Record) -> None:
        run = _RUNNERS[name]
        try:
            # A rehearsal on a copy: a pass that fails halfway must leave no trace in the real graph, whose
            # placeholders carry attributes of Dynamo that a copy put back in its place would lack.
            rehearsal = copy.deepcopy(part.graph)
            count, _ = run(rehearsal)
            rehearsal.lint()
        except Exception as error:
            record.skipped.append(f"{name}: the pass failed and was left out ({type(error).__name__}: {error})")
            return
        count, reasons = run(part.graph)
        part.graph.lint()
        part.recompile()
        record.matches[name] += count
        record.skipped += [f"{name}: {reason}" for reason in reasons]


def _fingerprint(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """The same graph at the same shapes has the same fingerprint, however often it is compiled."""
    inputs = [
        (tuple(item.shape), item.dtype, item.device) if isinstance(item, torch.Tensor) else item
        for item in example_inputs
    ]
    codes = [module.code for module in gm.modules() if isinstance(module, fx.GraphModule)]
    return hashlib.sha256(repr((codes, [str(item) for item in inputs])).encode()).hexdigest()
