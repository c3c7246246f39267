"""Functions that misbehave, and need no torch for it."""

import os
import time

calls = 0


def fails(after: int = 200) -> None:
    global calls
    calls += 1
    time.sleep(0.001)
    if calls > after:
        raise ValueError("no more today")


def dies(after: int = 200) -> None:
    global calls
    calls += 1
    time.sleep(0.001)
    if calls > after:
        os.kill(os.getpid(), 9)


def hangs() -> None:
    time.sleep(3600)


def memory() -> None:
    raise MemoryError("no room")


def fits(n: int = 1) -> None:
    time.sleep(0.002)
    if n > 8:
        raise MemoryError(f"no room for {n}")


def forks_and_prints() -> None:
    print("this is no JSON")
    if os.fork() == 0:
        os._exit(0)
    os.wait()
