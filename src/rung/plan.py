"""How a workload is to be run: what the rungs of a recipe add up to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Numerics = Literal["exact", "tf32", "bf16", "fp8"]

# From the most exact to the least: a contract allows all before it.
CONTRACTS: tuple[Numerics, ...] = get_args(Numerics)


def contract(name: str) -> Numerics | None:
    """The contract of this name, None where there is none."""
    return next((numerics for numerics in CONTRACTS if numerics == name), None)


def in_words(numerics: str) -> str:
    """What is printed of the precision that something is verified in."""
    return "full precision" if numerics == "exact" else numerics


@dataclass(frozen=True)
class Original:
    """Inputs that are left to the workload as its author wrote it, because the plan was seen to lose there: those of at
    most, or of at least, so many elements, all tensors together, or was not verified there.

    measured, called: the elements of the measured batch, and of those what the model is called with: a loss may take the labels."""

    elements_at_most: int = -1
    elements_at_least: int | None = None
    measured: int = 0
    called: int = 0

    def __bool__(self) -> bool:
        return self.elements_at_most >= 0 or self.elements_at_least is not None

    @property
    def is_of_one_size(self) -> bool:
        """Whether inputs of all sizes but one are left to the original."""
        return self.elements_at_least == self.elements_at_most + 2

    def takes_call(self, elements: int) -> bool:
        """elements: that the model is called with."""
        return self.takes(round(elements * self.measured / self.called) if self.called else elements)

    def takes(self, elements: int) -> bool:
        """elements: of a whole batch."""
        return elements <= self.elements_at_most or (
            self.elements_at_least is not None and elements >= self.elements_at_least
        )


@dataclass(frozen=True)
class Exchange:
    """How several ranks exchange gradients and weights. ddp: arguments of DistributedDataParallel; gradients, weights: the formats in which
    gradients are exchanged, and in which FSDP2 gathers weights, `bf16`; gathered: it keeps what forward has gathered; ahead: how many blocks
    it gathers before they are needed; cores: each rank has cores of its own, near its GPU; one_graph: torch.compile does not cut a model
    under DistributedDataParallel into one graph for each bucket; compiled_backward: compiled autograd makes one graph of backward and the
    exchange; symmetric_memory: GPUs of one host sum gradients in memory that they share; fused_products: of a tensor-parallel model, they
    exchange what a product takes and gives inside of it, through such memory."""

    ddp: tuple[tuple[str, Any], ...] = ()
    gradients: str = ""
    weights: str = ""
    gathered: bool = False
    ahead: int = 0
    cores: bool = False
    one_graph: bool = False
    compiled_backward: bool = False
    symmetric_memory: bool = False
    fused_products: bool = False

    @property
    def is_setting(self) -> bool:
        """Whether it is one that as often costs as it gives."""
        return bool(
            self.ddp or self.one_graph or self.compiled_backward or self.symmetric_memory or self.fused_products
        )

    @property
    def rounds(self) -> bool:
        """Whether what is exchanged is rounded to 16 bits."""
        return bool(self.gradients or self.weights)


@dataclass(frozen=True)
class Plan:
    """tf32: matrix products may use TF32 or XF32. bf16: autocast. regions: repeated blocks are compiled, each once,
    in place of the whole. dynamic: the sizes of inputs are variables of the compiled code, and not compiled in.
    inductor: Inductor's settings, by name. passes: rewrites of the captured graph, by name.
    env: variables of the process. linears: the format of linear layers' products, `fp8` or `int8`. switches: of a
    model that has its own (`attention`, `cache`). channels_last: the layout of convolution weights. cudnn_benchmark: the library's kernels for a convolution are timed at
    its first call. attention: whose
    kernels scaled_dot_product_attention asks first, `cudnn`. inductor_passes: passes on the graphs that Inductor
    compiles, forward and backward, by name. original: inputs for which none of this holds. exchange: of several ranks, which one process
    does not have. The empty plan is the workload as its author wrote it."""

    tf32: bool = False
    bf16: bool = False
    compile: bool = False
    regions: bool = False
    dynamic: bool = False
    inductor: tuple[tuple[str, Any], ...] = ()
    passes: tuple[str, ...] = ()
    fused_optimizer: bool = False
    capture: bool = False
    env: tuple[tuple[str, str], ...] = ()
    linears: str = ""
    switches: tuple[tuple[str, str], ...] = ()
    channels_last: bool = False
    cudnn_benchmark: bool = False
    attention: str = ""
    inductor_passes: tuple[str, ...] = ()
    original: Original = Original()
    exchange: Exchange = Exchange()

    @property
    def numerics(self) -> Numerics:
        """The contract that this plan needs."""
        if self.linears:
            return "fp8"
        return "bf16" if self.bf16 or self.exchange.rounds else "tf32" if self.tf32 else "exact"

    @property
    def of_one(self) -> Plan:
        """What of it one process has."""
        return replace(self, exchange=Exchange())

    @property
    def compiles(self) -> bool:
        """Whether Inductor compiles what Dynamo captures."""
        return self.compile or self.regions

    @property
    def compiles_backward(self) -> bool:
        """Whether backward is one graph with the exchange. Rewrites of Inductor's graphs would not be in effect in it."""
        return self.compile and self.exchange.compiled_backward and not self.inductor_passes

    @property
    def replays(self) -> bool:
        """Whether Inductor replays its kernels as graphs (torch.compile's `reduce-overhead`)."""
        return bool(dict(self.inductor).get("triton.cudagraphs"))

    @property
    def shares_graphs(self) -> bool:
        """Whether all input shapes but the first can share one graph with symbolic sizes. Blocks that are compiled by themselves,
        8-bit layers, and backward with the exchange in it are compiled for fixed sizes only."""
        return self.compile and not self.dynamic and not self.linears and not self.compiles_backward

    @property
    def sized(self) -> tuple[str, ...]:
        """The rewrites that need fixed sizes, and are left out of a shared graph: all of them."""
        return (*self.passes, *self.inductor_passes)

    @property
    def opens_sizes(self) -> bool:
        """Whether Dynamo is to go on where a size depends on values, because a rewrite takes it out of the graph."""
        return "grouped-experts" in self.passes

    @property
    def keeps_weights(self) -> bool:
        """Whether weights are copied when the step is prepared, so that a change of theirs has to be taken up."""
        return bool(self.linears)

    def at(self, numerics: Numerics) -> Plan:
        """The same rewrites at a more exact precision, for checking them where errors show."""
        return replace(
            self,
            tf32=self.tf32 and numerics != "exact",
            bf16=self.bf16 and numerics in ("bf16", "fp8"),
            linears=self.linears if numerics == "fp8" else "",
            exchange=self.exchange if numerics in ("bf16", "fp8") else replace(self.exchange, gradients="", weights=""),
        )

    def phases(self, own: Numerics) -> tuple[Numerics, ...]:
        """Where the plan is verified: in full precision, where errors show, and at the lowest that it runs in.
        own: the precision of the untouched workload."""
        lowest = max(self.numerics, own, key=CONTRACTS.index)
        return ("exact",) if lowest == "exact" else ("exact", lowest)

    def precision_only(self) -> Plan:
        """The untouched workload at this plan's precision: what a candidate's errors are measured against. Products in
        fp8 are measured against those in the precision that they replace: the gate is a figure of its own."""
        return Plan(tf32=self.tf32, bf16=self.bf16)
