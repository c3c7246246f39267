"""Models by their names: `hf:Qwen/Qwen3-0.6B`, `timm:resnet50`; and the workload file that such a name stands for."""

from __future__ import annotations

import importlib
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rung.errors import UsageError, first_line
from rung.workload.base import Workload

# By what a target begins with: the module that makes its workloads, and the name of an example.
FAMILIES = {
    "hf:": ("rung.workload.hf_model", "Qwen/Qwen3-0.6B"),
    "timm:": ("rung.workload.timm_model", "resnet50"),
    "diffusers:": ("rung.workload.diffusers_model", "stabilityai/stable-diffusion-3-medium-diffusers"),
}
ABOVE = "from rung.workload.base import Workload"  # in a module of ours; a user's file takes it from the package


def family(target: str) -> str:
    """What the target begins with, where it is a model by name; else empty."""
    return next((prefix for prefix in FAMILIES if target.startswith(prefix)), "")


def factory(target: str) -> Callable[..., Workload]:
    """Makes the workload of a model by name; it takes the family's options. Raises UsageError where the name, or one of them, is wrong."""
    prefix = family(target)
    module, example = FAMILIES[prefix]
    name = target.removeprefix(prefix)
    if not name:
        raise UsageError(f"{target} names no model: give one, as in {prefix}{example}.")
    make = importlib.import_module(module).make
    named: partial[Workload] = partial(make, name)

    def made(**options: Any) -> Workload:
        try:
            return named(**options)
        except (ValueError, FileNotFoundError) as error:
            raise UsageError(f"{target}: {first_line(error).rstrip('.')}.") from error

    # Options are converted by what the family's function says of them.
    made.__annotations__ = typing.get_type_hints(make)
    made.__signature__ = inspect.signature(named)  # type: ignore[attr-defined]
    return made


def source(target: str, values: Mapping[str, Any]) -> str:
    """The file that a model by name stands for, which defines `workload()`. values: of the options that were given. Raises UsageError where
    the target is no model by name."""
    prefix = family(target)
    if not prefix:
        names = " and ".join(f"{prefix}{example}" for prefix, (_, example) in FAMILIES.items())
        raise UsageError(f"{target} is a workload of its own; a file is written for models by name, as {names}.")
    text = inspect.getsource(importlib.import_module(FAMILIES[prefix][0])).replace(ABOVE, "from rung import Workload")
    given = ", ".join(
        [_written(target.removeprefix(prefix)), *(f"{name}={_written(value)}" for name, value in values.items())]
    )
    return f"{text.rstrip()}\n\n\ndef workload() -> Workload:\n    return make({given})\n"


def _written(value: Any) -> str:
    """As source code, texts in the quotes that formatters take."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
