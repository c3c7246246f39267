"""A model under a recipe: its calls, its whole steps, and how all of that is undone."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from rung.engine.channels_last import outputs_as_without
from rung.engine.compiled import Compiled, Renewed
from rung.engine.cuda_graph import GraphedStep
from rung.engine.disturbed import elements
from rung.engine.dynamo import expect_changes
from rung.engine.optimizer import custom_state, parameters_of
from rung.engine.own_dtype import OwnDtype, cast_back
from rung.engine.process_wide import CONVOLUTION_SEARCH, Setting, settings_of
from rung.engine.step import Step
from rung.errors import UsageError
from rung.hardware.device import Device, autocast
from rung.kernels.once import in_forward_mode
from rung.plan import Plan
from rung.recipes.compatibility import no_match_message
from rung.workload import Workload, call_model

FORWARDED = (
    "training", "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children",
    "named_children", "state_dict", "load_state_dict", "zero_grad", "config", "device", "dtype",
)  # fmt: skip

Factory = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


class OptimizerFactory:
    """The user's function that makes an optimizer, and whatever it made that someone still holds. One of these steps, or none where a rung
    remakes it."""

    def __init__(self, make: Factory) -> None:
        self._make = make
        self._held: list[tuple[weakref.ref[torch.optim.Optimizer], str, list[Any]]] = []

    def __call__(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = self._make(parameters)
        if isinstance(optimizer, torch.optim.Optimizer):
            self._held.append((weakref.ref(optimizer), custom_state(optimizer), _rates(optimizer)))
        return optimizer

    def misplaced(self, stepping: torch.optim.Optimizer | None) -> str:
        """What an optimizer other than the one that steps was given since it was made, such as a hook; empty where nothing was.
        ReduceLROnPlateau leaves no mark but the rate that it lowers."""
        for reference, state_when_made, rates_when_made in self._held:
            optimizer = reference()
            if optimizer is None or optimizer is stepping:
                continue
            if (state := custom_state(optimizer)) != state_when_made:
                return state
            if _rates(optimizer) != rates_when_made:
                return "another learning rate"
        return ""


def _rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Of an optimizer's groups; a tensor stands for itself, because one made anew has the same, and sees what is written to it."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return [id(rate) if isinstance(rate, torch.Tensor) else rate for rate in rates]


class Applied:
    """A model under a recipe, made by `rung.apply`: call it as you call the model; `step(batch)` runs a whole training step.

    - `model` is the object that was given. Its class, state dict and hooks are untouched.
    - `pending` names the rungs that are not in effect. They need `loss` and `optimizer`; or variables that the process was not started
      with (`rung apply` prints them); or they were warned of, because the device or the model is of another kind.
    - `train`, `eval` and what else is usually read of a model go to the model.
    - Inputs of a size at which the recipe was found to lose go to the model as it is, in `step` too. So do calls under forward-mode AD.
    - With `capture` or `reduce-overhead` in the recipe, the next call overwrites results: clone what you keep. With `reduce-overhead`, it
      overwrites gradients, too: step and clear them before, or sum them up elsewhere.
    - With `bf16`, bfloat16 outputs are cast back to the dtype of the model's weights. What `step` returns in training is not, as under
      torch.autocast: casting logits takes time, and few programs read them.
    - With `channels-last`, outputs are in the usual layout where the inputs are, as the untouched model gives them. Weights that
      `load_state_dict(assign=True)` puts into the model lie in the usual layout: apply the recipe anew then.
    - With `compile` or a rewrite, Dynamo's limit on compilations of one function is raised in every thread that calls it. Otherwise a
      model that is called with more than eight shapes would run uncompiled. Hooks that are registered later are run.
    - Keep this object as long as the recipe is to hold: torch's settings for the process (TF32, Dynamo's limits) are put back when nobody has it
      any more, as by `undo()`. With `compile-regions` the blocks of the model stay compiled, and the settings stay with the model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        plan: Plan,
        device: Device,
        workload: Workload | None,
        dynamic: bool | None,
        rungs: Sequence[str],
        in_words: str,
        pending: tuple[str, ...],
    ) -> None:
        """workload: of a step that is more than a call of the model; dynamic: as of `rung.apply`; rungs: the recipe's; in_words: the recipe,
        for `repr`."""
        self.model = model
        factory = workload.optimizer if workload else None
        self._factory = factory if isinstance(factory, OptimizerFactory) else None
        self._frozen = [p for p in model.parameters() if not p.requires_grad] if factory else []
        self._plan, self._device = plan, device
        self._original = plan.original or None
        self._thread = _Thread()
        # First: what it binds to the model in place is set aside after what the calls bind, in `aside`.
        self._step = Step(workload, model, plan, device, self._expect_changes, dynamic) if workload else None
        # After it, which may shard the model's parameters. By identity: a weak reference would keep them from being swapped.
        self._given_to_optimizer = {id(p) for p in model.parameters() if p.requires_grad} if factory else set()
        self._steps = 0
        self.pending = pending
        self._effect_checked = not (plan.passes or plan.regions)
        self._rungs, self._recipe_in_words = frozenset(rungs), in_words

        # What is traced reads no more of this object than it needs: Dynamo guards all that it reads, in every call.
        def forward(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        def forward_in_bf16(*args: Any, **kwargs: Any) -> Any:
            with autocast(device, torch.bfloat16):
                output = model(*args, **kwargs)
            return cast_back(output, weights.dtype)

        self._weights = weights = OwnDtype(model)
        # Shapes, modes and hooks are compiled for apart; beyond the limit, Dynamo would leave a function uncompiled.
        self._expects = plan.compiles or bool(plan.passes)
        function = inner = forward_in_bf16 if plan.bf16 else forward
        if plan.channels_last:

            def function(*args: Any, **kwargs: Any) -> Any:
                return outputs_as_without(inner(*args, **kwargs), (args, kwargs))

        self._compiled = Compiled(function, model, plan, device.arch, self._expect_changes, dynamic)
        self._captured: GraphedStep | None = None
        if plan.capture:
            self._captured = self._newly_captured()
        self._held: list[Setting] = []
        # Blocks that were compiled stay in the model, and need Dynamo's limits as long as it is called.
        weakref.finalize(model if plan.regions else self, _drop, self._held).atexit = False
        for setting in settings_of(plan):  # last, as nobody could undo what is left half made
            setting.hold()
            self._held.append(setting)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Compiled code, recorded graphs and kernels have no derivative in forward mode, and without gradients most drop it unsaid.
        if in_forward_mode() or (self._original and self._original.takes_call(elements((args, kwargs)))):
            with self.aside(), CONVOLUTION_SEARCH.aside():
                output = self.model(*args, **kwargs)
            return outputs_as_without(output, (args, kwargs)) if self._plan.channels_last else output
        if self._plan.bf16:
            self._weights.look()
        if not self._thread.expects_changes:
            self._expect_changes()
        if self._captured and not torch.is_grad_enabled():
            output = self._captured(*args, **kwargs)
        else:
            if self._compiled.renews and self._compiled.renewed() is Renewed.STEP and self._captured:
                self._captured = self._newly_captured()
            output = self._compiled(*args, **kwargs)
        if not self._effect_checked and self._step is None:
            self._warn_of_no_effect(self._compiled)
        return output

    def _newly_captured(self) -> GraphedStep:
        return GraphedStep(
            lambda *args, **kwargs: self._compiled(*args, **kwargs),
            self._device,
            self.model,
            renewed=self._compiled.renewed,
        )

    def train(self, mode: bool = True) -> Applied:
        self.model.train(mode)
        return self

    def eval(self) -> Applied:
        return self.train(False)

    def __getattr__(self, name: str) -> Any:
        if name in FORWARDED:
            return getattr(self.model, name)
        raise AttributeError(
            f"a model under a recipe has no {name!r}; `.model` is the model itself: what is changed there holds here, too, and what is called there runs without the recipe."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses what is meant for the model, and would have no effect here."""
        if name == "model" and "model" in vars(self):
            raise AttributeError("the model under a recipe cannot be exchanged: call rung.apply on the other one.")
        if not (name.startswith("_") or name in ("model", "pending") or hasattr(type(self), name)):
            raise AttributeError(f"{name!r} of a model under a recipe cannot be set: set it on `.model`.")
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What was compiled runs this very model: a copy, or what is loaded again, would run it in the place of its own."""
        raise UsageError(
            "a model under a recipe cannot be copied or pickled: copy or save `.model`, or its state_dict(), and give that to rung.apply."
        )

    def __repr__(self) -> str:
        return f"{type(self.model).__name__} under {self._recipe_in_words}"

    def _warn_of_no_effect(self, ran: Compiled | Step) -> None:
        """Warns, after the first run, of rewrites that found nothing in what was captured or copy at every call, and of a model
        without repeated blocks."""
        if self._effect_checked:
            return
        if self._plan.regions:
            ran = self._compiled  # whose blocks are bound to the model last, and run in steps, too
        self._effect_checked, seen = True, ran.applied()
        if self._plan.regions and not seen["regions"]:
            warnings.warn("compile-regions found no list of equal blocks: nothing is compiled.", stacklevel=3)
        if seen["copied_joins"]:
            warnings.warn(
                "weights that are multiplied as one are copied together at every call, as others may hold their memory: give rung.apply a model whose state dict is not kept.",
                stacklevel=3,
            )
        for name in [name for name, count in seen["matches"].items() if not count and name in self._rungs]:
            warnings.warn(no_match_message(name, seen["skipped"]) + ".", stacklevel=3)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside of it the model is as its author wrote it: nothing that either of the two ways to run it has bound to it in place is in
        effect."""
        with self._compiled.aside(), self._step.aside() if self._step else contextlib.nullcontext():
            yield

    def step(self, batch: Any) -> Any:
        """One whole step: `(loss, output)` in training (None for an output that is not asked for), the output in inference."""
        if self._step is None:
            with torch.no_grad():
                return self(**batch) if isinstance(batch, dict) else call_model(self, batch)
        self._warn_of_another_optimizer()
        if self._frozen:
            self._warn_of_unstepped(self._frozen)
        if not self._thread.expects_changes:
            self._expect_changes()
        loss, output = self._step(batch)
        self._warn_of_no_effect(self._step)
        self._steps += 1
        power_of_two = not self._steps & (self._steps - 1)  # after step 1, 2, 4, 8: the whole model is looked at
        if self._given_to_optimizer and power_of_two:
            self._warn_of_unstepped(p for p in self.model.parameters() if id(p) not in self._given_to_optimizer)
        return output if loss is None else (loss, output)

    def _warn_of_another_optimizer(self) -> None:
        """Once, where a scheduler or a hook was given to one that never steps."""
        if self._factory and (misplaced := self._factory.misplaced(self.optimizer)):
            self._factory = None
            warnings.warn(
                f"an optimizer that optimizer= made was given {misplaced}, but it is not the one that steps: use `.optimizer` of what rung.apply returned.",
                stacklevel=3,
            )

    def _warn_of_unstepped(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Once, where any of these, which `optimizer=` was not handed, gets gradients and is in no group."""
        trained = [p for p in parameters if p.requires_grad and p.grad is not None]
        if not trained:
            return
        self._frozen = []
        in_groups = set(map(id, parameters_of(self.optimizer)))
        if lost := sum(id(p) not in in_groups for p in trained):
            self._given_to_optimizer = set()
            warnings.warn(
                f"{lost} parameters get gradients and are in no group of the optimizer: optimizer= was handed what the model had, and trained, then. "
                "Unfreeze or exchange them before rung.apply, or give them to .optimizer.add_param_group.",
                stacklevel=3,
            )

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer that `step` uses, and the only one. What optimizer= made may have been made anew. Schedulers
        and hooks belong to it."""
        return self._step.optimizer if self._step else None

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm that all gradients of the last step had before they were clipped to max_grad_norm, on the device. The next step
        overwrites it."""
        return self._step.grad_norm if self._step else None

    def undo(self) -> None:
        """Puts torch's process-wide settings back, blocks that were compiled, the model's own switches, and the layout of its weights and
        of the optimizer's states; nothing else was ever changed. Under channels-last, wrap the model in DistributedDataParallel anew afterwards:
        its buckets are for the layout that the weights had."""
        self._compiled.undo()  # first what was bound last
        if self._step:
            self._step.undo()
        while self._held:
            self._held.pop().release()
        self._expects = False

    def _expect_changes(self) -> None:
        """In each thread, whose settings of Dynamo are its own in newer torch, and before a new shape is compiled."""
        self._thread.expects_changes = True
        if self._expects:
            expect_changes()


def _drop(held: list[Setting]) -> None:
    """What `undo` does with the settings of a recipe, where nobody has the recipe any more."""
    while held:
        held.pop().drop()


class _Thread(threading.local):
    expects_changes = False
