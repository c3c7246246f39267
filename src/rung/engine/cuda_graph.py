"""A whole step as one CUDA or HIP graph: one launch instead of hundreds."""

from __future__ import annotations

import contextlib
import math
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from rung.engine.compiled import Renewed
from rung.engine.contents import Contents
from rung.engine.dynamo import user_frame
from rung.engine.guards import ModelGuards, put_elsewhere
from rung.engine.input_guards import NOT_CAPTURED, Inputs, as_copied, copied, modes
from rung.engine.optimizer import own_step, parameters_of
from rung.engine.optimizer_guards import OptimizerGuards
from rung.engine.outside_memory import OutsideMemory
from rung.engine.results import Result, own_objects
from rung.errors import WorkloadError
from rung.hardware.device import Device, recording
from rung.rewrites.weight_cache import count_step

WARM_CALLS = 2  # real steps before capture: lazy initialisation and compilation must not happen while capturing
OFTEN = 8  # changes of an optimizer, from which on they are worth a word
MOST_SHAPES = 8  # each holds its own memory; further shapes, or states of the model, run uncaptured
# Replays in which a graph has to leave all other memory as it was, before one is launched ahead of the guards.
PROOFS = 3
MOST_COUNTED = 256  # kinds of calls that wait for their third: where a number among the inputs counts them, none comes


# What CUDA and HIP say when something cannot be recorded, and what that means in a step.
MEANS = (
    ("capturing", "something in it waits for the GPU or brings data to the host (.item(), .cpu(), print, a mask as index)"),
    ("captures_underway", "something in it frees or allocates in a way that a graph cannot repeat"),
    ("Offset increment", "it draws random numbers from a generator that is not registered with the graph"),
    ("RNG", "it draws random numbers, or is compiled, for the first time while it is captured"),
    ("synchronize", "something in it waits for the GPU"),
)  # fmt: skip


