"""Files that a user names: read only where they are files, and no larger than such files are. Below all rooms."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LARGEST_TEXT = 1 << 28  # bytes: of a table, a document or a list


def check_regular(path: str | Path) -> os.stat_result:
    """What the system says of a file. Raises OSError for a pipe, a device or a socket: it may never end, or never begin."""
    facts = os.stat(path)
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
        raise OSError(errno.EINVAL, "it is a pipe, a device or a socket, and no file", str(path))
    return facts


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The text of a file, of /dev/null none. Raises OSError where it is no file, or too large for any that we read whole."""
    if str(path) == os.devnull:
        return ""
    if check_regular(path).st_size > LARGEST_TEXT:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST_TEXT >> 20} MiB", str(path))
    return path.read_text(encoding=encoding, errors=errors)
