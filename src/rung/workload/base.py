"""What is run: a model, its inputs and, for training, its loss and optimizer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rung.errors import WorkloadError

if TYPE_CHECKING:
    import torch

Mode = Literal["train", "infer"]
Parallel = Literal["ddp", "fsdp2", "own"]
MOST_NAMED = 6  # arguments of a model in a refusal
Batch = Any  # a tensor, or a dict, tuple or list of tensors


def call_model(model: Callable[..., Any], batch: Batch) -> Any:
    """The default forward: a dict is passed by keyword, a tuple or list by position, a tensor as it is."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    return model(batch)


@dataclass(frozen=True)
class Workload:
    """One thing to make faster: a model, its inputs and, for training, its loss and optimizer.

    Args:
        name: in reports.
        model: makes a fresh `torch.nn.Module` on the CPU, in float32 unless you want another dtype. Torch's generators are seeded
            before each call, so equal seeds give equal weights. A model of `torch.export` runs in the mode in which it was exported.
        inputs: makes the batch of a seed on the CPU: a tensor, or a dict, tuple or list of tensors. Different seeds must give
            different values in one shape. On one fixed batch, a model cannot be told from a cached answer.
        forward: `(model, batch) -> output`. By default a dict is passed by keyword, a tuple or list by position, a tensor as it is.
        mode: `train` (forward, loss, backward, optimizer) or `infer` (forward without gradients). By default `train` where there are
            a loss and an optimizer, and `infer` where there is neither.
        loss: `(output, batch) -> scalar tensor`, for training.
        optimizer: `(parameters) -> torch.optim.Optimizer`, for training. Another object with `step()` and `zero_grad()` will do, for
            example one that holds two optimizers; no rung remakes such an object.
        max_grad_norm: the norm over all gradients to which they are clipped before the optimizer steps, as by
            `torch.nn.utils.clip_grad_norm_`. A graph of the whole step clips as well, and runs no hook that does.
        other_shapes: makers of batches of other shapes. A recipe is verified on these, too. Without any, one shape is derived: another
            number of rows in the first dimension of every tensor.
        amp: the dtype of the workload's own autocast.
        samples, tokens: how many one step processes, for the throughput.
        steps: how many steps a plain measurement takes (`--num-steps`).
        options: what it was made with, for the record.
        output: False where a training step gives its loss alone. Then no step hands out what forward returns, and logits that
            nothing else needs never have to exist as a whole.
        one_shape: the model runs on one shape alone (a fixed batch, an exported model). No other shape is derived.
        parallel: how several ranks train it, where a command starts them (`--nproc-per-node`). `ddp`: each has all weights, and gradients
            are averaged. `fsdp2`: weights, gradients and the optimizer's states are sharded. `own`: `model` does what is needed, in a
            process group that is there by then. In inference, ranks run side by side. Every rank has batches of its own: `inputs` gets
            another seed on each, or, where it takes them, the keywords `rank` and `world`.

    Raises:
        WorkloadError: where the arguments do not make a workload.
    """

    name: str
    model: Callable[[], torch.nn.Module]
    inputs: Callable[[int], Batch]
    forward: Callable[[Any, Batch], Any] = call_model
    mode: Mode = ""  # type: ignore[assignment]  # one of the two, once it is made
    loss: Callable[[Any, Batch], torch.Tensor] | None = None
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None
    other_shapes: tuple[Callable[[int], Batch], ...] = ()
    amp: torch.dtype | None = None
    samples: int | None = None
    tokens: int | None = None
    steps: int = 50
    options: Mapping[str, Any] = field(default_factory=dict)
    output: bool = True
    one_shape: bool = False
    parallel: Parallel = "ddp"
    max_grad_norm: float | None = None
    kind: ClassVar[str] = "workload"

    @property
    def label(self) -> str:
        """What a refusal begins with."""
        return f"{self.kind} {self.name!r}"

    def __post_init__(self) -> None:
        _check_maker(self.label, "model", self.model, "model=lambda: Net()", arguments=())
        _check_maker(self.label, "inputs", self.inputs, "inputs=lambda seed: torch.randn(...)", arguments=(0,))
        if not self.mode:
            if bool(self.loss) != bool(self.optimizer):
                has, lacks = ("loss", "optimizer") if self.loss else ("optimizer", "loss")
                raise WorkloadError(
                    f"{self.label}: it has {'an' if has[0] == 'o' else 'a'} {has} and no {lacks}; give both, to train, or mode='infer'."
                )
            object.__setattr__(self, "mode", "train" if self.loss and self.optimizer else "infer")
        if self.parallel not in get_args(Parallel):
            raise WorkloadError(f"{self.label}: parallel is {self.parallel!r}; it must be 'ddp', 'fsdp2' or 'own'.")
        if self.mode not in ("train", "infer"):
            raise WorkloadError(f"{self.label}: mode is {self.mode!r}; it must be 'train' or 'infer'.")
        if self.mode == "train" and (self.loss is None or self.optimizer is None):
            raise WorkloadError(
                f"{self.label}: mode 'train' needs `loss` and `optimizer`; give both, or use mode='infer'."
            )
        if self.max_grad_norm is not None:
            _check_norm(self.label, self.max_grad_norm, self.mode)
        if self.loss is not None:
            _check_takes(
                self.label,
                "loss",
                self.loss,
                ("output", "batch"),
                "loss=lambda output, batch: F.mse_loss(output, batch[1])",
            )
        if self.optimizer is not None:
            _check_takes(
                self.label,
                "optimizer",
                self.optimizer,
                ("parameters",),
                "optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)",
            )


