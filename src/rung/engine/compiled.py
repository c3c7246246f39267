"""A function under the compiling part of a plan: whole or by blocks, with rewrites and Inductor's settings."""

from __future__ import annotations

import contextlib
import enum
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from operator import is_
from typing import Any, Literal

import torch

from rung.engine.attention import prefer_backend
from rung.engine.channels_last import ChannelsLast
from rung.engine.dynamo import (
    WatchedBackend,
    data_dependent_sizes,
    drop_compiled,
    dynamic_dimensions,
    dynamic_sizes,
    fixed_sizes,
    skipped_replays,
    with_own_code,
)
from rung.engine.linears import EightBits
from rung.engine.parts import Shapes, ranks, shapes_of, sizes, tensors_of
from rung.engine.places import Places
from rung.engine.regions import blocks
from rung.engine.switches import Switched, switches
from rung.plan import Plan
from rung.records.workload import Break
from rung.rewrites import RewriteBackend
from rung.rewrites.weight_cache import count_step, step_count


class Renewed(enum.Enum):
    """What was made anew."""

    NOTHING = enum.auto()
    COPIES = enum.auto()  # of weights, in the place of the old ones: what was recorded reads them
    STEP = enum.auto()  # what was recorded is of another one


def _set_call(block: torch.nn.Module, call: Callable[..., Any] | None) -> None:
    block._compiled_call_impl = call
    if call is None:  # the class has None; without an entry of its own, the block is as it was before
        del block._compiled_call_impl


# What torch calls in the place of a block's own call.
BLOCK_CALLS = Places("call", lambda block: block._compiled_call_impl, _set_call)
MOST_SHAPES = 1024  # calls that are remembered by their shapes; beyond, all are looked at anew


class _Graphs:
    """What Dynamo compiles of a function for one backend. `compile` takes every size for fixed unless a tensor is marked; `run` is for
    calls for which it has compiled: torch.compile(dynamic=False) would change Dynamo's settings at every call, in 7 µs.
    fixed_numbers: as `numbers` of `fixed_sizes`, where no call goes by `run`."""

    def __init__(
        self,
        function: Callable[..., Any],
        backend: RewriteBackend,
        on_symbolic: Callable[[], Any] = tuple,
        *,
        fixed_numbers: bool = False,
    ) -> None:
        self._fixed_numbers = fixed_numbers
        self.backend, self.watched = backend, WatchedBackend(backend, on_symbolic)
        self.run = torch.compile(function, backend=self.watched)

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        with fixed_sizes(numbers=self._fixed_numbers):
            return self.run(*args, **kwargs)


