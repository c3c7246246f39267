"""A worker process: serves the methods of one object over two pipes until its coordinator is gone.

    python start.py rung.launch.worker REQUEST_FD REPLY_FD LIFELINE_FD package.module:Class

One JSON document a line in each direction. What the workload prints goes to the worker's own log, never into
the protocol. The lifeline is a pipe that nobody writes to: its end closes when the coordinator dies, however
it dies, and then the worker ends its whole process group, compilers included.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from rung.errors import RungError, first_line, where

PR_SET_PDEATHSIG = 1
NEVER = 1 << 30  # objects until garbage is looked for


def main(arguments: list[str]) -> None:
    request_fd, reply_fd, lifeline_fd = map(int, arguments[:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    _guarded(lifeline_fd, (request_fd, reply_fd))
    module, _, name = arguments[3].partition(":")
    # Until the first call is answered: what loading makes stays, and looking for garbage in it takes a sixth of the time. By the
    # threshold, because a workload that turns the collector off, or sets a threshold, is to be timed as it wants to be run.
    usual = gc.get_threshold()
    gc.set_threshold(NEVER, *usual[1:])
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
            if gc.get_threshold()[0] == NEVER:
                gc.set_threshold(*usual)
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain text: its type, its message (of what is not ours its first line) and where it came from."""
    text = first_line(error)
    kind = "out of memory" if "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError) else "raised"
    if isinstance(error, RungError):
        kind, text = "refused", str(error)[:2000]
    return {
        "kind": kind,
        "type": type(error).__name__,
        "message": text,
        "where": where(error),
        "exit_code": error.exit_code if isinstance(error, RungError) else None,
        "traceback": "".join(traceback.format_exception(error))[-8000:],
    }


def _guarded(lifeline_fd: int, protocol_fds: tuple[int, int]) -> None:
    """Goes on in a forked child; the parent stays behind as its guard.

    The guard runs nothing but this function, so that native code that hangs in the workload cannot keep it from
    ending the group when the lifeline closes. It ends the way its child ends, for the coordinator to see.
    """
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(lifeline_fd)
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:  # the guard died before the line above
                os._exit(1)
        return
    for fd in protocol_fds:
        os.close(fd)  # the coordinator must see the pipes close when the child is gone

    def watch() -> None:
        os.read(lifeline_fd, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(guard, number)
    os._exit(os.waitstatus_to_exitcode(status))
