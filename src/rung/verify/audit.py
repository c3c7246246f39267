"""Can the workload itself be verified? Checked before anything is measured."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.engine.disturbed import elements
from rung.engine.optimizer import parameters_of
from rung.engine.parts import parts
from rung.engine.step import Step
from rung.errors import WorkloadError, first_line, where
from rung.hardware.device import Device, to_device
from rung.plan import Plan
from rung.verify.observe import Observation, identical, observe, output_rows, own_copy, refuse_unseen, same_batch
from rung.verify.perturb import perturbed, put, state
from rung.verify.random_draws import (
    DEPENDS_ON_WEIGHTS,
    DRAW_WITHOUT_WEIGHTS,
    RecordDraws,
    ReplayDraws,
    draws_random_numbers,
    same_draws,
)
from rung.verify.randomness import without_dropout
from rung.verify.reference import LOW, exactly, full_precision, in_float32
from rung.workload import Workload, seeded_model, shapes
from rung.workload.base import refuse_other_arguments, why_no_second_shape
from rung.workload.copy_model import copy_model, copy_sharing_tensors
from rung.workload.hidden_tensors import refuse_hidden_tensors

# Messages of a device and its libraries, also where memory is short.
DEVICE_ERROR = re.compile(r"(?i)\b(cuda|hip) error|cublas|cudnn|hipblas|rocblas|miopen")
NO_BACKWARD = (
    "does not require grad",
    "backward through the graph a second time",
)  # what torch says of a loss that it cannot differentiate
FEW = 0.05  # of a GPU's memory, up to which the weights in float32 are copied beside what others load


def _differ(one: Observation, other: Observation) -> bool:
    """Whether an output or the loss of two runs differs by more than rounding."""
    compared = (row for row in output_rows(one, one, other, "") if not row.what.startswith("scale of "))
    # Small elements may be what remains of large ones, whose sums on a GPU are in no fixed order.
    return any(row.error > (row.floor or (0.1 if "elements" in row.what else 1e-3)) for row in compared)


def _observed(step: Step, batch: Any) -> Observation:
    with refuse_no_gradient(step, batch):
        return observe(step, None, batch, gradients=False)


@contextlib.contextmanager
def refuse_no_gradient(step: Step, batch: Any) -> Iterator[None]:
    """Inside of it a step raises WorkloadError where the workload's loss cannot be differentiated."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error) for words in NO_BACKWARD) and (why := _why_no_gradient(step, batch)):
            raise WorkloadError(f"{step.workload.label}: {why}") from error
        raise


def _why_no_gradient(step: Step, batch: Any) -> str:
    """A sentence that says why the loss cannot be differentiated; empty where it can."""
    assert step.workload.loss is not None
    step.model.zero_grad()
    loss = step.workload.loss(step.workload.forward(step.model, batch), batch)
    if any(p.grad is not None for p in step.model.parameters()):
        return "its forward or loss calls backward() itself, but Rung calls it; return the loss (the sum over micro-batches) and leave backward() out."
    if loss.requires_grad:
        return ""
    return "its loss has no grad_fn, so it trains nothing (was it detached, or computed under no_grad?); return the loss as it is computed."


def _place_in_output(step: Step, batch: Any, name: str) -> str:
    """Where in the output a quantity lies, as it is written in Python; `name` is as `rung.verify.observe` has it."""
    if name == "loss":
        return name
    paths = [path for path, part in parts(step(batch)[1])[0] if isinstance(part, torch.Tensor)]
    return "output" + paths[int(name.removeprefix("output") or 0)]


def _count_foreign_parameters(step: Step) -> int:
    """The number of parameters with a gradient that the optimizer steps and the model does not have."""
    own = {id(p) for p in step.model.parameters()}
    return sum(id(p) not in own and p.grad is not None for p in parameters_of(step.optimizer))


