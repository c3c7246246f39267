"""What the workers of the task tests serve: methods that answer, wait for a file, raise, die and hang."""

import os
import time
from pathlib import Path
from typing import Any


class Told:
    def preload(self, target: str) -> None:
        self.target = target

    def load_ahead(self, target: str) -> None:
        self.loaded = target

    def open(self, target: str, briefly: bool = False) -> dict[str, Any]:
        too_late = ["TORCHINDUCTOR_X"] if target == "late" else []
        return {
            "pid": os.getpid(),
            "target": target,
            "was spare": hasattr(self, "target"),
            "was loaded": hasattr(self, "loaded"),
            "briefly": briefly,
            "too_late": too_late,
        }

    def add(self, a: int, b: int) -> int:
        return a + b

    def until(self, path: str) -> str:
        while not Path(path).exists():
            time.sleep(0.01)
        return path

    def fail(self) -> None:
        raise ValueError("no good")

    def die(self) -> None:
        os.kill(os.getpid(), 9)

    def hang(self) -> None:
        time.sleep(600)
