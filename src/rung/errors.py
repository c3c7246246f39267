"""The errors that a user may see: one sentence that says what, where and what to do next.

Each class carries the exit code of the command line: 2 the command was used wrongly, 3 the input could
not be read, 4 the workload failed. Code 1 is no error but an answer ("slower", "not equal").
"""


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


class WorkloadError(RungError):
    """The user's workload raised, hung, ran out of memory or cannot be verified."""

    exit_code = 4


def first_line(error: BaseException, most: int = 300) -> str:
    """The first line of what an exception says, and the next where that only leads to it, cut at a word where it is longer: torch
    explains itself over pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    end = next((k for k, line in enumerate(lines) if not line.endswith(":")), len(lines))
    text = " ".join(lines[: end + 1])
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0] or text[:most]} ..."