def _refuse_not_in_full_precision(step: Step, weights: dict[str, torch.Tensor], seen: Observation) -> None:
    """Raises WorkloadError where a workload in 16 bits does not run with float32 in their place, which every candidate is compared in first,
    or gives outputs of another shape there: then rounding decides how many elements there are. seen: what it gives as it is, from these
    weights."""
    workload, device = step.workload, step.device
    tensors = (*weights.values(), *pytree.tree_leaves(workload.inputs(1)))
    if not workload.amp and not any(isinstance(t, torch.Tensor) and t.dtype in LOW for t in tensors):
        return
    if device.is_gpu and 4 * sum(t.numel() for t in weights.values()) > FEW * device.memory:
        return  # others load the model beside this, and would lack the memory that a copy takes
    raised = exactly(workload)
    try:
        with full_precision():
            model = in_float32(copy_model(step.model))
            model.zero_grad(set_to_none=True)
            exact = observe(
                Step(raised, model, Plan(), device), weights, to_device(raised.inputs(1), device), gradients=False
            )
    except torch.OutOfMemoryError:  # which says nothing of what it computes
        return
    except Exception as error:
        if DEVICE_ERROR.search(str(error)):  # neither does this, where others take memory meanwhile
            return
        raise WorkloadError(
            f"{workload.label}: it is compared in float32 first, and with weights and inputs in float32 it raised "
            f"{type(error).__name__}: {first_line(error)}; where it casts to a fixed dtype, cast to that of the weights, as in "
            "x.to(self.fc.weight.dtype)."
        ) from error
    for name, t in seen.values.items():
        if name in exact.values and (other := exact.values[name]).shape != t.shape:
            raise WorkloadError(
                f"{workload.label}: rounding decides the shape of its {name}, {tuple(t.shape)} as it is and {tuple(other.shape)} in "
                "float32, so no candidate can be compared with it; return what the elements are chosen by, all of it."
            )


def _why_not_replayable(step: Step, batch: Any, values: dict[str, torch.Tensor], seen: Observation, seed: int) -> str:
    """A few words that say why the random numbers of a step cannot be given to another; empty where they can. seen: a run on this batch, with
    these weights and this seed."""

    def run(weights: dict[str, torch.Tensor], seed: int, mode: RecordDraws | ReplayDraws) -> Observation:
        put(step.model, weights)
        step.fresh()
        torch.manual_seed(seed)
        with mode:
            return observe(step, None, batch, gradients=False)

    try:
        first, elsewhere = RecordDraws(), RecordDraws()
        run(values, seed, first)
        again = run(values, seed + 1, ReplayDraws(first.tape))
        run(perturbed(step.model, 0), seed, elsewhere)
    except Exception as error:
        return f"a run that was given another's random numbers raised {type(error).__name__}: {first_line(error)}"
    if _differ(seen, again):
        return "not all of them are drawn by torch's functions for random numbers (a dropout rate fixed in a call of attention?)"
    return "" if same_draws(first.tape, elsewhere.tape) else DEPENDS_ON_WEIGHTS


