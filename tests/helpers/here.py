"""Workers in this process, whose steps take what they are told to take: whole climbs of seconds, with everything but processes and clocks
as it is."""

import json
from pathlib import Path
from typing import Any

import pytest

from rung.ladder.candidate import Candidate
from rung.timing import ab_run, worker_group, workers

STEPS: dict[tuple[str, ...], float] = {}  # milliseconds that a step takes, by the rungs that it runs under


class Here:
    """A worker's side of the pipe, in this process; its times are those of STEPS."""

    spent = 0.0, 0.0

    pid, running, hosts = 0, set[Any](), list[str]()

    def __init__(self, serves: str, log: Path, *_: object) -> None:
        self.candidate, self.sent, self.log = Candidate(), list[tuple[str, dict[str, Any]]](), log

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kill(self) -> None:
        pass

    def alive(self) -> bool:
        return True

    def answered(self) -> bool:
        return True

    def send(self, method: str, **arguments: Any) -> None:
        self.sent.append((method, json.loads(json.dumps(arguments))))
        if method == "open":
            self.rungs = tuple(arguments["rungs"])

    def receive(self, method: str, deadline: float, waited: float = 0.0) -> Any:
        asked, arguments = self.sent.pop(0)
        assert asked == method
        ns = 1e6 * STEPS[self.rungs]
        if method == "estimate":
            return ns
        if method == "block":
            return {"samples": [ns] * arguments["count"], "outside": 0.0, "calls": arguments["count"]}
        if method == "witness":  # it looks at clocks, too
            return {"failures": [], "unseen": None, "left": ""}
        said = json.loads(json.dumps(getattr(self.candidate, method)(**arguments)))
        if method == "warm":
            said["applied"] |= {"compiled_graphs": 1, "optimizer_fused": True}
        return said

    def call(self, method: str, deadline: float, **arguments: Any) -> Any:
        self.send(method, **arguments)
        return self.receive(method, deadline)


def in_this_process(patch: pytest.MonkeyPatch, steps: dict[tuple[str, ...], float]) -> None:
    """From now on a climb's workers are here, and their steps take these milliseconds, by the rungs under which they run."""
    patch.setitem(globals(), "STEPS", steps)
    patch.setattr(workers, "Worker", Here)
    patch.setattr(worker_group, "WARM_SECONDS", 0.2)
    patch.setattr(ab_run.ABRun, "hidden", {"best": 0.0, "candidate": 0.0})
