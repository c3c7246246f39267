"""Models that have switches of their own: Hugging Face's attention implementation and the cache of `generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from rung.engine.places import Places
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
        self._model, self._wanted = model, wanted
        for name, value in wanted:
            if name not in switches(model):
                raise WorkloadError(
                    f"{type(model).__name__} has no switch of its own for its {name}: leave that rung out."
                )
            SWITCHES[name].put(model, value, self)

    def undo(self) -> None:
        for name, _ in self._wanted:
            SWITCHES[name].take(self._model, self)


def _set_attention(model: Any, value: str) -> None:
    model.set_attn_implementation(value)


def _cache(model: Any) -> str | None:
    return model.generation_config.cache_implementation  # type: ignore[no-any-return]


def _set_cache(model: Any, value: str | None) -> None:
    model.generation_config.cache_implementation = value


SWITCHES = {
    "attention": Places("attention", lambda model: switches(model)["attention"], _set_attention),
    "cache": Places("cache", _cache, _set_cache),
}


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
