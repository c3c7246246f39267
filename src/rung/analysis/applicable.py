"""Which advice fits the work that a trace shows: training or inference, whose server, compiled or not, on which chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from rung.analysis.account import account
from rung.analysis.frames import python_names
from rung.analysis.roofline import peaks_of_trace
from rung.trace.table import Trace

_BACKWARD = r"(?i)backward|^autograd::engine|^Optimizer\.step#"
_COMPILED = r"^Torch-Compiled Region|CompiledFxGraph|^triton_(poi|red|per|tem|mix|for)_"
_SERVERS = {
    "vllm": (r"^(vllm|_C|_C_cache_ops|_moe_C)::", r"(^|/)vllm/(v1|engine|worker|model_executor)/"),
    "sglang": (r"^(sglang|sglang_profiler|sgl_kernel)::", r"(^|/)sglang/srt/"),
}
FUSED = r"(?i)fused_?(adam|sgd|adagrad)|FusedAdam|FusedSgd"  # kernels of optimizers that are fused already


@dataclass(frozen=True)
class Applicable:
    """What the work of a trace is, as far as the trace says it."""

    trace: Trace

    @cached_property
    def _names(self) -> pl.Series:
        """Of the operators and annotations, those of captures too."""
        events = [self.trace.events] + ([self.trace.captured.events] if self.trace.captured else [])
        names = [
            each.lazy().filter(pl.col("kind").is_in(["cpu_op", "annotation"])).select(pl.col("name").unique()).collect()
            for each in events
        ]
        return pl.concat(names)["name"]

    @cached_property
    def _kernels(self) -> pl.DataFrame:
        return account(self.trace).select("name", "category").unique()

    @cached_property
    def training(self) -> bool | None:
        """Whether there is a backward pass or an optimizer's step; None where neither operators nor kernels say it."""
        if self._names.str.contains(_BACKWARD).any():
            return True
        if account(self.trace)["op"].is_not_null().any():
            return False
        return True if (self._kernels["category"] == "optimizer").any() else None

    @cached_property
    def server(self) -> str:
        """ "vllm", "sglang"; "" for none of them."""
        python = python_names(self.trace)["name"]
        for name, (operators, frames) in _SERVERS.items():
            by_name = python.is_empty() and self._names.str.contains(operators).any()
            if by_name or python.str.contains(frames).any():
                return name
        return ""

    def rungs(self, names: list[str]) -> list[str]:
        """Those of these rungs that can apply: `rung climb` decides on the workload itself."""
        return [] if self.server else [name for name in names if self._applies(name)]

    def texts(self, entry: Mapping[str, Any], family: str = "") -> dict[str, Any]:
        """A finding's texts with those in their place that fit this work. family: of the operator that it is about."""
        chosen = self.server if self.server in entry else "inference" if self.training is False else ""
        own = entry.get(chosen, {})
        compiled = entry.get("compiled", {}) if self._compiled and not self.server else {}
        return {**entry, **own, **own.get(family, {}), **compiled}

    @cached_property
    def _compiled(self) -> bool:
        return bool(self._names.str.contains(_COMPILED).any() or self._kernels["name"].str.contains(_COMPILED).any())

    def _applies(self, rung: str) -> bool:
        if rung == "fused-optimizer":
            kernels = self._kernels.filter(pl.col("category") == "optimizer")["name"]
            return not kernels.str.contains(FUSED).all()
        if rung == "compile":
            return not self._compiled
        if rung in ("fused-qkv", "fused-gate-up"):  # projections beside each other, of transformers
            return bool((self._kernels["category"] == "attention").any())
        if rung in ("tf32", "bf16"):
            peaks = peaks_of_trace(self.trace)
            return peaks is None or peaks.rate(rung) > peaks.rate("fp32")
        return True
