"""C++ names as their authors wrote them: ROCm's profilers often leave kernel names mangled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KEPT = 10_000  # names: a run has a few hundred kernels; reading one of their names takes a tenth of a millisecond


class Demangler:
    """Called with a name: the readable form of a mangled C++ name (`_Z…`); any other name as it is.

    unread: how many it was called with that are mangled and stay so, as no library can read them here (it needs
        Python 3.11) or they are damaged.
    """

    def __init__(self) -> None:
        self.unread = 0
        self._known: dict[str, str] = {}
        self._demangle: Callable[[str], str] | None = None

    def __call__(self, name: str) -> str:
        if not name.startswith("_Z"):
            return name
        if self._demangle is None:
            # Loaded when the first mangled name is met: most traces have none, and it costs 0.2 s.
            self._demangle = _load()
        readable = self._known.get(name)
        if readable is None:
            readable = self._demangle(name)
            self.unread += readable == name
            if len(self._known) < _KEPT:
                self._known[name] = readable
        return readable


def _load() -> Callable[[str], str]:
    try:
        import demangle
    except ImportError:
        return str
    # A name of a few kB can stand for gigabytes (its parts may repeat each other): the library stops there.
    limits: Any = demangle.Limits(max_depth=256, max_output=16384, max_input=16384)

    def read(name: str) -> str:
        try:
            return demangle.demangle(name, limits=limits) or name
        except (demangle.DemanglingError, ValueError, RecursionError):
            return name

    return read
