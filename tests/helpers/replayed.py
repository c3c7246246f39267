"""A worker that needs no torch: what a real one said of `micro.py`, said again at once.

Whole climbs then take seconds, with real processes, pipes, deadlines and kills, and with given times: what is asked of
them is what the coordinator does, whatever the machine does.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rung.hardware.ranks import Ranks

PARALLEL = "RUNG_TEST_PARALLEL"
RECORDED = "RUNG_TEST_RECORDED"  # the folder that `record` wrote
STEP = {"": 20e6, "fused-optimizer": 1e6}  # nanoseconds of a step, by the rungs that have effect
REPLAYED = "replayed:Replayed"
# What a process runs before it starts workers: they are these, and what forks them imports them, and no torch.
SAID_AGAIN = f"from rung.timing import workers; workers.WORKLOAD, workers.IMPORTED = {REPLAYED!r}, ('replayed',)"
SERVED = f"{SAID_AGAIN}; from rung.cli import main; main.command()"


def record(target: str, folder: Path) -> dict[str, str]:
    """Asks a real worker's object, in this process, and keeps its answers; the variables that those who say
    them again need."""
    from rung.ladder.candidate import Candidate

    folder.mkdir()
    for rungs in STEP:
        real = Candidate()
        said: dict[str, Any] = {"open": real.open(target, {"seconds": "0"}, [rungs] if rungs else [], "cpu")}
        if not rungs:
            said |= {"facts": real.facts(), "audit": real.audit(), "survey": real.survey()}
        said["first"] = real.first()
        said["warm"] = real.warm(0.1)
        said["memory"] = real.memory()
        real.profile(str(folder / f"trace-{rungs}.json.gz"), 3)
        said["watch"] = real.watch()
        real.block(2)
        said["witness"] = real.witness()
        real._scope.__exit__(None, None, None)
        if rungs:
            said["verify"] = real.verify("exact")
        (folder / f"said-{rungs}.json").write_text(json.dumps(said))
    here = str(Path(__file__).parent)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
        RECORDED: str(folder),
    }


def command(*arguments: str) -> list[str]:
    """The command line of `rung` with these workers in place of its own."""
    return [sys.executable, "-c", SERVED, *arguments]


class Replayed:
    """Answers as `rung.ladder.candidate.Candidate` did."""

    def preload(self, target: str, device: str | None) -> None:
        """On a machine of many cores a worker is started ahead."""

    def load_ahead(self, target: str, options: dict[str, str], device: str | None) -> None:
        """It loads the target, too."""

    def open(
        self,
        target: str,
        options: dict[str, str],
        rungs: list[str],
        device: str | None,
        saved_model: str = "",
        gpu_draws: bool = False,
        one_shape: bool = False,
        briefly: bool = False,
    ) -> Any:
        self.fused = options.get("fused", "fast")
        self.rungs = "fused-optimizer" if "fused-optimizer" in rungs else ""
        self.folder = Path(os.environ[RECORDED])
        self.said = json.loads((self.folder / f"said-{self.rungs}.json").read_text())
        return self.said["open"]

    def first(self) -> Any:
        if self.rungs and self.fused == "raise":
            raise ValueError("no step today")
        if self.rungs and self.fused == "one dies" and Ranks.here.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.rungs and self.fused == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.rungs and self.fused == "hang":
            time.sleep(3600)
        return self.said["first"]

    def warm(self, seconds: float) -> Any:
        self.first()
        apart = ["the weights of the ranks diverge."] if self.fused == "apart" and Ranks.here.world > 1 else []
        return {**self.said["warm"], "apart": apart}

    def estimate(self) -> float:
        return STEP[self.rungs]

    def block(self, count: int) -> dict[str, Any]:
        return {"samples": [STEP[self.rungs]] * count, "outside": 0.0, "calls": count, "compiled": 0, "cores": None}

    def profile(self, path: str, steps: int) -> None:
        shutil.copy(self.folder / f"trace-{self.rungs}.json.gz", path)

    def facts(self, save: str, neighbours: bool = False) -> Any:
        of_ranks = {"ranks": Ranks.here.world, "parallel": os.environ.get(PARALLEL, "ddp")}
        return {**self.said["facts"], "facts": {**self.said["facts"]["facts"], **of_ranks}}

    def audit(self, random: bool = True) -> Any:
        return self.said["audit"]

    def survey(self) -> Any:
        return self.said["survey"]

    def use_shape(self, shape: int, seconds: float) -> Any:
        return self.said["warm"]

    def memory(self) -> Any:
        return self.said["memory"]

    def watch(self) -> Any:
        return self.said["watch"]

    def witness(self) -> Any:
        return self.said["witness"]

    def verify(self, numerics: str, **how: Any) -> Any:
        if self.fused == "wrong ranks" and Ranks.here.rank == 1:
            return {**self.said["verify"], "passed": False, "failures": ["gradient of 0.weight is off"]}
        return self.said["verify"]
