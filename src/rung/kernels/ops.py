"""How a kernel becomes an operator: one definition, reached through the dispatcher where something traces, directly
where nothing does.

A traced graph holds `torch.ops.rung.NAME`. It is a `triton_op`: AOTAutograd takes it apart, so Inductor launches the
kernel itself and no Python runs for it. Under the Triton interpreter (`TRITON_INTERPRET=1` when this is first
imported) it is an opaque operator with a fake, which traces without a GPU. Outside of any tracing the same functions
run as an `autograd.Function`, which costs the host less than the dispatcher does.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from rung.errors import UsageError
from rung.kernels.once import in_forward_mode, no_forward_mode, once

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
WHOLE = ("target", "keep", "seed")  # of whole numbers or of truth
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def wrap_triton(kernel: Any) -> Any:
    """The kernel, launched where its first tensor is, or what traces it where a mode (fake tensors, functionalization) is active.

    Called by this name inside an operator's body: that is how torch finds the kernels whose source enters its cache key.
    """
    if INTERPRETED:
        return kernel
    if _get_current_dispatch_mode() is None:
        return _Placed(kernel)
    return _Traced(kernel)


def _current(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Makes a GPU (AMD's are `cuda` to torch, too) the current one, where it is another; `cuda` without an index is the current one."""
    elsewhere = device.type == "cuda" and device.index not in (None, torch.cuda.current_device())
    return torch.cuda.device(device) if elsewhere else contextlib.nullcontext()


class _Placed:
    """A kernel that is launched on the device of its first tensor. Triton launches on the current one, wherever the tensors are, and
    no operator of Python's makes theirs the current one."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **named: Any) -> None:
            with _current(arguments[0].device):
                self._kernel[grid](*arguments, **named)

        return launch


class _Traced:
    """A kernel that a mode traces, or one that only watches (a FLOP counter): under that it is launched."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **named: Any) -> None:
            # Fake tensors may be of a GPU where there is none to ask.
            with _current(arguments[0].device) if torch.cuda.is_initialized() else contextlib.nullcontext():
                torch.library.wrap_triton(self._kernel)[grid](*arguments, **named)

        return launch


def operator(
    name: str, body: Callable[..., Any], fake: Callable[..., Any], *, opaque: bool = False, schema: str | None = None
) -> Any:
    """`torch.ops.rung.NAME`; nothing is mutated. opaque: never taken apart, for bodies that are more than a launch.

    schema: of an opaque one that takes lists, which torch 2.6 does not read from annotations of built-in ones.
    """
    if INTERPRETED or opaque:
        op = torch.library.custom_op(f"rung::{name}", body, mutates_args=(), schema=schema)
        op.register_fake(fake)
        return op
    return torch.library.triton_op(f"rung::{name}", body, mutates_args=())


def differentiable(
    name: str,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None],
    gradient: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    backward_fake: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The operator with its gradient, as one function.

    save(ctx, inputs, output): what the gradient needs. gradient(backward, ctx, *grads): a gradient an input, where
    `backward` is the operator `NAME_backward` or its body, whichever this call goes through. Neither has a gradient of its own.
    """
    op = operator(name, forward, fake)
    back_op = operator(f"{name}_backward", backward, backward_fake) if backward and backward_fake else None
    op.register_autograd(lambda ctx, *grads: gradient(back_op, ctx, *grads), setup_context=save)

    def direct_save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        save(ctx, inputs, output)

    def direct_gradient(ctx: Any, *grads: Any) -> Any:
        if backward is None:  # it goes through an operator, which has a gradient
            return gradient(None, ctx, *grads)
        with torch.no_grad():
            found = gradient(backward, ctx, *grads)
        return once(found)

    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(direct_save),
        "backward": staticmethod(direct_gradient),
    }
    function: Any = type(name, (torch.autograd.Function,), members)

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling() or not _direct(arguments):
            return op(*arguments)
        return function.apply(*arguments)

    return call


def _direct(arguments: tuple[Any, ...]) -> bool:
    return _get_current_dispatch_mode() is None and all(
        type(a) in _PLAIN for a in arguments if isinstance(a, torch.Tensor)
    )


def check(name: str, **tensors: torch.Tensor | None) -> None:
    """Raises UsageError for a dtype, a device or a mixture of devices that the kernels do not take, and RuntimeError under forward-mode AD."""
    given = {k: t for k, t in tensors.items() if t is not None}
    # Without reverse mode beside it, an operator would drop the derivative unsaid.
    if in_forward_mode() and any(forward_ad.unpack_dual(t).tangent is not None for t in given.values()):
        no_forward_mode(None)
    devices = {t.device for t in given.values()}
    if len(devices) > 1:
        where = ", ".join(f"{k} on {t.device}" for k, t in given.items())
        raise UsageError(f"{name}: the tensors are on different devices ({where}); move them to one.")
    if next(iter(devices)).type != "cuda" and not INTERPRETED:
        raise UsageError(f"{name}: the kernels run on a GPU; on a CPU use rung.kernels.reference.{name}.")
    for k, t in given.items():
        if t.dtype not in DTYPES and k not in WHOLE:
            raise UsageError(f"{name}: {k} is {t.dtype}; the kernels take float32, float16, bfloat16 and float64.")
    doubles = {k: t.dtype == torch.float64 for k, t in given.items() if t.is_floating_point()}
    if len(set(doubles.values())) > 1:
        which = next(k for k, double in doubles.items() if double)
        raise UsageError(f"{name}: {which} is float64 and others are not; give all in float64, or none.")