def _refuse_shared_memory(workload: Workload, batch: Any, seen: Observation) -> None:
    """Raises WorkloadError where the workload writes to an input whose elements another has, too. Every run is given copies of the inputs, each
    of its own memory, so that what one shows of a write to the other would not be compared."""
    tensors = [(name, t) for name, t in parts(batch)[0] if isinstance(t, torch.Tensor) and t.layout == torch.strided]
    for written, t in tensors:
        if (f"input {written}" if written else "input") not in seen.written:
            continue
        if (other := next((name for name, one in tensors if name != written and _overlap(t, one)), None)) is not None:
            raise WorkloadError(
                f"{workload.label}: it writes to its input {written}, which shares memory with its input {other}, so no candidate can be compared "
                "with it; give them memory of their own, as clone() does."
            )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have an element in common, and not only a storage, as parts of one cache have."""
    storage = a.untyped_storage()
    if not storage.nbytes() or storage.data_ptr() != b.untyped_storage().data_ptr():
        return False
    if a.element_size() != b.element_size():
        return True
    of_a = torch.zeros(storage.nbytes() // a.element_size(), dtype=torch.bool)
    of_a.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(of_a.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _refuse_copy_of_others(step: Step, other: torch.nn.Module, batch: Any) -> None:
    """Raises WorkloadError where a copy of the model computes with the weights of the model that it was copied from. What a candidate does to its
    own weights would not show. So the copy runs while the original has no weights. other: a copy of the same tensors."""
    workload, model = step.workload, step.model
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):  # holds no functions of Python
        return

    def run() -> None:
        torch.manual_seed(1)
        with torch.set_grad_enabled(workload.mode == "train"):
            workload.forward(other, own_copy(batch))

    with torch.compiler.set_stance("force_eager"):  # what its author compiled would be compiled once more
        try:
            with _without_tensors(model, {*other.modules()}):
                run()
        except Exception as error:
            try:
                run()
            except Exception:  # for another reason, which is told where candidates are compared
                return
            raise WorkloadError(
                f"workload {workload.name!r}: a copy of its model computes with the weights of the model that was copied{where(error)}, and candidates are "
                "compared on copies; have hooks and other functions that the model keeps take the module that they are called with, and not one from a "
                "global variable."
            ) from error


@contextlib.contextmanager
def _without_tensors(model: torch.nn.Module, except_of: set[torch.nn.Module]) -> Iterator[None]:
    """Inside of it no module of a model, except these, has a parameter or a buffer."""
    tables = [
        (vars(m), name, vars(m)[name]) for m in {*model.modules()} - except_of for name in ("_parameters", "_buffers")
    ]
    try:
        for attributes, name, _ in tables:
            attributes[name] = {}
        yield
    finally:
        for attributes, name, table in tables:
            attributes[name] = table


def audit(workload: Workload, device: Device, full_precision_too: bool = True, random: bool = False) -> list[str]:
    """Checks that the workload itself can be verified; returns the names of parameters without a gradient. full_precision_too: whether
    candidates are compared in full precision, as all but functions in half precision are; random: whether its forward may draw random numbers.

    Raises WorkloadError, with a sentence, for a model whose copies compute with its own weights, results that are not finite, that depend on the calls before, or on random numbers that nobody else can be given,
    inputs that do not change with the seed, shapes on which it raises (`one_shape_only` tells beforehand of those that are derived), and a
    training step in which most trainable parameters get no gradient.
    """
    workload = without_dropout(workload)
    step = Step(workload, seeded_model(workload).to(device.torch_name), Plan(), device)
    other = copy_sharing_tensors(step.model, workload.label)
    first = workload.inputs(1)
    _refuse_inputs(workload, step.model, first)
    _refuse_inference_tensors(workload, step.model)
    weights = {k: v.clone() for k, v in state(step.model).items()}
    _refuse_copy_of_others(step, other, to_device(first, device))
    seen = []
    for seed in (1, 2, 2):
        put(step.model, weights)
        step.fresh()
        torch.manual_seed(seed)
        seen.append(_observed(step, to_device(first, device)))
    refuse_unseen(workload, seen[0])
    _refuse_shared_memory(workload, first, seen[0])
    _refuse_not_finite(step, to_device(first, device), weights, seen[0])
    _refuse_kept_state(step, seen[1], seen[2])
    _refuse_random_numbers(step, first, weights, seen, random)
    if full_precision_too:
        _refuse_not_in_full_precision(step, weights, seen[0])
    if workload.mode == "infer":
        _refuse_changing_buffers(step, to_device(first, device), weights, seen[2])
    seen += _on_other_shapes(step)
    return _without_gradient(step, seen) if workload.mode == "train" else []


def _refuse_inputs(workload: Workload, model: torch.nn.Module, first: Any) -> None:
    """Raises WorkloadError for batches that hide tensors, are empty, do not fit the model's forward, or are the same for every seed."""
    refuse_hidden_tensors(workload, first)
    refuse_other_arguments(workload, model, first)
    tensors = [part for part in pytree.tree_leaves(first) if isinstance(part, torch.Tensor)]
    if tensors and not any(tensor.numel() for tensor in tensors):
        raise WorkloadError(f"{workload.label}: inputs(1) has no elements; give a batch of one row or more.")
    if same_batch(first, workload.inputs(2)):
        raise WorkloadError(
            f"{workload.label}: inputs(1) and inputs(2) are equal, so a candidate would be timed and verified on one batch alone; inputs must "
            "depend on the seed."
        )


