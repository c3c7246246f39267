"""From what a user types to a Workload: `tiny-transformer`, `path.py:name`, `package.module:name`, `kernelbench:path.py` or a model by its
name, as `hf:Qwen/Qwen3-0.6B` and `timm:resnet50`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import stat
import sys
import sysconfig
import types
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from rung.errors import UsageError, WorkloadError, first_line, how_to_install, where
from rung.workload import by_name
from rung.workload.base import Workload, is_model
from rung.workload.options import kind_of, value_of

MOST_LISTED = 8  # names of what a file has, where none is like the one that was asked for
KERNELBENCH = "kernelbench:"
BUILTIN = {"tiny-transformer": "rung.workload.tiny_transformer:make"}


def load(target: str, options: Mapping[str, str] | None = None) -> Workload:
    """The workload that `target` names, its factory called with `options` (texts, as typed)."""
    factory = find(target)
    if isinstance(factory, Workload):
        if options:
            raise UsageError(f"{target} is a ready Workload and takes no options; got --{next(iter(options))}.")
        return factory
    values = _arguments(target, factory, options or {})
    with _own_argv(target), _install_hints(target):
        workload = factory(**values)
    if is_model(workload):
        raise UsageError(
            f"{target} gives a model, and a climb needs inputs, too: write a function that returns rung.Workload(name=..., model=..., "
            "inputs=lambda seed: ...), and name that."
        )
    if not isinstance(workload, Workload):
        raise UsageError(
            f"{target} returned {type(workload).__name__}; a factory must return a rung.Workload. To time the function "
            "itself, add --call to `rung bench` or `rung compare` (call=True in Python)."
        )
    return workload


def call_of(target: str, options: Mapping[str, str]) -> Callable[[], object]:
    """The plain function that `target` names, ready to be called with `options` (texts, as typed)."""
    function = find(target)
    if isinstance(function, Workload):
        raise UsageError(f"{target} is a rung.Workload and no function to call; leave --call out.")
    values = _arguments(target, function, options)
    return partial(function, **values) if values else function


def _arguments(target: str, function: Callable[..., Any], options: Mapping[str, str]) -> dict[str, Any]:
    """The options' values, among which all are that the function cannot do without."""
    values = convert(target, function, options)
    needed = [n for n, p in inspect.signature(function).parameters.items() if _needed(p) and n not in values]
    if needed:
        raise UsageError(f"{target} needs --{needed[0].replace('_', '-')}: give every argument that has no default.")
    return values


def _needed(parameter: inspect.Parameter) -> bool:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variadic


def find(target: str) -> Workload | Callable[..., Any]:
    """The object behind a target: a Workload, a factory that makes one, or a function to be called."""
    if target.startswith(KERNELBENCH):
        return _kernelbench(target)
    if by_name.family(target):
        with _install_hints(target):
            return by_name.factory(target)
    where, name = _split(target)
    module = _module_of_file(Path(where)) if where.endswith(".py") else _module(where, target)
    try:
        made: Any = getattr(module, name)
    except AttributeError:
        names = [n for n, v in vars(module).items() if _is_target(v, module)]
        near = get_close_matches(name, names, 1)
        shown = f"{', '.join(names[:MOST_LISTED])}{' and others' if len(names) > MOST_LISTED else ''}"
        hint = f" Did you mean {near[0]!r}?" if near else f" It has: {shown}." if names else ""
        raise UsageError(f"{where} has no {name!r}.{hint}") from None
    if not isinstance(made, Workload) and not callable(made):
        raise UsageError(f"{target} is a {type(made).__name__}; it must be a rung.Workload or a function.")
    found: Workload | Callable[..., Any] = made
    return found


def check_target(target: str) -> None:
    """Raises UsageError where the text of a target or the lack of its file says that it is none. Nothing is imported, so the answer
    comes at once."""
    if not target.startswith(KERNELBENCH) and not by_name.family(target):
        _split(target)


def _split(target: str) -> tuple[str, str]:
    """A file that is there or a module, and a name in it."""
    where, _, name = BUILTIN.get(target, target).rpartition(":")
    if target.endswith(".py") and Path(target).is_file():
        raise UsageError(f"{target} is a file: name the function in it that makes the workload, as in {target}:make.")
    if not where or not name:
        near = get_close_matches(target, BUILTIN, 1)
        raise UsageError(
            f"unknown target {target!r}: did you mean {near[0]!r}?"
            if near
            else f"unknown target {target!r}: give a built-in workload ({', '.join(BUILTIN)}), path.py:name, module:name, kernelbench:path.py, hf:NAME, timm:NAME or diffusers:NAME."
        )
    if where.endswith(".py") and not Path(where).is_file():
        raise UsageError(f"there is no file {where}; give the path of a Python file, as in model.py:make.")
    return where, name


