"""Functions for a fresh process to import and time. No torch is needed."""

import time


def short() -> int:
    return sum(range(100))


def long(seconds: float = 0.004) -> None:
    time.sleep(seconds)


def longer() -> None:
    time.sleep(0.04)


def needs(x: int) -> int:
    return x