def _check_norm(label: str, norm: object, mode: Mode) -> None:
    """Refuses what gradients cannot be clipped to."""
    if not isinstance(norm, (int, float)) or isinstance(norm, bool) or not norm > 0:
        raise WorkloadError(f"{label}: max_grad_norm is {norm!r}; give a number above 0, as in max_grad_norm=1.0.")
    if mode != "train":
        raise WorkloadError(f"{label}: it has max_grad_norm, and no gradients to clip; leave it out in inference.")


def is_model(made: object) -> bool:
    """Whether it is a `torch.nn.Module`, without importing torch."""
    torch = sys.modules.get("torch")  # who made a model has imported it
    return torch is not None and isinstance(made, torch.nn.Module)


def _check_maker(label: str, which: str, maker: object, example: str, arguments: tuple[int, ...]) -> None:
    """Refuses the thing itself where a function that makes it is needed: every trial starts from a fresh one."""
    takes = "of one argument, the seed" if arguments else "without arguments"
    problem = ""
    if not callable(maker) or is_model(maker):
        problem = f"a {type(maker).__name__}"
    else:
        try:
            inspect.signature(maker).bind(*arguments)
        except TypeError:
            problem = "a function of other arguments"
        except ValueError:  # a builtin without a signature
            pass
    if problem:
        raise WorkloadError(f"{label}: {which} is {problem}; give a function {takes}, that makes one, as in {example}.")