def _refuse_inference_tensors(workload: Workload, model: torch.nn.Module) -> None:
    if made := next((name for name, t in state(model).items() if t.is_inference()), None):
        raise WorkloadError(
            f"{workload.label}: its model was made under torch.inference_mode(), so nothing can be written to {made}; make it under torch.no_grad()."
        )


def _refuse_not_finite(step: Step, batch: Any, weights: dict[str, torch.Tensor], seen: Observation) -> None:
    name = next((name for name, t in seen.values.items() if not bool(t.isfinite().all())), None)
    if name is None:
        return
    put(step.model, weights)  # those that such a step has left may not even run
    wrong = seen.values[name].isfinite().logical_not()
    masked = name != "loss" and not bool(seen.values[name].isnan().any())
    mask = ", or, where a mask fills in -inf, fill in torch.finfo(dtype).min or return what is before the mask"
    raise WorkloadError(
        f"{step.workload.label}: its {_place_in_output(step, batch, name)} is not finite{' on fresh weights' if weights else ''} ({int(wrong.sum())} of "
        f"{wrong.numel()} numbers), so no candidate can be compared with it; change the inputs{' or how the weights are initialized' if weights else ''}"
        f"{mask if masked else ''}."
    )


def _refuse_kept_state(step: Step, one: Observation, again: Observation) -> None:
    """Raises WorkloadError where two runs from equal weights, on one batch, from one seed differ."""
    if not _differ(one, again):
        return
    if count := _count_foreign_parameters(step):
        raise WorkloadError(
            f"{step.workload.label}: its optimizer steps {count} parameter{'s' if count > 1 else ''} that the model does not have (a loss "
            "with weights?), so its results change from call to call, and no candidate can be compared with it; put what the optimizer "
            "steps into the model, and have forward return what the loss needs of it."
        )
    raise WorkloadError(
        f"{step.workload.label}: two runs of it from equal weights, on one batch and from one seed, differ: the model keeps state "
        "between calls (a counter, an attribute, a generator), or draws random numbers of numpy or Python, so no candidate can "
        "be compared with it; make each call independent, and draw random numbers in inputs(seed)."
    )


def _refuse_random_numbers(
    step: Step, first: Any, weights: dict[str, torch.Tensor], seen: list[Observation], random: bool
) -> None:
    """Raises WorkloadError where the forward draws random numbers that a candidate cannot be given. seen: runs from the seeds 1 and 2."""

    def batch() -> Any:
        return to_device(first, step.device)

    differs = _differ(seen[0], seen[1])
    if not (
        differs or (random and draws_random_numbers(lambda: observe(step, None, batch(), gradients=False), step.device))
    ):
        return
    why = _why_not_replayable(step, batch(), weights, seen[1], 2) if random else ""
    if why or not random:
        what = "its result depends on torch's random state" if differs else "its forward draws random numbers"
        mend = (
            DRAW_WITHOUT_WEIGHTS
            if why == DEPENDS_ON_WEIGHTS
            else "switch the randomness off, or draw it in inputs(seed)"
        )
        raise WorkloadError(
            f"{step.workload.label}: {what}{f', and {why}' if why else ''}, so no candidate can be compared with it; {mend}."
        )
    put(step.model, weights)
    step.fresh()