class Compiled:
    """Call it as the function. The model is the one that the function runs; with `regions` in the plan its blocks are
    compiled in place, as `Module.compile` does, until `undo`.

    Where the plan copies weights, a change of the weights is seen by `renewed`, and the copies are written anew.
    What raises no version counter and is no optimizer's step is not seen: a write through `.data`, a collective. Of peft's adapters it
    is, whose layers say that they are merged.

    Every input shape has a graph of its own, as the climb measures it, unless `new_shapes` is given, which is called before the first
    call of a shape. Then the first shape has its own graph, and all others share one with symbolic sizes, as plain torch.compile has it.
    The shared graph is not rewritten: rewrites need to know the sizes. `dynamic=False` keeps one graph a shape.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        model: torch.nn.Module,
        plan: Plan,
        arch: str,
        new_shapes: Callable[[], Any] | None = None,
        dynamic: bool | None = None,
    ) -> None:
        self._function, self._model, self._plan, self._arch = with_own_code(function), model, plan, arch
        self._new_shapes = new_shapes if plan.compiles or plan.passes else None  # nothing else depends on shapes
        # Whether `renewed` has anything to look at.
        self._copies_weights = bool(plan.linears or {"bf16-weights", "folded-weights"} & set(plan.passes))
        self.renews = self._copies_weights or plan.capture
        self._shares = plan.shares_graphs and dynamic is None
        self._warns = plan.compiles and not plan.dynamic and dynamic is None and bool(plan.sized or not self._shares)
        self._graphs: _Graphs | None = None
        self._shared: _Graphs | None = None
        self._careful = False  # no short way
        self._known: dict[Hashable, Callable[..., Any]] = {}
        self._first: dict[Hashable, Shapes] = {}  # by the kind of call: what stays when only sizes change
        self._varied: dict[Hashable, list[set[int]]] = {}  # the same, and of each tensor, the dimensions that varied
        self._switched = Switched(model, plan.switches)
        self._channels_last = ChannelsLast(model) if plan.channels_last else None
        self._eight_bits: EightBits | None = None
        self.backend: RewriteBackend | None = None
        self._regions: list[torch.nn.Module] = []
        self._seen: list[tuple[Any, ...]] = []
        self._adapters = _Adapters()
        self._adapted = -1  # how many graphs there were when adapters were looked for
        self._run = self._prepared()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._new_shapes is None:
            return self._run(*args, **kwargs)
        # Autograd and training mode are compiled for apart.
        key = (torch.is_grad_enabled(), self._model.training, shapes_of(args), shapes_of(kwargs) if kwargs else ())
        run = self._known.get(key)
        return run(*args, **kwargs) if run else self._first_call(self._new_shapes, key, args, kwargs)

    def renewed(self) -> Renewed:
        """What was made anew of what was prepared of the weights: copies of those that have changed, in the place of the old ones; or the step,
        where copies no longer fit, or a buffer was written to that a rewrite took for what it held."""
        if self._copies_weights:
            self._see_merges()
        renewed = Renewed.NOTHING
        if self._plan.capture and self.backend:
            if self.backend.renew():
                renewed = Renewed.COPIES
            if self.backend.outdated():
                return Renewed.STEP
        if not self._plan.keeps_weights:
            return renewed
        seen = self._versions()
        if seen == self._seen or self._eight_bits is None:
            return renewed
        if self._eight_bits.renew():
            self._seen = seen
            return Renewed.COPIES
        drop_compiled(self._function)
        self._run = self._prepared()
        return Renewed.STEP

    @property
    def breaks(self) -> list[Break]:
        return [found for one in (self._graphs, self._shared) if one for found in one.watched.found()]

    def applied(self) -> dict[str, Any]:
        """What is in effect: plain values."""
        inductor = self.backend is not None and self.backend.inner == "inductor"
        return {
            "matches": dict(self.backend.matches) if self.backend else {},
            "skipped": list(self.backend.skipped) if self.backend else [],
            "copied_joins": self.backend.copied if self.backend else 0,
            "compiled_graphs": self.backend.graphs + (self._shared.backend.graphs if self._shared else 0)
            if self.backend and inductor
            else 0,
            "graph_breaks": sum(found.count for found in self.breaks),
            "regions": len(self._regions),
            "eight_bits": len(self._eight_bits.layers) if self._eight_bits else 0,
            "channels_last": len(self._channels_last) if self._channels_last else 0,
            **{f"switch {name}": value for name, value in switches(self._model).items()},
            **({"replays_skipped": skipped_replays()} if self._plan.replays else {}),
            **({"one graph under DDP": self._graphs is not None} if self._plan.exchange.one_graph else {}),
            **{f"pass {name}": inductor for name in self._plan.inductor_passes},
            **({f"inductor {k}": v for k, v in self.backend.inductor_options.items()} if self.backend else {}),
        }

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside of it the model is as its author wrote it: nothing that was bound to it in place is in effect. Weights
        keep the layout that they were given."""
        compiled = [block._compiled_call_impl for block in self._regions]
        for block in self._regions:
            block._compiled_call_impl = None
        self._switched.undo()
        try:
            yield
        finally:
            self._switched = Switched(self._model, self._plan.switches)
            for block, call in zip(self._regions, compiled, strict=True):
                block._compiled_call_impl = call

    def unlike(self) -> list[str]:
        """Copies of weights that do not compute what their originals would, in sentences."""
        return self._rounded().unlike(self._model) if self._plan.linears else []

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Has an optimizer's states lie as the plan lays out the weights."""
        if self._channels_last:
            self._channels_last.follow(optimizer)

    def undo(self) -> None:
        if self.backend:
            self.backend.undo()
        for block in self._regions:
            BLOCK_CALLS.take(block, self)
        if self._channels_last:
            self._channels_last.undo()
        self._switched.undo()

    def _see_merges(self) -> None:
        """Merging an adapter writes to the weight under it through `.data`, as an optimizer's fused step does unseen."""
        graphs = self.backend.graphs if self.backend else -1
        # Not at every call, for a model has hundreds of modules; with 8 bits each of them is looked at anyway.
        if graphs != self._adapted or self._eight_bits:
            self._adapted = graphs
            self._adapters.find(self._model)
        if self._adapters.changed():
            count_step()

    def _rounded(self) -> EightBits:
        """The layers in 8 bits, which are bound to the model while it is called by this way and not beside it: not made before the first call
        that uses them, and none that trains does."""
        if self._eight_bits is None:
            self._seen = self._versions()
            self._eight_bits = EightBits(self._model, self._plan.linears, self._arch)
            self._eight_bits.undo()
        return self._eight_bits

    def _in_eight_bits(self) -> contextlib.AbstractContextManager[None]:
        use = self._plan.linears and not torch.is_grad_enabled()
        return self._rounded().inside() if use else contextlib.nullcontext()

    def _first_call(self, new_shapes: Callable[[], Any], key: Any, args: Any, kwargs: Any) -> Any:
        """A call in which something may be compiled. Calls with the same key take the short way from then on."""
        new_shapes()
        if self._graphs and self._graphs.watched.symbolic and not self._careful and not self._plan.dynamic:
            # A call of the short way was compiled anew, and Dynamo took for a variable what has one value in these calls.
            self._careful = True
            self._run = self._whole(self._graphs.backend)
        kind = (*key[:2], ranks(key[2:]))
        first = self._first.setdefault(kind, key[2:])
        if first != key[2:]:
            if self._warns:
                self._warns = False
                warnings.warn(self._told_of_shapes(), stacklevel=4)
            if self._shares:
                return self._shared_call(key, self._varied_dimensions(kind, first, key[2:]), args, kwargs)
        result = self._run(*args, **kwargs)
        short = self._graphs and not self._plan.regions and not self._careful
        self._remember(key, self._in_context(self._graphs.run) if self._graphs and short else self._run)
        return result

    def _shared_call(self, key: Hashable, dimensions: list[set[int]], args: Any, kwargs: Any) -> Any:
        shared = self._shared = self._shared or _Graphs(self._function, self._backend(rewrites=False))
        with dynamic_dimensions(tensors_of((args, kwargs)), dimensions) as marked:
            result = self._in_context(shared.compile, opens_sizes=False)(*args, **kwargs)
        if marked and not shared.watched.symbolic:
            # The program fixes the sizes: each shape needs a graph of its own, which may as well be a rewritten one.
            self._shares = False
        else:
            self._remember(key, self._in_context(shared.run, opens_sizes=False))
        return result

    def _varied_dimensions(self, kind: Hashable, first: Shapes, shapes: Shapes) -> list[set[int]]:
        """Of each tensor, those in which any call of this kind differed from the first."""
        varied = self._varied.setdefault(kind, [set() for _ in sizes(first)])
        for dimensions, was, now in zip(varied, sizes(first), sizes(shapes), strict=True):
            dimensions |= {at for at, (a, b) in enumerate(zip(was, now, strict=True)) if a != b}
        return varied

    def _remember(self, key: Hashable, run: Callable[..., Any]) -> None:
        if len(self._known) < MOST_SHAPES:
            self._known[key] = run

    def _told_of_shapes(self) -> str:
        if not self._shares:
            return "this recipe compiles anew for each input shape, which takes as long as the first call did: pad the inputs to few shapes."
        return (
            "a second input shape: it is compiled once more, with symbolic sizes, for all shapes but the first, and without rewrites that "
            f"need fixed sizes ({', '.join(self._plan.sized)}). rung.apply(..., dynamic=False) compiles each shape with the whole recipe."
        )

    def _in_context(self, run: Callable[..., Any], opens_sizes: bool = True) -> Callable[..., Any]:
        """The function under what the plan needs around each call; the function itself where it needs nothing."""
        plan = self._plan
        opens_sizes = opens_sizes and plan.opens_sizes
        if not (
            plan.dynamic or plan.replays or plan.attention or plan.linears or plan.exchange.one_graph or opens_sizes
        ):
            return run

        def call(*args: Any, **kwargs: Any) -> Any:
            if plan.replays:
                torch.compiler.cudagraph_mark_step_begin()
            with contextlib.ExitStack() as around:
                if plan.dynamic:
                    around.enter_context(dynamic_sizes((args, kwargs)))
                around.enter_context(prefer_backend(plan.attention))
                around.enter_context(self._in_eight_bits())
                if opens_sizes:
                    around.enter_context(data_dependent_sizes())
                if plan.exchange.one_graph:  # in this thread, whose settings of Dynamo are its own in newer torch
                    around.enter_context(torch._dynamo.config.patch(optimize_ddp=False))
                return run(*args, **kwargs)

        return call

    def _backend(self, rewrites: bool) -> RewriteBackend:
        plan = self._plan
        inner: Literal["inductor", "eager"] = "inductor" if plan.compiles else "eager"
        passes, inductor_passes = (plan.passes, plan.inductor_passes) if rewrites else ((), ())
        return RewriteBackend(passes, inner, dict(plan.inductor), inductor_passes, self._model)

    def _whole(self, backend: RewriteBackend) -> Callable[..., Any]:
        self._known.clear()
        this = weakref.ref(self)  # Dynamo keeps its backend, which must not keep this object, and with it the model

        def forget_short_ways() -> None:
            if (compiled := this()) is not None:
                compiled._known.clear()

        fixed_numbers = self._new_shapes is None
        self._graphs = _Graphs(self._function, backend, forget_short_ways, fixed_numbers=fixed_numbers)
        return self._in_context(self._graphs.compile)

    def _prepared(self) -> Callable[..., Any]:
        plan = self._plan
        self._eight_bits = None
        self._known.clear()
        if not plan.compiles and not plan.passes:
            return self._in_context(self._function)
        if self.backend:
            self.backend.undo()  # what it moved, only it can give memory of its own
        self.backend = self._backend(rewrites=True)
        run = self._whole(self.backend)
        if plan.regions and self._graphs:
            self._regions = blocks(self._model)
            for block in self._regions:  # as `Module.compile` does
                call = torch.compile(block._call_impl, backend=self._graphs.watched, dynamic=False)
                BLOCK_CALLS.put(block, call, self)
            return self._in_context(self._function)
        return run

    def _versions(self) -> list[tuple[Any, ...]]:
        """Of all parameters, with their names: what is pruned goes on as `weight_orig`, the same object. Asked before every call:
        `named_parameters` takes half as long again."""
        parameters = (item for module in self._model.modules() for item in module._parameters.items())
        return [(step_count(),), *((n, id(p), _version(p), _place(p)) for n, p in parameters if p is not None)]


