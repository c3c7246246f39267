"""How a workload is to be run: what the rungs of a recipe add up to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Numerics = Literal["exact", "tf32", "bf16"]

# From the most exact to the least: a contract allows all before it.
CONTRACTS: tuple[Numerics, ...] = ("exact", "tf32", "bf16")


@dataclass(frozen=True)
class Plan:
    """tf32: matrix products may use TF32 or XF32. bf16: autocast. passes: rewrites of the captured graph,
    by name. The empty plan is the workload as its author wrote it."""

    tf32: bool = False
    bf16: bool = False
    compile: bool = False
    passes: tuple[str, ...] = ()
    fused_optimizer: bool = False
    capture: bool = False

    @property
    def numerics(self) -> Numerics:
        """The contract that this plan needs."""
        return "bf16" if self.bf16 else "tf32" if self.tf32 else "exact"

    def at(self, numerics: Numerics) -> Plan:
        """The same rewrites at a more exact precision, for checking them where errors show."""
        return replace(self, tf32=self.tf32 and numerics != "exact", bf16=self.bf16 and numerics == "bf16")

    def phases(self, own: Numerics) -> tuple[Numerics, ...]:
        """Where the plan is verified: in full precision, where errors show, and at the lowest that it runs in.
        own: the precision of the untouched workload."""
        lowest = max(self.numerics, own, key=CONTRACTS.index)
        return ("exact",) if lowest == "exact" else ("exact", lowest)

    def precision_only(self) -> Plan:
        """The untouched workload at this plan's precision: what a candidate's errors are measured against."""
        return Plan(tf32=self.tf32, bf16=self.bf16)