def _refuse_changing_buffers(step: Step, batch: Any, weights: dict[str, torch.Tensor], before: Observation) -> None:
    """Raises WorkloadError where inference differs when it runs once more, from the buffers that the run before has left."""
    torch.manual_seed(2)
    if _differ(before, observe(step, None, batch)):
        now = state(step.model)
        moved = next((name for name in weights if not identical(weights[name], now[name])), "a buffer")
        raise WorkloadError(
            f"{step.workload.label}: its results change from call to call because {moved} does, so no candidate can be compared with it; keep it constant in inference, or pass such "
            "state in through the inputs and out through the output."
        )


def _on_other_shapes(step: Step) -> list[Observation]:
    """One run on each shape beside the measured one; raises WorkloadError where the workload does not run on it."""
    workload, seen = step.workload, []
    for make in shapes(workload)[1:]:
        batch = make(1)
        try:
            seen.append(observe(step, None, to_device(batch, step.device), gradients=False))
        except Exception as error:
            raise WorkloadError(
                f"{workload.label}: it runs on inputs(1), but on another shape it raised "
                f"{type(error).__name__}: {first_line(error)}; name shapes that it takes in Workload(other_shapes=(lambda seed: ...,))."
            ) from error
        _refuse_shared_memory(workload, batch, seen[-1])
    return seen


def _without_gradient(step: Step, seen: list[Observation]) -> list[str]:
    """The trainable parameters that got no gradient in any of these steps; raises WorkloadError where they are most."""
    label = step.workload.label
    # A target network, or a backbone under no_grad, is not trained.
    optimized = set(map(id, parameters_of(step.optimizer)))
    named = [(n, p) for n, p in step.model.named_parameters() if p.requires_grad]
    trainable = {n: p for n, p in named if id(p) in optimized or not optimized}  # not every optimizer tells
    if optimized and not trainable:
        raise WorkloadError(
            f"{label}: its optimizer holds no parameter of the model, so nothing is trained; give it some of `parameters`."
        )
    # Few rows may leave an expert without a token: what counts is a gradient in any of the steps.
    without = [n for n in trainable if all(s.gradients.get(n) is None for s in seen)]
    if 2 * len(without) > len(trainable):
        shown = ", ".join(without[:5]) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        raise WorkloadError(
            f"{label}: {len(without)} of {len(trainable)} parameters of the optimizer get no gradient "
            f"({shown}): part of the model runs outside autograd, so it does not train; fix that, or leave them out of the optimizer."
        )
    return without


@dataclass(frozen=True)
class Called:
    """What a step on the measured batch shows. elements: of tensors that the model is called with, since a loss may take labels beside them;
    draws: whether the forward draws random numbers beside dropout."""

    elements: int
    draws: bool


def called(workload: Workload, device: Device) -> Called:
    """Runs a step, without dropout, to see what it is called with and whether it draws."""
    workload = without_dropout(workload)
    model, sizes = seeded_model(workload).to(device.torch_name), [0]
    step, batch = Step(workload, model, Plan(), device), to_device(workload.inputs(0), device)
    try:
        hook = model.register_forward_pre_hook(
            lambda _, args, kwargs: sizes.append(elements((args, kwargs))), with_kwargs=True
        )
    except RuntimeError:  # torch hangs none on a scripted model
        return Called(elements(batch), draws_random_numbers(lambda: step(batch), device))
    random = draws_random_numbers(lambda: step(batch), device)
    hook.remove()
    return Called(sizes[:2][-1], random)


def one_shape_only(workload: Workload, device: Device) -> str:
    """A few words that say why a workload that names no other shape runs on the measured one alone; empty where it runs on the derived one.
    Where the model refuses a size, a candidate is not at fault."""
    if workload.one_shape:
        return "it says so"
    if workload.other_shapes:
        return ""
    if why := why_no_second_shape(workload):
        return f"{why}, so no other shape can be derived"
    derived = shapes(workload)[1](1)
    try:
        Step(workload, seeded_model(workload).to(device.torch_name), Plan(), device)(to_device(derived, device))
    except Exception as error:
        return f"on another number of rows it raised {type(error).__name__}: {first_line(error)}"
    return ""
