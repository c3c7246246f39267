"""A function under the compiling part of a plan: whole or by blocks, with rewrites and Inductor's settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rung.ladder.execution.attention import asked_first
from rung.ladder.execution.channels_last import ChannelsLast
from rung.ladder.execution.dynamo import Watched, forget, open_sizes, sizes_vary, skipped_replays
from rung.ladder.execution.linears import EightBits
from rung.ladder.execution.regions import blocks
from rung.ladder.execution.switches import Switched, switches
from rung.ladder.optimizer_steps import step_taken, steps_taken
from rung.ladder.plan import Plan
from rung.ladder.surgery import Surgeon


class Compiled:
    """Call it as the function. The model is the one that the function runs; with `regions` in the plan its blocks are
    compiled in place, as `Module.compile` does, until `undo`.

    Where the plan copies weights, a change of the weights is seen by `renewed` before a call, and the copies are written anew.
    What raises no version counter and is no optimizer's step is not seen: a write through `.data`, a collective. Of peft's adapters it
    is, whose layers say that they are merged.
    """

    def __init__(self, function: Callable[..., Any], model: torch.nn.Module, plan: Plan, arch: str) -> None:
        self._function, self._model, self._plan, self._arch = function, model, plan, arch
        self._switched = Switched(model, plan.switches)
        self._channels_last = ChannelsLast(model) if plan.channels_last else None
        self._eight_bits: EightBits | None = None
        self.surgeon: Surgeon | None = None
        self._watched: Watched | None = None
        self._regions: list[torch.nn.Module] = []
        self._own_compiled: list[
            tuple[torch.nn.Module, dict[str, Any]]
        ] = []  # blocks, with what their owner had compiled of them
        self._seen: list[tuple[Any, ...]] = []
        self._adapters: list[torch.nn.Module] = []
        self._adapted = -1  # how many graphs there were when adapters were looked for
        self._merged: list[list[str]] = []
        self._run = self._prepared()

    def __call__(self, *arguments: Any) -> Any:
        if self._plan.dynamic:
            sizes_vary(arguments)
        if self._plan.replays:
            torch.compiler.cudagraph_mark_step_begin()
        with asked_first(self._plan.attention), self._in_eight_bits():
            if not self._plan.opens_sizes:
                return self._run(*arguments)
            with open_sizes():
                return self._run(*arguments)

    def renewed(self) -> bool:
        """Whether weights that were copied have changed, and what was prepared of them is dropped, or buffers that a rewrite took
        for what they held: what was recorded is then another step's. Copies in 8 or 16 bits are written anew where they lie."""
        if self._plan.linears or "bf16-weights" in self._plan.passes:
            self._see_merges()
        if self._plan.capture and self.surgeon:
            self.surgeon.renew()
            if self.surgeon.outdated():
                return True
        if not self._plan.keeps_weights:
            return False
        seen = self._versions()
        if seen == self._seen or self._eight_bits is None:
            return False
        if self._eight_bits.renew():
            self._seen = seen
            return False
        forget(self._function)
        self._run = self._prepared()
        return True

    @property
    def breaks(self) -> list[dict[str, Any]]:
        return self._watched.found() if self._watched else []

    def applied(self) -> dict[str, Any]:
        """What is in effect: plain values."""
        inductor = self.surgeon is not None and self.surgeon.inner == "inductor"
        return {
            "matches": dict(self.surgeon.matches) if self.surgeon else {},
            "skipped": list(self.surgeon.skipped) if self.surgeon else [],
            "copied_joins": self.surgeon.copied if self.surgeon else 0,
            "compiled_graphs": self.surgeon.graphs if self.surgeon and inductor else 0,
            "graph_breaks": sum(b["count"] for b in self.breaks),
            "regions": len(self._regions),
            "eight_bits": len(self._eight_bits.layers) if self._eight_bits else 0,
            "channels_last": len(self._channels_last) if self._channels_last else 0,
            **{f"switch {name}": value for name, value in switches(self._model).items()},
            **({"replays_skipped": skipped_replays()} if self._plan.replays else {}),
            **{f"pass {name}": inductor for name in self._plan.within},
            **({f"inductor {k}": v for k, v in self.surgeon.inductor_options.items()} if self.surgeon else {}),
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

    def undo(self) -> None:
        if self.surgeon:
            self.surgeon.undo()
        for block, own in self._own_compiled:
            vars(block).pop("_compiled_call_impl", None)
            vars(block).update(own)
        if self._channels_last:
            self._channels_last.undo()
        self._switched.undo()

    def _see_merges(self) -> None:
        """Merging an adapter writes to the weight under it through `.data`, as an optimizer's fused step does unseen."""
        graphs = self.surgeon.graphs if self.surgeon else -1
        # Not at every call, for a model has hundreds of modules; with 8 bits each of them is looked at anyway.
        if graphs != self._adapted or self._eight_bits:
            self._adapted = graphs
            self._adapters = [m for m in self._model.modules() if "merged_adapters" in vars(m)]
        merged = [list(m.merged_adapters) for m in self._adapters]  # type: ignore[arg-type]
        if merged != self._merged:
            self._merged = merged
            step_taken()

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

    def _prepared(self) -> Callable[..., Any]:
        plan = self._plan
        self._eight_bits = None
        if not plan.compiles and not plan.passes:
            return self._function
        if self.surgeon:
            self.surgeon.undo()  # what it moved, only it can give memory of its own
        inner = "inductor" if plan.compiles else "eager"
        self.surgeon = Surgeon(plan.passes, inner, dict(plan.inductor), plan.within)  # type: ignore[arg-type]
        self._watched = Watched(self.surgeon)
        if plan.regions:
            self._regions = blocks(self._model)
            self._own_compiled = self._own_compiled or [
                (block, {k: v for k, v in vars(block).items() if k == "_compiled_call_impl"}) for block in self._regions
            ]
            for block in self._regions:
                block.compile(backend=self._watched, dynamic=False)
            return self._function
        return torch.compile(self._function, backend=self._watched, dynamic=False)

    def _versions(self) -> list[tuple[Any, ...]]:
        """Of all parameters, with their names: what is pruned goes on as `weight_orig`, the same object. Asked before every call:
        `named_parameters` takes half as long again."""
        parameters = (item for module in self._model.modules() for item in module._parameters.items())
        return [(steps_taken(),), *((n, id(p), _version(p), _place(p)) for n, p in parameters if p is not None)]


def _version(parameter: torch.nn.Parameter) -> int:
    """Of one made in inference mode nobody counts, and no layer's copy is made."""
    return 0 if parameter.is_inference() else parameter._version


def _place(parameter: torch.nn.Parameter) -> int:
    """Where its numbers lie: another tensor in the place of `.data` raises no counter. Of wrapped tensors, which no layer's copy is
    made of, nothing is asked."""
    return parameter.data_ptr() if type(parameter) is torch.nn.Parameter else 0
