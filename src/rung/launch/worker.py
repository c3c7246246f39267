"""A worker process: serves the methods of one object over two pipes until its coordinator is gone.

    python start.py rung.launch.worker REQUEST_FD REPLY_FD LIFELINE_FD package.module:Class

One JSON document a line in each direction. What the workload prints goes to the worker's own log, never into
the protocol. The lifeline is a pipe that nobody writes to: its end closes when the coordinator dies, however
it dies, and then the worker ends with all that it started, compilers included.
"""

from __future__ import annotations

import contextlib
import gc
import glob
import importlib
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Collection
from typing import Any, TextIO

from rung.errors import RungError, first_line, lacks_memory, where
from rung.launch.descriptors import readable
from rung.prctl import adopt_orphans, end_with_parent

WAKING = (signal.SIGCHLD, signal.SIGTERM)  # what a guard waits for, beside the lifeline
NEVER = 1 << 30  # objects until garbage is looked for


def main(arguments: list[str]) -> None:
    request_fd, reply_fd, lifeline_fd = map(int, arguments[:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    guarded(lifeline_fd, (request_fd, reply_fd))
    serve(os.fdopen(request_fd, "r"), os.fdopen(reply_fd, "w"), arguments[3])


def serve(requests: TextIO, replies: TextIO, serves: str) -> None:
    """Answers calls, one after the other, until there are no more. serves: `package.module:Class`, made at the first of them."""
    module, _, name = serves.partition(":")
    # Until the first call is answered: what loading makes stays, and looking for garbage in it takes a sixth of the time. By the
    # threshold, because a workload that turns the collector off, or sets a threshold, is to be timed as it wants to be run.
    usual = gc.get_threshold()
    gc.set_threshold(NEVER, *usual[1:])
    with requests, replies:
        served: Any = None
        for line in requests:
            request = json.loads(line)
            began = time.monotonic(), time.process_time()
            try:
                if served is None:
                    served = getattr(importlib.import_module(module), name)()
                reply = {"value": getattr(served, request["method"])(**request["arguments"])}
            except BaseException as error:  # even SystemExit of a workload is an answer, not our end
                reply = {"error": describe(error)}
            reply |= {"seconds": time.monotonic() - began[0], "cpu_seconds": time.process_time() - began[1]}
            if gc.get_threshold()[0] == NEVER:
                gc.set_threshold(*usual)
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain text: its type, its message (of what is not ours its first line) and where it came from."""
    text = first_line(error)
    kind = "out of memory" if lacks_memory(error) else "raised"
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


def guarded(
    lifeline_fd: int, protocol_fds: Collection[int], tell: Callable[[int | None], None] = lambda _: None
) -> None:
    """Goes on in a forked child; the parent stays behind as its guard.

    The guard waits until the child ends, the lifeline closes or says something, or a SIGTERM asks it to end, and then ends every process
    that is left below it: stopped ones, and on Linux those that left the group by `setsid`, too. It runs nothing of the workload, so that
    native code that hangs cannot keep it from that. It ends the way its child ends, for the coordinator to see.

    tell: is called in the guard, afterwards, with the status of the child (`os.waitpid`), None where the guard was to end it.
    """
    guard = os.getpid()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in WAKING:
        signal.signal(number, lambda *_: None)
    adopt_orphans()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        for number in WAKING:
            signal.signal(number, signal.SIG_DFL)
        for fd in (lifeline_fd, woken, wake):
            os.close(fd)
        end_with_parent(guard)
        return
    for fd in protocol_fds:
        os.close(fd)  # the coordinator must see the pipes close when the child is gone
    status = _status(child, lifeline_fd, woken)
    _end_all_below()
    tell(status)
    if status is None:  # asked to end; elsewhere than on Linux the group is still there
        os.killpg(os.getpgrp(), signal.SIGKILL)
    elif os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(guard, ended_by)
    else:
        os._exit(os.waitstatus_to_exitcode(status))


def _status(child: int, lifeline_fd: int, woken_fd: int) -> int | None:
    """How the child ended, as `os.waitpid` says it; None where it is to be ended."""
    while True:
        ready = readable([lifeline_fd, woken_fd])
        if lifeline_fd in ready or signal.SIGTERM in os.read(woken_fd, 4096):
            return None
        status = _collected().get(child)
        if status is not None:
            return status


def _collected() -> dict[int, int]:
    """The status of every process of ours that has ended and was not asked for, by its id."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            ended[one[0]] = one[1]
    return ended


def _end_all_below() -> None:
    """Ends what this process started and what that started, until there is none. On Linux what is orphaned meanwhile becomes a
    child of this process, too."""
    with contextlib.suppress(ChildProcessError):
        while {pid for pid in _below(os.getpid()) if _killed(pid)}:
            os.waitpid(-1, 0)
            _collected()


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _below(top: int) -> set[int]:
    """The processes below one, by /proc; none where there is no such folder."""
    parents = {}
    for stat in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(stat, "rb") as file:
            # The name, in parentheses, may hold anything.
            parents[int(stat.split("/")[2])] = int(file.read().rpartition(b")")[2].split()[1])
    found = {top}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {top}