def _check_takes(label: str, which: str, function: Callable[..., Any], given: tuple[str, ...], example: str) -> None:
    """Refuses a function that cannot be called with so many arguments."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*given)  # what is called takes the arguments
    except TypeError as error:
        raise WorkloadError(
            f"{label}: {which} is called with {' and '.join(f'the {word}' for word in given)}, and the one that is given takes other "
            f"arguments ({error}); write it as in {example}."
        ) from None
    except ValueError:  # a builtin without a signature
        pass


def refuse_no_scalar(workload: Workload, loss: Any) -> None:
    """Raises WorkloadError where a loss is none that backward can begin with."""
    numel = getattr(loss, "numel", None)
    if numel is None or numel() != 1:
        what = f"a {type(loss).__name__}" if numel is None else f"a tensor of shape {tuple(loss.shape)}"
        raise WorkloadError(
            f"{workload.label}: loss(output, batch) gives {what}; it must give one number, as loss.mean() does."
        )


def seeded_model(workload: Workload, seed: int = 0) -> torch.nn.Module:
    """The workload's model, made with torch's generators at `seed`, in the mode that it runs in."""
    import torch

    torch.manual_seed(seed)
    model = workload.model()
    if not isinstance(model, torch.nn.Module):
        raise WorkloadError(f"{workload.label}: model() returned {type(model).__name__}, not a torch.nn.Module.")
    tensors = (*model.named_parameters(), *model.named_buffers())
    if shapeless := next((name for name, tensor in tensors if torch.nn.parameter.is_lazy(tensor)), None):
        raise WorkloadError(
            f"{workload.label}: {shapeless} of the model has no shape before a first call (a lazy module); call the "
            "model once on some inputs in the function that makes it."
        )
    if empty := next((name for name, tensor in tensors if tensor.is_meta), None):
        raise WorkloadError(
            f"{workload.label}: {empty} of the model is on the meta device, where no tensor has content; make the model on the CPU, "
            "or load its weights in the function that makes it."
        )
    # A model that arrives in train mode keeps the parts that its author froze.
    if workload.mode == "infer" or not model.training:
        _switch(model, training=workload.mode == "train")
    return model


def _switch(model: torch.nn.Module, training: bool) -> None:
    """`model.train()` or `model.eval()`. What was exported runs in the mode in which it was exported, and torch refuses to switch it."""
    try:
        if training:
            model.train()
        else:
            model.eval()
    except NotImplementedError:
        for child in model.children():
            _switch(child, training)


def of_rank(workload: Workload, rank: int, world: int) -> Workload:
    """The workload as one rank of a job has it: with batches of its own. `samples` and `tokens` count the step of all ranks."""

    def own(make: Callable[..., Batch]) -> Callable[[int], Batch]:
        known = inspect.signature(make).parameters
        if "rank" in known and "world" in known:
            return partial(make, rank=rank, world=world)
        return lambda seed: make(seed * world + rank)

    return replace(
        workload,
        inputs=own(workload.inputs),
        other_shapes=tuple(own(make) for make in workload.other_shapes),
        samples=workload.samples and workload.samples * world,
        tokens=workload.tokens and workload.tokens * world,
    )


def shapes(workload: Workload) -> list[Callable[[int], Batch]]:
    """Input makers of at least two shapes, or of one where the workload has one alone: the measured one first.

    The derived second shape takes three rows (two, where there are three already) of every tensor, which is
    right when the first dimension is the batch. A workload whose tensors do not share it must name its own.
    """
    import torch
    from torch.utils import _pytree as pytree

    if workload.one_shape:
        return [workload.inputs]
    if workload.other_shapes:
        return [workload.inputs, *workload.other_shapes]
    if why := why_no_second_shape(workload):
        raise WorkloadError(
            f"{workload.label}: a second input shape cannot be derived, because {why}; give "
            "Workload(other_shapes=(lambda seed: ...,)), or one_shape=True where the model runs on one alone."
        )
    old = next(t.shape[0] for t in pytree.tree_leaves(workload.inputs(0)) if isinstance(t, torch.Tensor))
    new = 3 if old != 3 else 2

    def resized(seed: int) -> Batch:
        # Two seeds are joined, so that the rows of a larger batch are still different from each other.
        parts = [workload.inputs(seed + 7919 * k) for k in range(-(-new // old))]
        leaves = [pytree.tree_flatten(p) for p in parts]
        joined = [
            torch.cat([p[0][i] for p in leaves])[:new] if isinstance(leaf, torch.Tensor) else leaf
            for i, leaf in enumerate(leaves[0][0])
        ]
        return pytree.tree_unflatten(joined, leaves[0][1])

    return [workload.inputs, resized]


def why_no_second_shape(workload: Workload) -> str:
    """Why no second shape can be derived from the inputs, in a few words; empty where one can."""
    import torch
    from torch.utils import _pytree as pytree

    tensors = [t for t in pytree.tree_leaves(workload.inputs(0)) if isinstance(t, torch.Tensor)]
    if any(t.is_nested or t.layout != torch.strided for t in tensors):
        return "its inputs hold a sparse or a nested tensor"
    rows = {t.shape[0] if t.dim() else 0 for t in tensors}
    return "its inputs share no first dimension" if len(rows) != 1 or 0 in rows else ""


def refuse_other_arguments(workload: Workload, model: torch.nn.Module, batch: Batch) -> None:
    """Raises WorkloadError where the default forward would call a model with arguments that it does not take."""
    if workload.forward is not call_model or model._forward_pre_hooks:  # a hook may change what is given
        return
    try:
        takes = inspect.signature(model.forward)
    except (TypeError, ValueError):  # compiled by TorchScript, say
        return
    try:
        call_model(takes.bind, batch)
    except TypeError as error:
        names = [*takes.parameters]
        taken = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
        many = f" of {len(batch)}" if isinstance(batch, (Mapping, tuple, list)) else ""
        raise WorkloadError(
            f"{workload.label}: inputs(seed) gives a {type(batch).__name__}{many}, and {type(model).__name__}.forward({taken}) cannot be "
            f"called with it ({error}); change inputs, or say how the model is called: Workload(forward=lambda model, batch: ...)."
        ) from error
