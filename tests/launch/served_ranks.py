"""What the tests of several ranks serve: one object in each of them."""

import os
import subprocess
import sys
import threading
import time

from rung.hardware.ranks import Ranks


class Member:
    rank = property(lambda self: Ranks.here.rank)

    def who(self) -> list[object]:
        return [
            Ranks.here.rank,
            Ranks.here.world,
            Ranks.here.local,
            os.environ["RANK"],
            bool(os.environ["MASTER_PORT"]),
        ]

    def fail(self, at: list[int], others: str = "") -> int:
        if self.rank in at:
            raise ValueError("no good")
        if others:
            raise RuntimeError(others)
        return self.rank

    def die(self, at: int) -> int:
        if self.rank == at:
            print("the last words")
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
        raise RuntimeError("Connection closed by peer")

    def abort(self, at: int) -> int:
        """One is killed, and the one before it aborts for that, as NCCL's watchdog does."""
        if self.rank == at:
            os.kill(os.getpid(), 9)
        time.sleep(0.5)
        os.abort()

    def fail_and_abort(self, raises: int, aborts: int, message: str) -> None:
        """One raises, and a moment later one is aborted, as torch's watchdog does after an error of the device."""
        if self.rank == aborts:
            threading.Timer(0.5, os.abort).start()
        if self.rank == raises:
            raise RuntimeError(message)
        time.sleep(600)

    def variable(self, name: str) -> str:
        return os.environ[name]

    def leave(self, at: int) -> int:
        if self.rank == at:
            print("goodbye", flush=True)
            os._exit(3)
        time.sleep(600)
        return 0

    def sleep(self, at: int) -> int:
        if self.rank == at:
            time.sleep(600)
        return self.rank

    def pids(self) -> list[int]:
        return [os.getpid(), os.getppid(), subprocess.Popen(["sleep", "600"]).pid]

    def scream(self) -> None:
        print(f"rank {self.rank} was here", flush=True)