class _Adapters:
    """The layers of peft in a model, and what they have merged into the weights under them."""

    def __init__(self) -> None:
        self._layers: list[torch.nn.Module] = []
        self._weights: list[dict[str, torch.nn.Parameter | None]] = []
        self._parts: list[dict[str, torch.nn.Module | None]] = []
        self._held: list[Any] = []
        self._told: list[Any] = []

    def find(self, model: torch.nn.Module) -> None:
        self._layers = [m for m in model.modules() if "merged_adapters" in vars(m)]

    def changed(self) -> bool:
        """Since it was last asked. An adapter may also have been made, or loaded, and merged in the place of another of its name."""
        held, told = self._now()
        if told == self._told and len(held) == len(self._held) and all(map(is_, held, self._held)):
            return False
        parts = [part for layer in self._layers for part in layer.modules()]
        self._weights = [part._parameters for part in parts if part._parameters]
        self._parts = [part._modules for part in parts if part._modules]
        self._held, self._told = self._now()
        return True

    def _now(self) -> tuple[list[Any], list[Any]]:
        # Table by table: `parameters()` takes several times as long, and this is asked at every call.
        weights, parts = (
            [one for table in tables for one in table.values()] for tables in (self._weights, self._parts)
        )
        versions = [0 if weight is None else _version(weight) for weight in weights]
        return [*weights, *parts], [*(list(layer.merged_adapters) for layer in self._layers), *versions]


def _version(parameter: torch.nn.Parameter) -> int:
    """Of one made in inference mode nobody counts, and no layer's copy is made."""
    return 0 if parameter.is_inference() else parameter._version


def _place(parameter: torch.nn.Parameter) -> int:
    """Where its numbers lie: another tensor in the place of `.data` raises no counter. Of wrapped tensors, which no layer's copy is
    made of, nothing is asked."""
    return parameter.data_ptr() if type(parameter) is torch.nn.Parameter else 0