def _kernelbench(target: str) -> Workload:
    from rung.workload.kernelbench import problem_file, workload_of

    path = problem_file(target)
    return workload_of(_module_of_file(path), path)


def _is_target(made: Any, module: types.ModuleType) -> bool:
    """Whether it can be a target: a workload, or a function of this module's own."""
    own = inspect.isfunction(made) and made.__module__ == module.__name__ and not made.__name__.startswith("_")
    return isinstance(made, Workload) or own


def parameters(target: str) -> dict[str, inspect.Parameter]:
    """The options that a target takes, by name as in Python."""
    factory = find(target)
    return {} if isinstance(factory, Workload) else dict(inspect.signature(factory).parameters)


def convert(target: str, factory: Callable[..., Any], options: Mapping[str, str]) -> dict[str, Any]:
    """Texts to the types of the factory's annotations or defaults; unknown names are refused."""
    known = inspect.signature(factory).parameters
    hints = _hints(factory)
    values = {}
    for option, text in options.items():
        name = option.replace("-", "_")
        if name not in known:
            near = get_close_matches(name, known, 1)
            flags = ", ".join("--" + n.replace("_", "-") for n in near or known) or "none"
            hint = f"did you mean {flags}?" if near else f"it takes: {flags}."
            positive = name.removeprefix("no_")
            if positive != name and positive in known and hints.get(positive, kind_of(known[positive].default)) is bool:
                hint = f"write --{positive.replace('_', '-')} false."
            raise UsageError(f"{target} has no option --{option}; {hint}")
        values[name] = value_of(option, text, hints.get(name, kind_of(known[name].default)))
    return values


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """The factory's annotations, without those that only type checkers can read: they say nothing of the others."""
    try:
        return typing.get_type_hints(factory)
    except Exception:  # an annotation is an expression, and may raise what it likes
        names = getattr(inspect.unwrap(factory), "__globals__", {})
    hints: dict[str, Any] = {}
    known = inspect.signature(factory).parameters.values()
    for one in (p for p in known if p.annotation is not inspect.Parameter.empty):
        with suppress(Exception):
            hints |= typing.get_type_hints(types.SimpleNamespace(__annotations__={one.name: one.annotation}), names)
    return hints


def _module_of_file(path: Path) -> types.ModuleType:
    path = path.resolve()
    # Of one name in all processes, because pickles name the modules of classes.
    name = f"rung_target_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dynamo and pickling look modules up by name; a user's file may import its neighbours.
    sys.modules[name] = module
    add_import_folders(path.parent, *_current_folder_above(path))
    try:
        with _own_argv(str(path)), _install_hints(str(path)):
            spec.loader.exec_module(module)
    except RungErrors:
        sys.modules.pop(name, None)
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        why = f"{type(error).__name__}: {first_line(error)}{where(error)}"
        raise WorkloadError(f"{path} could not be imported: {why}") from error
    return module


def add_import_folders(*folders: Path) -> None:
    """Adds folders in which imports look for modules: after the standard library, which none of their files may replace, and before
    all others, as for a script that Python runs."""
    library = {os.path.realpath(sysconfig.get_path("stdlib"))}
    library |= {os.path.join(folder, "lib-dynload") for folder in library}
    first = [entry for entry in sys.path if os.path.realpath(entry) in library]
    added = [str(folder) for folder in folders]
    sys.path[:] = [*first, *added, *(entry for entry in sys.path if entry not in (*first, *added))]


def _current_folder_above(path: Path) -> list[Path]:
    """The current folder, where the file lies below it: a model may import packages from the root of its repository, in which the
    command is run. Not one in which everyone may put files, such as /tmp."""
    with suppress(OSError):  # it may be gone
        here = Path.cwd()
        if here in path.parents and not here.stat().st_mode & stat.S_IWOTH:
            return [here]
    return []


@contextmanager
def _own_argv(name: str) -> Iterator[None]:
    """Hides Rung's command line: a target that reads sys.argv finds its own name there, and none of our options, which it would refuse."""
    before = sys.argv
    sys.argv = [name]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _install_hints(target: str) -> Iterator[None]:
    """Turns ModuleNotFoundError into a WorkloadError that says how to install the module."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not error.name:
            raise
        raise WorkloadError(f"{target} cannot be used{where(error)}: {how_to_install(error.name)}") from error


def _module(name: str, target: str) -> types.ModuleType:
    package = name.partition(".")[0]
    with suppress(OSError):  # the current folder may be gone
        if package not in sys.modules and PathFinder.find_spec(package, [os.getcwd()]):
            add_import_folders(Path.cwd())
    with _own_argv(name), _install_hints(target):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and name.startswith(error.name):
                raise UsageError(
                    f"unknown target {target!r}: there is no module {name!r} (a file is given as path.py:name)."
                ) from None
            raise


RungErrors = (UsageError, WorkloadError)
