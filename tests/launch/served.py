"""What the worker tests serve."""

import os
import subprocess
import sys
import time


class Served:
    def echo(self, value: object) -> object:
        print("noise on stdout")
        return value

    def fail(self) -> None:
        raise ValueError("no good")

    def leave(self) -> None:
        sys.exit(3)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def die(self) -> None:
        os.kill(os.getpid(), 9)

    def child(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid
