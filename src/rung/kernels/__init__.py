"""Triton kernels that rungs put into a model: rotary embedding, cross-entropy and attention with a bias
with their gradients, attention of one query and products of one row without.

Each function is differentiable but those two, compiles without a graph break (`torch.ops.rung.*`), and has a plain-PyTorch twin of the
same name in `rung.kernels.reference`. Importing this loads neither torch nor Triton; the first use does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rung.kernels.functional import (
        biased_attention,
        cross_entropy,
        decode_attention,
        gemv,
        rope,
    )

__all__ = [
    "available",
    "biased_attention",
    "cross_entropy",
    "decode_attention",
    "gemv",
    "rope",
]


def available() -> bool:
    """Whether Triton is installed here; the kernels need a GPU besides."""
    import importlib.util

    return importlib.util.find_spec("triton") is not None


def __getattr__(name: str) -> Any:
    if name == "reference":  # plain PyTorch, for where the kernels cannot run
        import importlib

        return importlib.import_module("rung.kernels.reference")
    if name not in __all__:
        raise AttributeError(f"module 'rung.kernels' has no attribute {name!r}")
    if not available():
        from rung.errors import UsageError

        raise UsageError(
            "the kernels need Triton, which is not installed; it comes with PyTorch's builds for ROCm and CUDA."
        )
    from rung.kernels import functional

    return getattr(functional, name)