def why_not(error: BaseException) -> str:
    """Why a step cannot be captured: where in the user's source, what was said, and what that means."""
    error = _cause(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    said = " ".join(lines[: 2 if lines[0].endswith("raised:") else 1])[:300]
    means = next((text for key, text in MEANS if key.lower() in str(error).lower()), "")
    where, line = user_frame(list(traceback.extract_tb(error.__traceback__)))
    at = f" at {where}: `{line}`" if line else ""
    return f"the step cannot be captured as a graph{at}: {type(error).__name__}: {said}" + (
        f"; {means}" if means else ""
    )


def _cause(error: BaseException) -> BaseException:
    """What broke a capture off, where all that came out is that its end found it broken off."""
    stack = traceback.extract_tb(error.__traceback__)
    ended = bool(stack) and Path(stack[-1].filename).parts[-3:] == ("torch", "cuda", "graphs.py")
    return error.__context__ if ended and error.__context__ else error


@dataclass
class _Graph:
    graph: Any
    inputs: list[torch.Tensor]  # copies of those that are copied before every replay
    held: list[weakref.ref[torch.Tensor]]  # in the caller's own objects, which it reads and writes where they lie
    result: Result
    gradients: list[torch.Tensor | None]
    sums: list[tuple[torch.nn.Parameter, torch.Tensor]]
    harmless: int | None = 0  # replays that were seen to write to nothing but the graph's own memory; None once one did
    # Whether a norm keeps statistics, which a replay writes unseen. With an optimizer it is that one's steps that are seen.
    learns: bool = False


class GraphedStep:
    """Calls `run`, which runs the model, through a graph per kind of inputs and of modes that it is called in.

    The first calls of a shape are ordinary, real steps on the stream that will capture, so that nothing needs
    to be undone; capturing itself executes nothing. The results, and the parameters' gradients, live in the
    graph's own memory: the next call overwrites them. Learning rates may be changed between calls, and so may the model:
    each state that it is in (`rung.engine.guards`) has graphs of its own. One with hooks of the user's runs uncaptured, and so
    does a step whose optimizer was given a hook. Where an optimizer has another state or other settings than it left itself
    (`rung.engine.optimizer_guards`), graphs are recorded anew; where that is so at every step, none is.

    Inputs are copied to where the graph reads them. Tensors in objects, such as a cache of keys and values, are read and written where they lie: each
    such object has graphs of its own, which do not keep it alive.

    Reading all that guards read takes the host 0.2 to 3 ms. Asking whether copies of weights are of the present ones takes longer, the more
    there are. Where there is no optimizer, and the first replays wrote to no memory but the graph's own, a replay is launched before either
    is known. If the guards do not hold, or copies had to be renewed, its results are dropped.
    """

    _full = False  # there was no memory for one more graph
    # Of the last call with objects that was not replayed, its sort and key; how many of its sort were so in a row; whether it was told why.
    _last: tuple[Hashable, tuple[Hashable, ...]] = (), ()
    _unreplayed = 0
    _told = False

    def __init__(
        self,
        run: Callable[..., Any],
        device: Device,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        renewed: Callable[[], Renewed] = lambda: Renewed.NOTHING,
    ) -> None:
        """renewed: renews what `run` reads and was made of the model's weights, and says what that was."""
        if not device.is_gpu:
            raise WorkloadError("capture needs a GPU; a CPU has no graphs to launch.")
        self._run, self._device, self._model, self._guards = run, device, model, ModelGuards(model)
        self._renewed, self._steady = renewed, True  # whether the last call found nothing to renew
        self._optimizer = optimizer
        self._optimizer_guards = OptimizerGuards(optimizer) if optimizer else None
        self._parameters = parameters_of(optimizer)
        # What gets a gradient and is not stepped: no step clears it, so a graph adds to it where it lies.
        self._summed: list[torch.nn.Parameter] = []
        self._contents = Contents(device.kind)
        self._stream = torch.cuda.Stream(device.index)
        # How many there were, and with which tensors in objects.
        self._calls: dict[Hashable, tuple[int, list[weakref.ref[torch.Tensor]]]] = {}
        self._graphs: dict[Hashable, _Graph] = {}
        self._rates: list[torch.Tensor] = []
        self._seen: list[float] = []
        self._changes = 0
        self._failed: set[Hashable] = (
            set()
        )  # forms of calls with objects that cannot be captured, sorts of those that change them

    @property
    def shapes(self) -> int:
        """How many were captured so far."""
        return len(self._graphs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.cuda.device(self._device.index):  # streams and events belong to the current device
            return self._called(Inputs(args, kwargs, self._device.kind, self._contents, self._failed))

    def _called(self, given: Inputs) -> Any:
        call = () if given.unseen else (modes(), *given.key)
        begun, launched = self._begun(call, given) if call else (None, False)
        renewed = self._renewed()
        self._steady = renewed is Renewed.NOTHING
        if renewed is Renewed.STEP:
            self._guards = ModelGuards(self._model)  # blocks may have been compiled anew
        state, moved = self._guards.check()
        moved |= renewed is Renewed.STEP
        if self._optimizer_guards and (what := self._optimizer_guards.changed()):
            moved = True
            self._parameters, self._rates = parameters_of(self._optimizer), []
            self._warn_of_changes(what)
        if moved:
            self._graphs.clear()
            self._calls.clear()
            self._full = False
        if not call:
            if given.unseen is not NOT_CAPTURED:
                self._tell(given, given.unseen, lasting=bool(given.sort))
            return self._ran(self._warm(given.released()))
        key = state, *call
        hooked = self._guards.hooked or (self._optimizer and own_step(self._optimizer))
        if key in self._graphs and not hooked:
            self._unreplayed = 0
            captured = self._graphs[key]
            if launched and captured is begun and self._steady:
                return captured.result.handed_out(given)
            return self._replay(captured, given, copies=captured is not begun)
        if state is None or hooked or not self._has_room():
            return self._ordinary(given)[0]
        calls = self._counted(key, given)
        if calls <= WARM_CALLS:
            buffers = dict(self._model.named_buffers())
            result, wrote = self._ordinary(given, calls)
            if wrote or put_elsewhere(self._model, buffers):
                del self._calls[key]
            return result
        if not self._recorded(key, given):
            return self._ordinary(given)[0]
        self._unreplayed = 0
        result = self._replay(self._graphs[key], given)
        if changed := given.changed():  # by the Python that was recorded, and by no replay of it
            del self._graphs[key], self._calls[key]
            self._tell(given, f"{changed} is changed by the call")
        return result

    def _counted(self, key: Hashable, given: Inputs) -> int:
        """Which call of its kind this is, since one with other objects: those of a batch that is made anew for each call may lie where the last
        one's lay, and a graph for each such place would be of little use."""
        if len(self._calls) >= MOST_COUNTED:
            self._calls.clear()
        calls, held = self._calls.get(key, (0, []))
        if any(last() is not now for last, now in zip(held, given.content.tensors, strict=False)):
            calls = 0
        self._calls[key] = calls + 1, list(map(weakref.ref, given.content.tensors))
        return calls + 1

    def _has_room(self) -> bool:
        """Whether one more graph may be recorded. Those that wrote to tensors which are gone make room."""
        gone = [key for key, captured in self._graphs.items() if any(held() is None for held in captured.held)]
        for key in gone:
            del self._graphs[key]
        self._full = self._full and not gone
        return not self._full and len(self._graphs) < MOST_SHAPES

    def _begun(self, call: tuple[Hashable, ...], given: Inputs) -> tuple[_Graph | None, bool]:
        """The graph that is replayed if the model is as it was left, given its inputs before that is known, which takes the host a moment;
        and whether it was launched, too, because that can do no harm."""
        captured = self._graphs.get((self._guards.state, *call))
        if captured is None or self._guards.hooked:
            return None, False
        _copy(given.copied, captured.inputs)
        if captured.harmless != PROOFS or not self._steady or not self._guards.in_place():
            return captured, False
        captured.graph.replay()
        return captured, True

    def _recorded(self, key: Hashable, given: Inputs) -> bool:
        """False where there are graphs, and no memory for another: a step that can be captured goes on without. So do calls with an object
        that cannot be captured, beside others that are."""
        try:
            self._graphs[key] = self._ran(self._capture(given))
            return True
        except WorkloadError as error:
            cause = error.__cause__
            self._full = bool(self._graphs) and cause is not None and isinstance(_cause(cause), torch.OutOfMemoryError)
            # What Python changed already would be changed twice where the call went on uncaptured.
            if given.changed() or not (self._full or given.objects):
                raise
            why = str(error)
        if self._full:
            why = (
                "the GPU has no memory for a graph of one more kind of inputs: beside the "
                f"{len(self._graphs)} that were captured, calls run uncaptured."
            )
        else:
            self._failed.add(given.form)
            why = f"calls with such an object run uncaptured, because {why}"
        warnings.warn(why, stacklevel=5)
        return False

    def _warn_of_changes(self, what: str) -> None:
        """Once, where a step is recorded anew so often that little is gained."""
        self._changes += 1
        if self._changes == OFTEN:
            warnings.warn(
                f"{what} of the optimizer has changed {OFTEN} times: a graph holds it, so the step is recorded anew each time, and runs uncaptured before; "
                "where a scheduler turns the momentum (OneCycleLR), give it cycle_momentum=False.",
                stacklevel=6,
            )

    def _ran(self, result: Any) -> Any:
        """What the model's own forward changed of it is no change, nor what its own step changed of an optimizer."""
        self._guards.accept()
        if self._optimizer_guards:
            self._optimizer_guards.accept()
        return result

    def _ordinary(self, given: Inputs, calls: int = 0) -> tuple[Any, bool]:
        """The result of a call that is not replayed, and whether it changed its inputs, of which a replay would have copies. calls: which of
        those before the call that is recorded this is; the last goes the way that it will; 0 where none will be."""
        # What a call appends to a list of the caller's has to be there. After one that did nothing of the kind, copies of containers do.
        own = calls <= 1 and given.grows()
        made = given.copied if own else as_copied(given.copied)
        before = list(map(_version, made))
        with _as_if_recorded() if calls == WARM_CALLS else contextlib.nullcontext():
            result = self._ran(self._warm(given.released().with_tensors(made)))
        wrote = list(map(_version, made)) != before
        if self._optimizer:
            mine = set(map(id, self._parameters))
            self._summed = [p for p in self._model.parameters() if p.grad is not None and id(p) not in mine]
        with torch.no_grad():
            for theirs, t in zip(given.copied, made, strict=True) if wrote else ():
                if theirs.data_ptr() != t.data_ptr():
                    theirs.copy_(t)
        if changed := given.changed():
            self._tell(given, f"{changed} is changed by the call", lasting=True)
        elif calls == 1:
            another = given.key[1:] != self._last[1][1:]
            self._tell(given, "what an object among the inputs holds is another at every call" if another else "")
        return result, wrote or bool(changed)

    def _warm(self, given: Inputs) -> Any:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._run(*given.args, **given.kwargs)
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _tell(self, given: Inputs, why: str, lasting: bool = False) -> None:
        """Warns once of calls with objects that are not replayed, one after another. why: empty where that is for the model's sake; lasting:
        whether the objects of such calls are not to be read any more, after so many."""
        if not given.objects:
            return
        self._unreplayed = self._unreplayed + 1 if why and given.sort == self._last[0] else bool(why)
        self._last = given.sort, given.key
        if lasting and self._unreplayed >= OFTEN:
            self._failed.add(given.sort)
        if self._unreplayed == OFTEN and not self._told:
            self._told = True
            warnings.warn(
                f"{OFTEN} calls in a row ran uncaptured, because {why}: a graph replays no Python. Give tensors by themselves, or in an object "
                "that stays the same from call to call and is written to in place, on the GPU (a StaticCache of transformers, and no DynamicCache).",
                stacklevel=6,
            )

    def _capture(self, given: Inputs) -> _Graph:
        static = list(map(copied, given.copied))
        for parameter in self._summed:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        recorded, own = given.with_tensors(static), own_objects(self._model)
        groups = self._optimizer.param_groups if self._optimizer else []
        set_rates = [g["lr"] for g in groups]
        rates = [float(rate) for rate in set_rates]
        if not self._rates and groups:
            where = self._parameters[0].device
            self._rates = [
                torch.tensor(rate, device=where, dtype=_precision(g)) for rate, g in zip(rates, groups, strict=True)
            ]
            self._seen = rates
        # Under the caller's autocast, copies of weights outlive the call: none from before may be read by the graph, and
        # none of the graph's by what runs before its first replay.
        torch.clear_autocast_cache()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # The graph reads the rate from memory; the user goes on seeing, and setting, a number, or a tensor that is theirs.
        for group, tensor in zip(groups, self._rates, strict=True):
            group["lr"] = tensor
        try:
            with recording(graph, self._stream, self._device):
                result = self._run(*recorded.args, **recorded.kwargs)
        except Exception as error:
            raise WorkloadError(why_not(error)) from error
        finally:
            torch.clear_autocast_cache()
            for group, rate in zip(groups, set_rates, strict=True):
                group["lr"] = rate
        gradients = [p.grad for p in self._parameters]
        sums = [(p, p.grad) for p in self._summed if p.grad is not None]
        learns = not self._optimizer and any(isinstance(m, _NormBase) and m.training for m in self._model.modules())
        held = list(map(weakref.ref, given.content.tensors))
        # A second run would advance what the caller's own tensors count: none is launched that may go for nothing.
        harmless = None if held else 0
        return _Graph(graph, static, held, Result(result, given, own), gradients, sums, harmless, learns)

    def _replay(self, captured: _Graph, given: Inputs, copies: bool = True) -> Any:
        """copies: False where the graph has those of the inputs already."""
        if copies:
            _copy(given.copied, captured.inputs)
        if self._optimizer:
            for k, group in enumerate(self._optimizer.param_groups):
                if isinstance(group["lr"], torch.Tensor):
                    self._seen[k] = math.nan
                    self._rates[k].copy_(group["lr"])  # to ask whether it is another would be to wait for the GPU
                elif group["lr"] != self._seen[k]:
                    self._seen[k] = float(group["lr"])
                    self._rates[k].fill_(self._seen[k])
        for parameter, total in captured.sums:
            if parameter.grad is not total:  # somebody cleared it, and its memory would be another tensor's
                total.zero_() if parameter.grad is None else total.copy_(parameter.grad)
                parameter.grad = total
        if self._optimizer:
            captured.graph.replay()
            count_step()
        elif captured.harmless is None or captured.harmless == PROOFS:
            captured.graph.replay()
        else:
            outside = OutsideMemory(captured.graph, self._device.index)
            captured.graph.replay()
            captured.harmless = captured.harmless + 1 if outside.unchanged() else None
        if captured.learns:
            count_step()
        for parameter, gradient in zip(self._parameters, captured.gradients, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient
        return captured.result.handed_out(given)


def _version(tensor: torch.Tensor) -> int:
    """Of one made in inference mode nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


def _copy(tensors: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    for static, tensor in zip(inputs, tensors, strict=True):
        static.copy_(tensor, non_blocking=True)


@contextlib.contextmanager
def _as_if_recorded() -> Iterator[None]:
    """Inside of it, this thread is told that its stream is being captured. Libraries ask that: the masks of transformers are made another
    way while a step is recorded. What is compiled for that way, block by block say, has to be compiled before, for a capture allows none."""
    asked, thread = torch.cuda.is_current_stream_capturing, threading.get_ident()
    torch.cuda.is_current_stream_capturing = lambda: threading.get_ident() == thread or asked()
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


def _precision(group: dict[str, Any]) -> torch.dtype:
    """In which an optimizer reads its learning rate, as it counts its steps: fused kernels take nothing but float32."""
    double = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    return torch.float64 if double else torch.float32
