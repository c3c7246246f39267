"""A workload under a plan, ready to run: what is timed, what is profiled and what is verified are this."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rung.engine.attention import prefer_backend
from rung.engine.channels_last import outputs_as_without
from rung.engine.compiled import Compiled
from rung.engine.compiled_backward import CompiledBackward, can_be_compiled
from rung.engine.cuda_graph import GraphedStep
from rung.engine.disturbed import elements
from rung.engine.optimizer import is_fused, make_optimizer, rebuild, update
from rung.engine.own_dtype import OwnDtype, cast_back
from rung.engine.parts import on_tensors
from rung.engine.process_wide import CONVOLUTION_SEARCH, TF32
from rung.hardware.device import Device, autocast, matmul_precision_name
from rung.plan import Plan
from rung.records.workload import Break
from rung.rewrites import RewriteBackend
from rung.workload import Workload
from rung.workload.base import refuse_no_scalar

Forward = Callable[[Any], tuple[Any, Any]]  # batch -> (loss, output)


class Step:
    """`step(batch) -> (loss, output)`; the loss is None in inference, the output where the workload hands out none.

    A training step clears the gradients, runs forward, loss and backward, clips the gradients where the workload does, and steps the
    optimizer; the gradients of the step can be read from the parameters until the next one. The model object is the one
    given: its class, mode, hooks and state dict are not touched, only its weights are trained.

    In inference under the plan's autocast, bfloat16 outputs are cast back to the dtype of the weights, as `rung.apply` does it.

    Batches that the plan leaves to the original run as the workload was written, but for the optimizer, whose state
    is one, and for torch's matrix precision, which is the process's.

    What a plan does not ask for is decided once, and not in every step: under the empty plan a step takes hardly longer than its author's
    own loop. What Rung adds there is part of the time that candidates are compared with, and compiling takes most of it away.
    """

    def __init__(
        self,
        workload: Workload,
        model: torch.nn.Module,
        plan: Plan,
        device: Device,
        new_shapes: Callable[[], Any] | None = None,
        dynamic: bool | None = None,
        called: torch.nn.Module | None = None,
    ) -> None:
        """new_shapes, dynamic: as of Compiled. called: what is called in the model's place (`rung.engine.parallel`)."""
        self._called = model if called is None else called
        self.workload, self.model, self.plan, self.device = workload, model, plan, device
        self.training = workload.mode == "train"
        self._amp = torch.bfloat16 if plan.bf16 else workload.amp
        self._lays_back = plan.channels_last
        self._own = None if self.training or not plan.bf16 else OwnDtype(model)
        self._original = plan.original or None
        self._forward = Compiled(self._plain_forward, model, plan, device.arch, new_shapes, dynamic)
        self._looks = self._forward.renews and not plan.capture  # a recorded step asks by itself
        compiles_backward = plan.compiles_backward and can_be_compiled(self._called)
        self._backward = CompiledBackward(plan, self._called) if compiles_backward else None
        self.optimizer: torch.optim.Optimizer | None = None
        self.grad_norm: torch.Tensor | None = None  # of the last step, before it was clipped
        self._searched = False
        self.fresh()

    def fresh(self) -> None:
        """A new optimizer, as if no step had been taken; captured graphs are dropped, compiled code is kept."""
        self._plain: Callable[[Any], Any] = self._infer
        if self.workload.mode == "train":
            made = make_optimizer(self.workload, self.model)
            assert made is not None
            self.optimizer = rebuild(made, fused=self.plan.fused_optimizer, capturable=self.plan.capture)
            if isinstance(self.optimizer, torch.optim.Optimizer):
                self._forward.follow(self.optimizer)
            self._plain = self._train
        if self.plan.cudnn_benchmark:
            self._plain = partial(self._searching, self._plain)
        self._run: Callable[[Any], tuple[torch.Tensor | None, Any]] = self._plain
        if self.plan.capture:
            self._run = GraphedStep(self._plain, self.device, self.model, self.optimizer, self._forward.renewed)

    def __call__(self, batch: Any) -> tuple[torch.Tensor | None, Any]:
        if self._original and self._original.takes(elements(batch)):
            with self._forward.aside(), CONVOLUTION_SEARCH.aside():
                return (self._train if self.training else self._infer)(batch, self._untouched)
        if self._own:
            self._own.look()
        if self._looks:
            self._forward.renewed()
        return self._run(batch)

    def undo(self) -> None:
        """`Compiled.undo`: the model, and the states of the optimizer, are as its author would have them."""
        self._forward.undo()

    def unlike(self) -> list[str]:
        """Layers whose copied weights are not the model's, in sentences."""
        return self._forward.unlike()

    @property
    def backend(self) -> RewriteBackend | None:
        """What rewrites and compiles the captured graphs, where anything does."""
        return self._forward.backend

    @property
    def breaks(self) -> list[Break]:
        """Where Dynamo broke the graph so far."""
        return self._forward.breaks

    def applied(self) -> dict[str, Any]:
        """What of the plan is in effect, as this process sees it: plain values, for a rung to be proved by."""
        return {
            **self._forward.applied(),
            "captured": self._run.shapes if isinstance(self._run, GraphedStep) else 0,
            "precision": matmul_precision_name(),
            "autocast": str(self._amp) if self._amp else None,
            "cudnn_benchmark": self._searched if self.plan.cudnn_benchmark else torch.backends.cudnn.benchmark,
            "optimizer_fused": bool(self.optimizer and is_fused(self.optimizer)),
            **({"compiled backward": self._backward.graphs > 0} if self._backward else {}),
        }

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """`Compiled.aside`: inside of it the model is as its author wrote it."""
        return self._forward.aside()

    def forward(self, batch: Any) -> tuple[torch.Tensor | None, Any]:
        """(loss, output) of a batch, as a step computes them; nothing is trained."""
        loss, output = self._forward(batch)
        return loss, output

    def _plain_forward(self, batch: Any) -> tuple[torch.Tensor | None, Any]:
        loss, output = self._computed(batch, self._amp)
        return loss, output if self._own is None else cast_back(output, self._own.dtype)

    def _untouched(self, batch: Any) -> tuple[torch.Tensor | None, Any]:
        # Weights that ranks gather in bfloat16 are so for every call.
        return self._computed(batch, self._amp if self.plan.exchange.weights else self.workload.amp)

    def _computed(self, batch: Any, amp: torch.dtype | None) -> tuple[torch.Tensor | None, Any]:
        if amp is None:
            return self._results(batch)
        with autocast(self.device, amp):
            return self._results(batch)

    def _results(self, batch: Any) -> tuple[torch.Tensor | None, Any]:
        output = self.workload.forward(self._called, batch)
        if self._lays_back:
            output = outputs_as_without(output, batch)
        loss = self.workload.loss(output, batch) if self.workload.loss and self.training else None
        if self.training and not self.workload.output:
            return loss, None
        # Nobody differentiates through the output itself; saying so spares compiled code its gradient.
        return loss, on_tensors(torch.Tensor.detach if self.training else _detached, output)

    def _infer(self, batch: Any, forward: Forward | None = None) -> tuple[None, Any]:
        with torch.no_grad():
            return None, (forward or self._forward)(batch)[1]

    def _train(self, batch: Any, forward: Forward | None = None) -> tuple[torch.Tensor, Any]:
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        if self._backward:
            self._backward.share_buffers()
        around = self._backward.around() if self._backward and not forward else contextlib.nullcontext()
        with around:
            loss, output = (forward or self._forward)(batch)
            refuse_no_scalar(self.workload, loss)
            with prefer_backend(self.plan.attention):  # by what is recomputed, too
                loss.backward()
        self.keep_norm(update(self.optimizer, self.model, self.workload.max_grad_norm))
        return loss.detach(), output

    def keep_norm(self, norm: torch.Tensor | None) -> None:
        """Every recorded graph writes it to one place, which is made in a step before the first that is recorded."""
        if norm is None:
            return
        if self.grad_norm is None:
            self.grad_norm = torch.empty_like(norm)
        self.grad_norm.copy_(norm)

    def _searching(self, run: Callable[[Any], Any], batch: Any) -> Any:
        """For the step, and not for the process: a reference in float64 would be searched for, too."""
        with CONVOLUTION_SEARCH.held():
            self._searched = torch.backends.cudnn.benchmark
            return run(batch)


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    """In inference few tensors have a gradient to detach: weights, and what a forward computes that turns gradients on by itself."""
    return tensor.detach() if tensor.requires_grad else tensor


def matmul_precision(plan: Plan) -> contextlib.AbstractContextManager[None]:
    """torch's process-wide matrix precision for a plan; one that does not ask for TF32 keeps the user's own."""
    return TF32.held() if plan.tf32 else contextlib.nullcontext()
