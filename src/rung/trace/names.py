"""C++ names as their authors wrote them: ROCm's profilers often leave kernel names mangled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_demangler: Callable[[str], str] | None = None


def demangled(name: str) -> str:
    """The readable form of a mangled C++ name (`_Z…`); any other name, and one that cannot be read, as it is."""
    global _demangler
    if not name.startswith("_Z"):
        return name
    if _demangler is None:
        _demangler = _load()
    return _demangler(name)


def can_demangle() -> bool:
    """Whether the library is there: it needs Python 3.11."""
    try:
        import demangle  # noqa: F401
    except ImportError:
        return False
    return True


def _load() -> Callable[[str], str]:
    # Loaded when the first mangled name is met: most traces have none, and the import costs 0.2 s.
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
