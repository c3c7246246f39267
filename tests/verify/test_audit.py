"""Why a workload cannot be climbed: the sentences, and what must not be refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rung.engine.disturbed import elements
from rung.errors import WorkloadError
from rung.hardware import pick
from rung.verify import audit as audits
from rung.verify.audit import audit, called, one_shape_only
from rung.workload import Workload, shapes

CPU = pick("cpu")
WIDTH = 8


def workload(**changes: Any) -> Workload:
    plain = Workload(
        "audited",
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda seed: torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )
    return replace(plain, **changes)


def refused(**changes: Any) -> str:
    with pytest.raises(WorkloadError) as caught:
        audit(workload(**changes), CPU)
    said = str(caught.value)
    assert said.startswith("workload 'audited': ")
    return said


class Experts(nn.Module):
    """Each row goes to one of eight experts, so that three rows leave most without any."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x.argmax(-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (chosen == k).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]))
        return out


def test_experts_that_a_few_rows_leave_out_are_not_without_a_gradient() -> None:
    assert audit(workload(model=Experts), CPU) == []


def test_what_no_step_gives_a_gradient_is_named() -> None:
    class Unused(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.never = nn.Parameter(torch.ones(1))

    assert audit(workload(model=Unused), CPU) == ["never"]


def micro_batches(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for part in batch.chunk(2):
        mean = model(part).square().mean() / 2
        mean.backward()
        total += mean.detach()
    return total


def test_a_batch_without_rows_is_not_said_to_ignore_its_seed() -> None:
    assert "inputs(1) has no elements" in refused(inputs=lambda seed: torch.randn(0, WIDTH))


def test_a_forward_that_calls_backward_itself_is_told_to_leave_it_out() -> None:
    said = refused(forward=micro_batches, loss=lambda output, batch: output)
    assert "calls backward() itself" in said
    assert "return the loss (the sum over micro-batches)" in said


def test_a_loss_that_calls_backward_itself_is_told_to_leave_it_out() -> None:
    def loss(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        mean = output.square().mean()
        mean.backward()
        return mean

    assert "calls backward() itself" in refused(loss=loss)


def test_a_loss_without_a_gradient_is_said_to_be_one() -> None:
    assert "its loss has no grad_fn" in refused(loss=lambda output, batch: output.detach().mean())


def test_what_else_goes_wrong_in_a_step_is_raised_as_it_is() -> None:
    def raises(slope: torch.Tensor) -> None:
        raise RuntimeError("no gradient today")

    def loss(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        output.register_hook(raises)
        return output.mean()

    with pytest.raises(RuntimeError, match="no gradient today"):
        audit(workload(loss=loss), CPU)


def test_a_loss_that_is_no_number_is_refused() -> None:
    assert "loss(output, batch) gives a tensor of shape (64, 8); it must give one number" in refused(
        loss=lambda output, batch: output
    )


def divided(model: nn.Module, batch: torch.Tensor) -> dict[str, Any]:
    y = model(batch)
    return {"y": y, "means": [y.mean(1), y[:, 0] / 0.0]}


@pytest.mark.parametrize(
    ("forward", "loss", "says"),
    [
        (divided, lambda output, batch: output["y"].mean(), "its output['means'][1] is not finite on fresh weights (64 of 64"),
        (lambda model, batch: model(batch) / 0.0, lambda output, batch: batch.mean() + 0 * output.nan_to_num(0, 0, 0).mean(), "its output is not finite on"),
        (lambda model, batch: model(batch), lambda output, batch: output.mean() / 0.0, "its loss is not finite on fresh weights (1 of 1"),
    ],
)  # fmt: skip
def test_what_is_not_finite_is_named_with_its_place(forward: Callable[..., Any], loss: Any, says: str) -> None:
    said = refused(forward=forward, loss=loss)
    assert says in said
    assert "change the inputs or how the weights are initialized" in said


@pytest.mark.parametrize(("fills", "helps"), [("-inf", True), ("inf", True), ("nan", False)])
def test_an_output_that_a_mask_fills_is_refused_with_what_to_fill_in(fills: str, helps: bool) -> None:
    said = refused(
        forward=lambda model, batch: model(batch).masked_fill(batch > 0, float(fills)),
        loss=lambda output, batch: torch.where(batch > 0, 0.0, output).mean(),
    )
    assert ("fill in torch.finfo(dtype).min or return what is before the mask." in said) is helps


@pytest.mark.parametrize("more", [1, 2])
def test_parameters_of_the_loss_that_the_optimizer_steps_are_named(more: int) -> None:
    head = nn.Linear(WIDTH, WIDTH, bias=more == 2)
    said = refused(
        loss=lambda output, batch: head(output).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD([*parameters, *head.parameters()], lr=0.1),
    )
    assert f"its optimizer steps {more} parameter{'s' * (more - 1)} that the model does not have" in said
    assert "put what the optimizer steps into the model" in said


def test_a_buffer_that_changes_in_inference_is_told_to_go_through_inputs_and_outputs() -> None:
    class Streamed(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.register_buffer("history", torch.zeros(64, WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.history.clone()
            self.history.copy_(x)
            return super().forward(x + before)

    said = refused(model=Streamed, mode="infer", loss=None, optimizer=None)
    assert "because history does" in said
    assert said.endswith("or pass such state in through the inputs and out through the output.")


def test_random_numbers_in_the_forward_may_come_with_the_inputs() -> None:
    said = refused(forward=lambda model, batch: model(batch) + torch.randn(()))
    assert said.endswith("switch the randomness off, or draw it in inputs(seed).")


class Fixed(nn.Linear):
    """As exported models are: for the number of rows that they were exported with."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] != 64:
            raise ValueError(f"made for 64 rows, not for {x.shape[0]}")
        return super().forward(x)


def test_why_a_model_runs_on_one_shape_alone_is_said() -> None:
    why = one_shape_only(workload(model=Fixed), CPU)
    assert why == "on another number of rows it raised ValueError: made for 64 rows, not for 3"


def test_a_workload_that_says_so_runs_on_one_shape_alone() -> None:
    assert one_shape_only(workload(one_shape=True), CPU) == "it says so"


def test_what_the_model_is_called_with_is_told_from_the_batch() -> None:
    def labelled(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
        return x, x.sum(1)

    all_of_it = workload()
    assert called(all_of_it, CPU).elements == elements(all_of_it.inputs(0))
    without = workload(
        inputs=labelled, model=lambda: torch.nn.Linear(8, 1), forward=lambda model, batch: model(batch[0])
    )
    assert (elements(without.inputs(0)), called(without, CPU).elements) == (54, 48)


def test_of_a_scripted_model_which_takes_no_hook_the_whole_batch_counts() -> None:
    scripted = workload(model=lambda: torch.jit.script(nn.Linear(WIDTH, WIDTH)))
    assert called(scripted, CPU).elements == elements(scripted.inputs(0))


def test_inputs_without_a_common_first_dimension_are_of_one_shape_alone() -> None:
    def inputs(seed: int) -> dict[str, torch.Tensor]:
        return {"x": workload().inputs(seed), "scale": torch.ones(WIDTH)}

    given = workload(inputs=inputs, forward=lambda model, batch: model(batch["x"]) * batch["scale"])
    assert one_shape_only(given, CPU) == "its inputs share no first dimension, so no other shape can be derived"
    assert audit(replace(given, one_shape=True), CPU) == []


@pytest.mark.parametrize("odd", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.nested.as_nested_tensor])
def test_inputs_of_which_no_rows_can_be_cut_are_of_one_shape_alone(odd: Callable[[torch.Tensor], torch.Tensor]) -> None:
    given = workload(inputs=lambda seed: odd(workload().inputs(seed)))
    assert one_shape_only(given, CPU) == "its inputs hold a sparse or a nested tensor, so no other shape can be derived"
    with pytest.raises(WorkloadError, match=r"give Workload\(other_shapes=.*\), or one_shape=True where"):
        shapes(given)


def test_what_runs_on_the_derived_shape_or_names_its_own_is_not_of_one_shape() -> None:
    assert one_shape_only(workload(), CPU) == ""
    assert one_shape_only(workload(model=Fixed, other_shapes=(lambda seed: torch.ones(3, WIDTH),)), CPU) == ""


def test_a_model_of_one_shape_is_audited_on_that_one() -> None:
    assert audit(workload(model=Fixed, one_shape=True), CPU) == []
    said = refused(
        model=Fixed, one_shape=True, forward=lambda model, batch: model(batch) / 0.0, loss=lambda output, batch: output.mean()
    )  # fmt: skip
    assert "is not finite on fresh weights" in said  # what else is wrong with it is found


def test_a_derived_shape_that_fails_is_still_refused_where_nobody_has_said_that_there_is_one_alone() -> None:
    assert "made for 64 rows, not for 3; name shapes that it takes in Workload(other_shapes=" in refused(model=Fixed)


def test_a_named_shape_that_fails_is_refused() -> None:
    said = refused(model=Fixed, other_shapes=(lambda seed: torch.ones(3, WIDTH),))
    assert "made for 64 rows, not for 3" in said


def test_a_model_that_was_made_in_inference_mode_is_refused() -> None:
    def made() -> nn.Module:
        with torch.inference_mode():
            return nn.Linear(WIDTH, WIDTH)

    said = refused(model=made, mode="infer", loss=None, optimizer=None)
    assert (
        "made under torch.inference_mode(), so nothing can be written to weight; make it under torch.no_grad()" in said
    )


def test_a_cast_to_a_fixed_dtype_is_refused_with_what_to_cast_to() -> None:
    class Half(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.to(torch.bfloat16)).float()

    made: dict[str, Any] = {"model": lambda: Half(WIDTH, WIDTH, dtype=torch.bfloat16)}
    said = refused(**made)
    assert "with weights and inputs in float32 it raised RuntimeError: " in said
    assert said.endswith("cast to that of the weights, as in x.to(self.fc.weight.dtype).")
    assert audit(workload(**made), CPU, full_precision_too=False) == []
    right = workload(
        model=lambda: nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16),
        forward=lambda model, batch: model(batch.to(model.weight.dtype)),
    )
    assert audit(right, CPU) == []


@pytest.mark.parametrize(
    "said", ["CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "HIP error: 2"]
)
def test_a_device_that_lacks_memory_for_float32_refuses_nothing(said: str) -> None:
    """Others load the model beside the audit."""

    class Short(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.weight.dtype == torch.float32:
                raise RuntimeError(said)
            return super().forward(x.to(self.weight.dtype))

    assert audit(workload(model=lambda: Short(WIDTH, WIDTH, dtype=torch.bfloat16)), CPU) == []


def test_an_output_whose_shape_rounding_decides_is_refused() -> None:
    def chosen(model: Any, batch: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = model(batch.repeat(64, 1) * torch.linspace(1, 2, 64 * 64)[:, None])
        return (scores > 0.5).nonzero()

    picks: dict[str, Any] = {"forward": chosen, "mode": "infer", "loss": None, "optimizer": None, "one_shape": True}
    said = refused(**picks, amp=torch.bfloat16)
    assert "rounding decides the shape of its output" in said
    assert audit(workload(**picks), CPU) == []


@pytest.mark.parametrize("kind", [threading.Lock, lambda: (k for k in range(3))])
def test_a_model_that_cannot_be_copied_is_refused_by_its_attribute(kind: Callable[[], Any]) -> None:
    class Locked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.held = kind()

    said = refused(model=lambda: nn.Sequential(Locked()))
    assert f"0.held of its model, a {type(kind()).__name__}, cannot be copied (" in said


def test_weights_that_would_fill_a_gpu_are_not_copied_in_float32() -> None:
    """Workers that others time load the same model beside the audit."""
    workload = Workload("x", lambda: nn.Linear(4, 4), lambda seed: torch.randn(2, 4), amp=torch.bfloat16)
    step: Any = SimpleNamespace(workload=workload, device=replace(CPU, kind="cuda", memory=1000))  # and no model
    audits._refuse_not_in_full_precision(step, {"weight": torch.ones(4, 4)}, None)  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="it is compared in float32 first"):
        audits._refuse_not_in_full_precision(step, {"weight": torch.ones(3, 4)}, None)  # type: ignore[arg-type]
