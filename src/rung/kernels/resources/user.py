"""A user's own kernel: a `@triton.jit` function of a Python file, with the arguments of a call."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rung.errors import InputError, UsageError
from rung.kernels.resources.compile import compile_for, need_triton
from rung.records.kernels import Resources


def load(path: Path, name: str) -> Any:
    """Imports the file and returns the module it is. Raises InputError."""
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Triton looks a kernel's globals up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} could not be imported: {type(error).__name__}: {error}") from error
    return module


def inspect(target: str, arches: Sequence[str], given: Mapping[str, Any], call: str | None) -> list[Resources]:
    """The kernel FILE:NAME for each architecture, for each configuration where it is autotuned.

    given: values of arguments, as `compile_for` takes them, before those of `call`: a function of the same file that
    returns them as a dict (default: NAME_example, where there is one).
    """
    need_triton()
    file, _, name = target.rpartition(":")
    module = load(Path(file), "rung_inspected")
    kernel: Any = getattr(module, name, None)
    configs: list[dict[str, Any]] = [{}]
    while kernel is not None and not hasattr(kernel, "params") and hasattr(kernel, "fn"):
        # Around it: autotune has configurations, heuristics compute arguments out of others (which a call must give).
        configs = [c.all_kwargs() for c in kernel.configs] if hasattr(kernel, "configs") else configs
        kernel = kernel.fn
    if not hasattr(kernel, "params"):
        jitted = [
            k for k, v in vars(module).items() if hasattr(v, "params") or hasattr(getattr(v, "fn", None), "params")
        ]
        raise UsageError(f"{file} has no @triton.jit function {name!r}; it has {', '.join(jitted) or 'none at all'}.")
    example = getattr(module, call or f"{name}_example", None)
    if call and not callable(example):
        raise UsageError(f"{file} has no function {call!r} for --call.")
    try:
        values = dict(example()) if callable(example) else {}
    except Exception as error:
        raise UsageError(f"{call or f'{name}_example'}() of {file} failed: {type(error).__name__}: {error}") from error
    if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
        raise UsageError(f"{call or f'{name}_example'}() of {file} must return a dict: argument names and values.")
    values |= given
    return [
        compile_for(arch, name, kernel, {**_fitting(config, kernel), **values}, source=file)
        for arch in arches
        for config in configs
    ]


def _fitting(config: Mapping[str, Any], kernel: Any) -> dict[str, Any]:
    """A configuration without what is AMD's own and no argument, and without what it leaves open."""
    return {k: v for k, v in config.items() if v is not None and k != "ir_override"}


def value(text: str) -> Any:
    """What is written after `=` in an option: a type, a number, true or false, or a string."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "None" else text
