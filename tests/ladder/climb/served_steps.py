"""What the workers of the tests of several GPUs serve: steps of a known time, on a GPU that a variable names."""

import os
import time
from pathlib import Path
from typing import Any

STEP = 30e6  # nanoseconds
GIB = 1 << 30


class Steps:
    """FACTOR: of this side; GPU, GPU_FACTOR: where it runs and how much slower that is; BLOCKS: a file that gets a line for each block, with
    its beginning and end; FAILS: a GPU and a method, at which its workers die, or hang; OTHERS: GPUs of which others take memory once it is timed; THERE: bytes that they
    have before."""

    def open(self, target: str, **_: Any) -> dict[str, Any]:
        self.gpu = os.environ.get("GPU", "0")
        self.ns = STEP * float(os.environ.get("FACTOR", "1")) * float(os.environ.get("GPU_FACTOR", "1"))
        self.timed = False
        with Path(f"{os.environ['BLOCKS']}-{self.gpu}").open("a") as file:
            file.write("x")
        self._die_if_told("open")
        device = {"kind": "cuda", "name": "a chip", "memory": 1 << 34}
        return {
            "name": target,
            "mode": "infer",
            "samples": None,
            "tokens": None,
            "steps": 1,
            "environment": {"device": device},
        }

    def warm(self, seconds: float) -> dict[str, Any]:
        self._die_if_told("warm")
        return {"first_run_seconds": 1.0, "runs": 3, "steady": True, "memory": {"allocated": GIB}}

    def estimate(self) -> float:
        return self.ns

    def block(self, count: int) -> dict[str, Any]:
        self._die_if_told("block")
        if os.environ.get("FAILS") == f"{self.gpu} hang":
            time.sleep(600)
        began = time.monotonic()
        time.sleep(0.005)
        self.timed = True
        with Path(os.environ["BLOCKS"]).open("a") as file:
            file.write(f"{self.gpu} {os.getpid()} {began} {time.monotonic()}\n")
        return {"samples": [self.ns] * count, "outside": 0.0, "calls": count}

    def memory(self) -> dict[str, int]:
        return {"allocated": 1 << 20}

    def occupied(self) -> dict[str, int]:
        """Each worker that was ever there has its allocator's memory, and as much beside it."""
        came = GIB if self.timed and self.gpu in os.environ.get("OTHERS", "").split() else 0
        ours = len(Path(f"{os.environ['BLOCKS']}-{self.gpu}").read_text())
        there = int(os.environ.get("THERE", "0"))
        return {"used": 2 * ours * GIB + came + there, "held": GIB}

    def until(self, path: str) -> str:
        while not Path(path).exists():
            time.sleep(0.005)
        return path

    def _die_if_told(self, method: str) -> None:
        if os.environ.get("FAILS") == f"{self.gpu} {method}":
            os.kill(os.getpid(), 9)
