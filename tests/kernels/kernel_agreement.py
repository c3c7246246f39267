"""Whether a kernel agrees with its reference in float64, forward and backward."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rung.kernels import configs

HAS_TRITON = importlib.util.find_spec("triton") is not None
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def tensor(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", grad: bool = True) -> torch.Tensor:
    """Values that the dtype holds exactly, drawn on the CPU so that every device has the same."""
    return torch.randn(*shape).to(device, dtype).requires_grad_(grad)


def strided(kind: str, x: torch.Tensor) -> torch.Tensor:
    """The same values with other strides: a slice of a wider tensor, leading dimensions in another order, or columns that
    do not lie side by side."""
    if kind == "contiguous":
        return x
    if kind == "slice":
        wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 5, dtype=x.dtype, device=x.device)
        wide[..., 3:-2] = x.detach()
        return wide[..., 3:-2].requires_grad_(x.requires_grad)
    if kind == "swapped":
        return x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_(x.requires_grad)
    return x.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_(x.requires_grad)


def run(fn: Callable[..., Any], inputs: tuple[Any, ...], seed: int = 1) -> list[torch.Tensor]:
    """The result, then the gradients of all inputs that require one, for a random gradient of the result."""
    y = fn(*inputs)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)).to(y.device, y.dtype)
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    return [y.detach(), *(torch.autograd.grad(y, wanted, grad) if wanted else ())]


def launched(monkeypatch: pytest.MonkeyPatch, rule: str) -> list[dict[str, Any]]:
    """The configurations that this rule of `configs` gives from now on."""
    found: list[dict[str, Any]] = []
    plain = getattr(configs, rule)

    def told(*arguments: Any) -> dict[str, Any]:
        found.append(plain(*arguments))
        return dict(found[-1])

    monkeypatch.setattr(configs, rule, told)
    return found


def wide(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.detach().double().requires_grad_(x.requires_grad)
    return x


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest difference, relative to the value or to the size of all values, whichever is larger. Where all are zero, as the gradient of a
    softmax over one key is, it is the difference itself."""
    if not truth.numel():
        return 0.0
    size = truth.square().mean().sqrt()
    scale = truth.abs() + torch.where(size < 1e-12, 1.0, size)
    return float(((found.double() - truth).abs() / scale).max())


def agree(fn: Callable[..., Any], reference: Callable[..., Any], *inputs: Any, tolerance: float | None = None) -> None:
    """fn(*inputs) against reference in float64: the result and every gradient, whose dtypes are those of eager's."""
    dtype = next(x.dtype for x in inputs if isinstance(x, torch.Tensor))
    limit = TOLERANCE[dtype] if tolerance is None else tolerance
    found, eager = run(fn, inputs), run(reference, inputs)
    truth = run(reference, tuple(map(wide, inputs)))
    for k, (a, b, c) in enumerate(zip(found, eager, truth, strict=True)):
        assert a.shape == b.shape, k
        assert a.dtype == b.dtype, k
        assert error(a, c) <= max(limit, 2 * error(b, c)), (k, error(a, c), error(b, c))
