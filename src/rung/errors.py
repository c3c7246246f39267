"""The errors that a user may see: one sentence that says what, where and what to do next.

Each class carries the exit code of the command line. Code 1 is no error but an answer ("slower", "not equal").
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.metadata
import importlib.util
import os
import re
import traceback
import types
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk, or somebody's share of it
EXIT_CODES = {
    0: "done",
    1: "the answer is no: not equal, slower than allowed, or registers spilled",
    2: "wrong usage: a command, an option or a target",
    3: "a file or folder could not be read or written",
    4: "the workload failed",
    70: "a bug in Rung",
    130: "stopped by Ctrl-C or a kill",
}


class RungError(Exception):
    """Anything that ends a command with a sentence instead of a traceback."""

    exit_code = 4
    told = False  # whether its command has printed a document that holds it
    logs = ""  # the folder that has what its processes wrote


class UsageError(RungError):
    """The command, an option or a target was wrong."""

    exit_code = 2


class InputError(RungError):
    """A file or directory could not be read as what it should be."""

    exit_code = 3


def not_written(path: str | Path, error: OSError, otherwise: str) -> InputError:
    """otherwise: what to do, beside making room where that is what is missing."""
    room = "free some space or " if error.errno in FULL else ""
    return InputError(f"{path} could not be written: {error.strerror or error}; {room}{otherwise}.")


class WorkloadError(RungError):
    """The user's workload raised, hung, ran out of memory or cannot be verified."""

    exit_code = 4


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception is torch's, or Python's, for want of memory. torch is not loaded to know its class."""
    return "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError)


OLDEST_TORCH = (2, 6)  # as pyproject.toml's extra `torch`, README.md and docs/architecture.md say
_GET_TORCH = (
    "`pip install {option}torch` gets the build for CUDA, `pip install {option}torch "
    "--index-url https://download.pytorch.org/whl/cpu` the one for CPUs, and for ROCm "
    "https://pytorch.org/get-started/locally shows the command."
)
NO_TORCH = f"this needs PyTorch, which is not installed: {_GET_TORCH.format(option='')}"


# Modules that come with a package of another name.
PACKAGES = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def how_to_install(module: str) -> str:
    """What to do where an import found no such module, as the end of a sentence."""
    package = module.partition(".")[0]
    if package == "torch" and importlib.util.find_spec("torch") is None:
        return NO_TORCH
    if package != module and importlib.util.find_spec(package) is not None:
        return f"the {package} that is installed has no module {module!r}: another version of it may."
    return (
        f"there is no module {module!r}: `pip install {PACKAGES.get(package, package)}`, or put the folder that has it on "
        "PYTHONPATH."
    )


def need_torch() -> None:
    """One sentence instead of an import error, where torch is missing or too old. Raises UsageError. Does not load torch."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(NO_TORCH)
    version = _torch_version()
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and tuple(map(int, numbers.groups())) < OLDEST_TORCH:
        wanted = ".".join(map(str, OLDEST_TORCH))
        raise UsageError(
            f"this needs PyTorch {wanted} or newer, and {version} is installed: {_GET_TORCH.format(option='--upgrade ')}"
        )


def _torch_version() -> str:
    """Of the torch that is installed; "" where its package does not say."""
    try:
        return importlib.metadata.version("torch") or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def first_line(error: BaseException, most: int = 300) -> str:
    """The first line of what an exception says, and the next where that only leads to it, with the operation that torch names, cut at a
    word where it is longer: torch explains itself over pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    end = next((k for k, line in enumerate(lines) if not line.endswith(":")), len(lines))
    text = " ".join(lines[: end + 1])
    # Inductor names the operation of torch last.
    named = next(
        (f" ({line[0].lower()}{line[1:]})" for line in lines[end + 1 :] if line.startswith("Error in op:")), ""
    )
    most -= len(named)
    return (text if len(text) <= most else f"{text[:most].rpartition(' ')[0] or text[:most]} ...") + named


def where(error: BaseException) -> str:
    """Such as " (model.py:12, in make)": the innermost line in a file of the user's own that an exception passed; empty where it
    passed none."""
    line = _users_line(traceback.extract_tb(error.__traceback__))
    return line and f" ({line})"


def line_of(frame: types.FrameType) -> str:
    """Such as "train.py:12, in main": the innermost line in a file of the user's own where a thread stands; empty where there is none."""
    return _users_line(traceback.extract_stack(frame))


def _users_line(stack: traceback.StackSummary) -> str:
    for frame in reversed(stack):
        if _users(frame.filename):
            name = from_here(frame.filename)
            return f"{name}:{frame.lineno}{'' if frame.name == '<module>' else f', in {frame.name}'}"
    return ""


def from_here(path: str) -> str:
    """The path from the working folder, where it is below it."""
    with contextlib.suppress(OSError):  # the working folder may be gone
        here = os.path.relpath(path)
        return path if here.startswith(os.pardir) else here
    return path


def _users(file: str) -> bool:
    """Whether it is not Rung's, Python's, a package's, or what Inductor wrote."""
    packages = (f"{os.sep}{name}" for name in ("site-packages", "dist-packages", "torchinductor_"))
    return not file.startswith(_others()) and not any(p in file for p in packages) and os.path.isfile(file)


@functools.cache
def _others() -> tuple[str, ...]:
    import sysconfig

    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [os.path.dirname(__file__), *installed, os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")]
    return tuple(folder + os.sep for folder in folders if folder)
