"""Models that have switches of their own: Hugging Face's attention implementation and the cache of `generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from rung.errors import WorkloadError


def switches(model: nn.Module) -> dict[str, str]:
    """What can be switched and how it stands: `attention` (sdpa, eager, flash_attention_2) and `cache` (`dynamic` where
    the model has said nothing), of a model that has them."""
    found = {}
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if isinstance(attention, str) and callable(getattr(model, "set_attn_implementation", None)):
        found["attention"] = attention
    generation = getattr(model, "generation_config", None)
    if generation is not None and callable(getattr(model, "generate", None)):
        found["cache"] = getattr(generation, "cache_implementation", None) or "dynamic"
    return found


def takes_sdpa(model: nn.Module) -> bool:
    """Whether the model's own switch takes SDPA; Hugging Face's classes say so (gpt-oss does not)."""
    return getattr(model, "_supports_sdpa", True) is not False


class Switched:
    """The model with its own switches set, until `undo`. Raises what the model raises: Gemma 2 refuses SDPA."""

    def __init__(self, model: nn.Module, wanted: tuple[tuple[str, str], ...]) -> None:
        self._undo: list[Callable[[], Any]] = []
        for name, value in wanted:
            before = switches(model).get(name)
            if before is None:
                raise WorkloadError(
                    f"{type(model).__name__} has no switch of its own for its {name}: leave that rung out."
                )
            if name == "attention":
                _attention(model, value)
                self._undo.append(lambda before=before: _attention(model, before))  # type: ignore[misc]
            else:
                generation: Any = model.generation_config
                old = generation.cache_implementation
                generation.cache_implementation = value
                self._undo.append(lambda g=generation, old=old: setattr(g, "cache_implementation", old))  # type: ignore[misc]

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def _attention(model: Any, value: str) -> None:
    model.set_attn_implementation(value)


def generates(run: Callable[[], Any], model: nn.Module) -> bool:
    """Whether a run calls the model's own `generate`."""
    original = getattr(model, "generate", None)
    if not callable(original):
        return False
    calls = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    model.generate = noted
    try:
        run()
    finally:
        vars(model).pop("generate", None)
    return bool(calls)
