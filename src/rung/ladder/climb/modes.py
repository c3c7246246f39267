"""Which plain modes of torch.compile there are: what a user would write in one line, as rungs of the ladder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import UNSET, UnsetType

from rung.ladder.climb.schedule import PRECISIONS
from rung.records.climb import Mode, Plain
from rung.rungs import BY_NAME, Context, plan_of
from rung.timing.tasks import Task

NAME = "plain"  # of their attempt
BLOCKS = "blocks-and-graph"  # ready long before the model compiled as a whole, where there are cores for both
LAID_OUT = "channels-last"
TITLES = {
    "cuda-graph": "CUDA or HIP graph of the model as it is",
    "default": "torch.compile",
    "reduce-overhead": 'torch.compile(mode="reduce-overhead")',
    "blocks-and-graph": "torch.compile of each block, the whole step as one CUDA or HIP graph",
    "compile-and-graph": "torch.compile, the whole step as one CUDA or HIP graph",
    "max-autotune": 'torch.compile(mode="max-autotune")',
    "channels-last": "convolutions with channels innermost, nothing compiled",
    "eager": "the model as it is, at the lowest precision and with the fused optimizer",
}
MODES = {
    "cuda-graph": ("capture",),
    "blocks-and-graph": ("compile-regions", "capture"),  # compiles in a fraction of the time, and is seldom much slower
    "compile-and-graph": ("compile", "capture"),
    "default": ("compile",),
    "reduce-overhead": ("compile", "reduce-overhead"),
    "max-autotune": ("compile", "max-autotune", "reduce-overhead"),  # the last one on GPUs, as in torch's own mode
    "channels-last": (
        "channels-last",
    ),  # ready at once, and all there is to gain where a convolution takes the whole step
    "eager": (),  # all there is to gain where one kernel of a library takes it; compiled code costs the host more
}
SLOW = ("max-autotune",)  # takes minutes
ROUNDED = "rounded"
ATTENDED = "attended"
# What an end of a mode's name says, at the end of its title: a higher precision, where a lower one is slower or raises; or that compiled code is
# compiled once more, with another rounding where it was refused for what it computes in 16 bits, with other attention where it raised.
ENDS = {
    "tf32": "in TF32",
    "float32": "in float32",
    ROUNDED: "rounded where eager rounds",
    ATTENDED: "attention with a bias by Rung's kernel",
}


def modes(context: Context, slow: bool, without: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The rungs of each plain mode that this device and workload permit; slow: also those that take minutes; without: precisions that
    are left out, and the mode's name says in which it is instead."""
    before: list[str] = []
    for name in (*PRECISIONS, "fused-optimizer"):
        if name not in without and BY_NAME[name].applies(_on(context, before)) is None:
            before.append(name)
    end = ("-tf32" if "tf32" in before else "-float32") if without else ""
    found: dict[str, tuple[str, ...]] = {}
    for mode, names in MODES.items():
        stack = list(before)
        for name in names if context.facts.gpu or mode not in SLOW else names[:-1]:
            if BY_NAME[name].applies(_on(context, stack)) is not None:
                break
            stack.append(name)
        else:
            if stack and (slow or mode not in SLOW):
                found[mode + end] = tuple(stack)
    return found


def mode_of(name: str) -> str:
    """The mode without what its name ends in."""
    mode, _, end = name.rpartition("-")
    return mode_of(mode) if end in ENDS else name


def eager_rounding_variant(
    context: Context, name: str, rungs: Sequence[str], seen: Iterable[str]
) -> tuple[str, tuple[str, ...]] | None:
    """The name and the rungs of the mode in the place of one that was refused in 16 bits, which rounds where eager rounds. None where that is
    nothing for it, or one of the modes `seen`, by name, does so already."""
    return _variant(replace(context, rounding_refused=True), name, rungs, seen, ROUNDED, "eager-rounding")


def bias_kernel_variant(
    context: Context, name: str, rungs: Sequence[str], seen: Iterable[str]
) -> tuple[str, tuple[str, ...]] | None:
    """The same where compiled code raised: its attention with a bias is Rung's kernel."""
    return _variant(context, name, rungs, seen, ATTENDED, "biased-attention")


def _variant(
    context: Context, name: str, rungs: Sequence[str], seen: Iterable[str], end: str, remedy: str
) -> tuple[str, tuple[str, ...]] | None:
    """A compiled mode with one rung more, whose name ends in `end`."""
    on = Context(
        plan_of(rungs), context.numerics, context.facts, {}, context.rates, rounding_refused=context.rounding_refused
    )
    if "compile" not in rungs or any(one.endswith(end) for one in seen):
        return None
    return None if BY_NAME[remedy].applies(on) else (f"{name}-{end}", (*rungs, remedy))


def mode_of_task(name: str, task: Task, error: str | UnsetType = UNSET) -> Mode:
    """The record of a mode that this task prepared; error: why it was not timed."""
    failed = True if task.error and task.error.kind in ("raised", "refused") else UNSET
    return Mode(name=name, title=title(name), rungs=list(task.side.rungs), error=error, failed=failed)


def the_best(mode: Mode, modes: list[Mode]) -> Plain:
    """The best of these modes with all of them."""
    fields = {name: getattr(mode, name) for name in Mode.__struct_fields__}
    return Plain(**fields, modes=modes)


def title(name: str) -> str:
    ends = name.removeprefix(mode_of(name)).split("-")[1:]
    return ", ".join([TITLES[mode_of(name)], *(ENDS[end] for end in ends)])


def _on(context: Context, names: list[str]) -> Context:
    """Without the profile: what is compared with must not depend on where the time goes."""
    return Context(plan_of(names), context.numerics, context.facts, {}, context.rates, wants_fast_compile=True)
