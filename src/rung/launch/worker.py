"""A worker process: serves the methods of one object over two pipes until its coordinator is gone.

    python -m rung.launch.worker REQUEST_FD REPLY_FD LIFELINE_FD package.module:Class

One JSON document a line in each direction. What the workload prints goes to the worker's own log, never into
the protocol. The lifeline is a pipe that nobody writes to: its end closes when the coordinator dies, however
it dies, and then the worker ends its whole process group, compilers included.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from rung.errors import RungError

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    request_fd, reply_fd, lifeline_fd = map(int, arguments[:3])
    _die_with_the_coordinator(lifeline_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    module, _, name = arguments[3].partition(":")
    with os.fdopen(request_fd, "r") as requests, os.fdopen(reply_fd, "w") as replies:
        served: Any = None
        for line in requests:
            request = json.loads(line)
            try:
                if served is None:
                    served = getattr(importlib.import_module(module), name)()
                reply = {"value": getattr(served, request["method"])(**request["arguments"])}
            except BaseException as error:  # even SystemExit of a workload is an answer, not our end
                reply = {"error": describe(error)}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def describe(error: BaseException) -> dict[str, str]:
    """An exception as plain text: its type, its message and where it came from."""
    text = str(error)
    kind = "out of memory" if "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError) else "raised"
    if isinstance(error, RungError):
        kind = "refused"
    return {
        "kind": kind,
        "type": type(error).__name__,
        "message": text[:2000],
        "traceback": "".join(traceback.format_exception(error))[-8000:],
    }


def _die_with_the_coordinator(lifeline_fd: int) -> None:
    if sys.platform == "linux":
        # For the moments in which native code holds the interpreter and the thread below cannot run.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        os.read(lifeline_fd, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
