"""A second target in one process, with modules of its own.

Two versions of a model often use the same names: `old/model.py` and `new/model.py` each import the `net.py` beside them, or one file is
compared at two git revisions. Python keeps one module a name. So the second version would run the first one's code, and would be found
equal to it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from rung.workload.base import Workload
from rung.workload.load import KERNELBENCH

T = TypeVar("T")
SHARED = {"rung", "torch"}  # one of each in a process


class OwnModules:
    """The modules that lie in the folders of one target, and not in those of the target that was loaded before.

    Args:
        target, before: as typed. Each has its file's folder, and the folder in which it is run.
        folder: in which `target` is run; the current one unless it is given.
        roots, roots_before: folders in which either finds packages, too: those of a checkout.
    """

    def __init__(
        self, target: str, before: str, folder: str = "", roots: Sequence[str] = (), roots_before: Sequence[str] = ()
    ) -> None:
        self._folder = folder or os.getcwd()
        mine = _folders(target, self._folder) + [_real(root) for root in roots]
        theirs = _folders(before, os.getcwd()) + [_real(root) for root in roots_before]
        alone = [one for one in mine if one not in theirs], [one for one in theirs if one not in mine]
        self._names = _modules_in(alone[0]) | _modules_in(alone[1])
        wanted = {_real(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one}
        self._path = [*roots, *(one for one in sys.path if _real(one) not in alone[1] or _real(one) in wanted)]
        self._modules: dict[str, ModuleType] = {}
        self._active = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Imports give this target's modules, those in the middle of a call among them."""
        if self._active:
            yield
            return
        theirs, path, folder = self._taken(), sys.path[:], os.getcwd()
        sys.modules.update(self._modules)
        sys.path[:], self._active = self._path, True
        os.chdir(self._folder)
        try:
            yield
        finally:
            os.chdir(folder)
            self._modules, self._path, self._active = self._taken(), sys.path[:], False
            sys.path[:] = path
            sys.modules.update(theirs)

    def within(self, workload: Workload) -> Workload:
        """The workload, of which each function runs with this target's modules."""
        made = replace(workload, model=self._with(workload.model), inputs=self._with(workload.inputs),
                       forward=self._with(workload.forward), other_shapes=tuple(map(self._with, workload.other_shapes)))  # fmt: skip
        if workload.loss:
            made = replace(made, loss=self._with(workload.loss))
        return replace(made, optimizer=self._with(workload.optimizer)) if workload.optimizer else made

    def _with(self, function: Callable[..., T]) -> Callable[..., T]:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> T:
            with self.active():
                return function(*arguments, **named)

        return call

    def _taken(self) -> dict[str, ModuleType]:
        """The modules of these names, which are no longer loaded then."""
        names = [name for name in sys.modules if name.partition(".")[0] in self._names]
        return {name: sys.modules.pop(name) for name in names}


class InTurn:
    """Functions of several targets that are called in blocks, each with the modules of its own target. A target's modules stay active until a
    function of another target is called. An exchange takes 300 µs, and the check before each call 0.1 µs. Functions of one folder have no check.

    Args:
        targets: as typed. Those whose files lie in one folder share their modules.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self._here = os.getcwd()
        self._modules = {self._folders(target): OwnModules(target, targets[0]) for target in targets}
        self._active: OwnModules | None = None
        self._exit = ExitStack()

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def load(self, target: str, load: Callable[[str], Callable[..., T]]) -> Callable[..., T]:
        """The function that `load` gives of this target, which runs with the target's modules."""
        modules = self._modules[self._folders(target)]
        self._activate(modules)
        function = load(target)
        if len(self._modules) == 1:
            return function

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> T:
            if self._active is not modules:
                self._activate(modules)
            return function(*arguments, **named)

        return call

    def load_inputs(self, target: str, load: Callable[[str], Callable[..., T]]) -> Callable[..., T]:
        """The function that makes inputs for all of them. It runs with the modules of the targets in whose folder its file lies, if it does. What was
        active is active again after it: a call that is timed behind it exchanges nothing."""
        if self._folders(target) not in self._modules:
            return load(target)
        function = self.load(target, load)

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> T:
            before = self._active
            try:
                return function(*arguments, **named)
            finally:
                if before:
                    self._activate(before)

        return call

    def _folders(self, target: str) -> tuple[str, ...]:
        return tuple(_folders(target, self._here))

    def _activate(self, modules: OwnModules) -> None:
        if self._active is not modules:
            self._exit.close()
            self._exit.enter_context(modules.active())
            self._active = modules


def _folders(target: str, folder: str) -> list[str]:
    """Where a target that is run in `folder` finds modules of its own."""
    file = target.removeprefix(KERNELBENCH) if target.startswith(KERNELBENCH) else target.rpartition(":")[0]
    own = [_real(os.path.join(folder, os.path.dirname(file)))] if file.endswith(".py") else []
    return [*own, _real(folder)]


def _modules_in(folders: Sequence[str]) -> set[str]:
    """The names for which an import gives something in these folders."""
    library = sysconfig.get_path("stdlib")
    path = [library, os.path.join(library, "lib-dynload"), *folders, *sys.path]
    names = {
        one.name.partition(".")[0] for folder in folders if os.path.isdir(folder) for one in Path(folder).iterdir()
    }
    return {name for name in names - SHARED if name.isidentifier() and _place(name, path) in folders}


def _place(name: str, path: Sequence[str]) -> str:
    """The folder in which a module or package is found."""
    spec = PathFinder.find_spec(name, path)
    files = (spec and [*(spec.submodule_search_locations or ()), spec.origin]) or [None]
    return os.path.dirname(_real(files[0])) if files[0] else ""


def _real(path: str) -> str:
    return os.path.realpath(path)
