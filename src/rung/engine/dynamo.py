"""What Dynamo does with a function: where it breaks the graph, why it compiles again. Its private names are used here
and in `rewrites/graph/captured.py` alone; a test asks the installed torch for each of them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import rung
from rung.hardware.torch_versions import tuned_mm
from rung.records.workload import Break, Recompilation

_GUARDS = getattr(torch._C, "_dynamo", None)  # its guards in C++
_dict_version = getattr(getattr(_GUARDS, "guards", None), "dict_version", None)
_TensorGuards = getattr(getattr(_GUARDS, "guards", None), "TensorGuards", None)
_LIBRARY = (str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"])
_OURS = str(Path(rung.__file__).parent)
SHAPES = 64
_MARK = "_dynamo_weak_dynamic_indices"
_RECOMPILES = "torch._dynamo.guards.__recompiles"
_GRAPH_BREAKS = "torch._dynamo.symbolic_convert.__graph_breaks"
_FRAMES = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*([^\n]*)')


class WatchedBackend:
    """A backend that notes, of every graph that is handed over, why it ended where it does."""

    def __init__(self, backend: Callable[..., Any], on_symbolic: Callable[[], Any] = tuple) -> None:
        self._backend, self._on_symbolic = backend, on_symbolic
        self.symbolic = False  # whether any graph has the size of a tensor for an input
        self.breaks: dict[tuple[str, str], Break] = {}
        # Dynamo compiles anew where the backend is another one: the same watched backend is the same.
        functools.update_wrapper(self, backend, assigned=())

    def __call__(self, gm: Any, inputs: Any) -> Any:
        reason = getattr(gm, "compile_subgraph_reason", None)
        if reason is not None and getattr(reason, "graph_break", False):
            found = break_from(str(reason.reason), list(reason.user_stack))
            self.breaks.setdefault((found.where, found.why), found).count += 1
        if _takes_sizes(gm):
            self.symbolic = True
            self._on_symbolic()
        return self._backend(gm, inputs)

    def found(self) -> list[Break]:
        return list(self.breaks.values())


def _takes_sizes(gm: Any) -> bool:
    """Whether any input of a graph is the size of a tensor, and not an integer that the function was given as such."""
    inputs = [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
    numbers = {str(item) for item in inputs if isinstance(item, torch.SymInt)}
    tensors = [item for item in inputs if isinstance(item, torch.Tensor)] if numbers else []
    return any(isinstance(size, torch.SymInt) and str(size) in numbers for tensor in tensors for size in tensor.shape)


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a code object of its own: what Dynamo compiles hangs on that object, counts against one limit, and goes with it.
    Every closure or method that one line of a program makes shares one."""
    if isinstance(function, types.MethodType):
        return types.MethodType(with_own_code(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function
    code, closure = function.__code__.replace(), function.__closure__
    own = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    own.__kwdefaults__ = function.__kwdefaults__
    return own


def break_from(reason: str, stack: list[Any]) -> Break:
    """A graph break in the user's own source, with what Dynamo says of it; not counted yet."""
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    hints = [line.partition(":")[2].strip() for line in lines if line.startswith("Hint:")]
    why = next((line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")), "")
    where, line = user_frame(stack)
    told = ". ".join(part.rstrip(".") for part in (lines[0] if lines else "unknown", why) if part)
    return Break(where=where, line=line, why=told, hint=hints[0] if hints else "", count=0)


def user_frame(stack: list[Any]) -> tuple[str, str]:
    """Where the innermost frame is that is the user's own, and its line; of any, where all are a library's or ours."""
    own = [f for f in stack if not f.filename.startswith((*_LIBRARY, _OURS)) and "site-packages" not in f.filename]
    frame = (own or stack or [None])[-1]
    if frame is None:
        return "unknown", ""
    return f"{frame.filename}:{frame.lineno} in {frame.name}", (frame.line or "").strip()


@dataclass
class DynamoLog:
    """What Dynamo logs while it compiles. again: what is compiled again, and why; uncompiled: functions that it leaves so as a
    whole, where it cannot break the graph."""

    again: list[Recompilation] = field(default_factory=list)
    uncompiled: list[Break] = field(default_factory=list)
    _stacks: dict[str, list[traceback.FrameSummary]] = field(default_factory=dict)

    def recompiled(self, text: str) -> None:
        where = re.search(r"Recompiling function (\S+) in (\S+)", text)
        # Such as `- 0/0: self.calls == 0     # self.calls += 1  # model.py:7 in forward`.
        reasons = [
            " ".join(re.sub(r"^- (\d+/\d+: )?", "", line.strip()).split())
            for line in text.splitlines()[1:]
            if line.strip().startswith("- ")
        ]
        if where:
            self.again.append(Recompilation(where=f"{where[2]} in {where[1]}", why=reasons[0] if reasons else ""))

    def broken(self, text: str) -> None:
        at = re.search(r"in user code at (.+?):(\d+)$", text, re.MULTILINE)
        if at is None:
            return
        frames = _FRAMES.findall(text.partition("User code traceback:")[2])
        if frames:  # which is told of a place once
            self._stacks[at[0]] = [traceback.FrameSummary(f, int(n), name, line=line) for f, n, name, line in frames]
        _, skipped, reason = text.partition("Skipping the function and falling back to eager. Graph break encountered:")
        if skipped:
            stack = self._stacks.get(at[0]) or [traceback.FrameSummary(at[1], int(at[2]), "a function")]
            found = break_from(reason, stack)
            found.why, found.count = f"the whole function runs uncompiled. {found.why}", 1
            if (found.where, found.why) not in [(known.where, known.why) for known in self.uncompiled]:
                self.uncompiled.append(found)


class _Handler(logging.Handler):
    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a sentence of torch's that reads otherwise ends no compilation
            self._take(record.getMessage())


@contextlib.contextmanager
def record_dynamo_log() -> Iterator[DynamoLog]:
    """What Dynamo logs inside of it."""
    found = DynamoLog()
    takes = {logging.getLogger(_RECOMPILES): found.recompiled, logging.getLogger(_GRAPH_BREAKS): found.broken}
    before = {logger: (logger.level, logger.propagate) for logger in takes}
    torch._logging.set_logs(recompiles=True, graph_breaks=True)
    handlers = {logger: logger.handlers for logger in takes}
    for logger, take in takes.items():
        logger.handlers, logger.propagate = [_Handler(take)], False
    try:
        yield found
    finally:
        torch._logging.set_logs(recompiles=False, graph_breaks=False)
        for logger, (level, passed_on) in before.items():
            logger.handlers, logger.propagate = handlers[logger], passed_on
            logger.setLevel(level)


def dynamic_sizes(arguments: Any) -> contextlib.AbstractContextManager[bool]:
    """Has, inside of it, the sizes of the tensors in these taken for variables by what is compiled for them next, as far as the program
    itself does not fix them. Sizes of 0 and 1 are compiled for apart, as Dynamo does with all. `dynamic=True` would do the
    same to every float of the model, and an eps would become an input."""
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return dynamic_dimensions(leaves, [range(leaf.dim()) for leaf in leaves])


@contextlib.contextmanager
def dynamic_dimensions(tensors: Iterable[torch.Tensor], dimensions: Iterable[Iterable[int]]) -> Iterator[bool]:
    """Inside of it the sizes of these dimensions are variables of what is compiled. Gives whether there are any: sizes of 0 and 1 are
    compiled for apart. Whatever else compiles for one of these tensors afterwards finds none of Dynamo's marks on it, and would fail for one."""
    marked = []
    for tensor, varied in zip(tensors, dimensions, strict=True):
        open_ = [dim for dim in sorted(varied) if tensor.shape[dim] > 1]
        if open_ and not hasattr(tensor, _MARK):
            marked.append((tensor, set(vars(tensor))))
            torch._dynamo.maybe_mark_dynamic(tensor, open_)
    try:
        yield bool(marked)
    finally:
        for tensor, own in marked:
            for name in set(vars(tensor)) - own:
                if "_dynamo_" in name:
                    delattr(tensor, name)


HOOKS_UNSEEN = "skip_nnmodule_hook_guards"  # by default a hook that is registered after the first call is not run
# By default `torch.autograd.grad` breaks the graph, and a derivative that a step differentiates again (an energy's forces, a physics-informed network,
# a gradient penalty) then fails: compiled code has no second derivative.
DERIVATIVES = "trace_autograd_ops"
LIMITS = ("cache_size_limit", "recompile_limit")


def expect_changes() -> None:
    """Has Dynamo expect that shapes, settings and hooks change: one function is compiled for so many of them, at least, before it gives
    up, and anew where a module gets a hook. Derivatives that a forward takes are compiled with it, where this torch can."""
    now = change_settings()
    for name, value in _for_changes(now).items():
        if value != now[name]:
            setattr(torch._dynamo.config, name, value)


def change_settings() -> dict[str, int]:
    """The present values of Dynamo's settings that `expect_changes` writes, as far as this torch has them."""
    config = torch._dynamo.config
    return {name: getattr(config, name) for name in (HOOKS_UNSEEN, DERIVATIVES, *LIMITS) if hasattr(config, name)}


def restore_change_settings(before: dict[str, int]) -> None:
    """Undoes `expect_changes`. Settings that the user has changed since stay. before: what `change_settings` gave."""
    now, written = change_settings(), _for_changes(before)
    for name, value in before.items():
        if now[name] == written[name] != value:
            setattr(torch._dynamo.config, name, value)


def _for_changes(settings: dict[str, int]) -> dict[str, int]:
    return {name: max(value, SHAPES) if name in LIMITS else name == DERIVATIVES for name, value in settings.items()}


def data_dependent_sizes() -> contextlib.AbstractContextManager[Any]:
    """Inside of it, Dynamo goes on where a size depends on values, as that of `torch.where(condition)`, and does not break
    the graph there. What becomes of such a size is left to who takes the graph."""
    return torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)  # type: ignore[no-any-return]


def fixed_sizes(*, numbers: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Inside of it Dynamo compiles as under `torch.compile(dynamic=False)`. numbers: no number becomes a variable, for a function whose every call
    is compiled so. Then torch 2.13 and later compile only for the value of a number with which something is computed: one that is only handed on, as a
    count in an output, is no reason to compile anew."""
    settings = dict.fromkeys(("specialize_int", "specialize_float"), True) if numbers else {}
    return torch._dynamo.config.patch(automatic_dynamic_shapes=False, assume_static_by_default=True, **settings)  # type: ignore[no-any-return]


def dict_versions(tables: Iterable[dict[Any, Any]]) -> list[int] | None:
    """Of each dictionary a number that changes whenever it is written to; None where this torch or this Python does not tell."""
    return list(map(_dict_version, tables)) if _dict_version is not None and _sees_attributes(_dict_version) else None


@functools.cache
def _sees_attributes(version: Callable[[dict[Any, Any]], int]) -> bool:
    """Whether the number of a module's table changes when an attribute is set. Python 3.13.0 tells torch of items alone."""
    module = torch.nn.Module()
    before = version(vars(module))
    module.eval()
    return version(vars(module)) != before


def tensor_guards(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """A check that other tensors, given one by one, have the same types, dtypes, devices, shapes and strides, and get gradients as these
    do; None where this torch has none. It runs in C++. In inference mode it says no to tensors that were alike outside of it."""
    if _TensorGuards is None:
        return None
    shapes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    try:
        guards = _TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    except (TypeError, RuntimeError, SystemError):
        return None
    return guards.check  # type: ignore[no-any-return]


def drop_compiled(function: Callable[..., Any]) -> None:
    """Drops what was compiled of a function."""
    remove = getattr(torch._dynamo.eval_frame, "remove_from_cache", None)
    if remove is not None:
        remove(function)


def skipped_replays() -> int:
    """How many graphs Inductor did not replay, though it was asked to."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["cudagraph_skips"])


def products_widen() -> bool:
    """Whether Inductor takes a product of half precision that writes float32 (`aten.mm.dtype`)."""
    try:
        lowering = tuned_mm()
    except ImportError:
        return False
    return hasattr(torch.ops.aten.mm, "dtype") and "out_dtype" in inspect.signature(lowering).parameters


def inductor_settings(names: tuple[str, ...]) -> dict[str, Any]:
    """The values of Inductor's settings in this process, by name (`triton.cudagraphs`); unknown ones are left out."""
    from torch._inductor import config

    found = {}
    for name in names:
        with contextlib.suppress(AttributeError):
            found[name] = functools.reduce(getattr, name.split("."), config)
    return found
