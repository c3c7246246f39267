"""Code that could not be compiled or loaded says nothing of what a candidate computes: it is tried once more, and failed then."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attempt_records import attempt
from made_up import PASSED, Added, answered, state

from rung.hardware import pick
from rung.ladder import verified
from rung.ladder.answers import not_loaded
from rung.ladder.candidate import Candidate
from rung.ladder.climb import verdict
from rung.ladder.climb.checks import may_pass, verifying
from rung.ladder.climb.state import Profile
from rung.ladder.verified import NotLoaded
from rung.launch import WorkerFailed
from rung.plan import Plan
from rung.records.record import record_of
from rung.records.workload import Batch
from rung.verify.verdict import Verification
from rung.workload import Workload

CUT = "InductorError: ImportError: /cache/5b/c5.main.so: file too short"


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (CUT, True),
        (f"the candidate raised {CUT} (exact)", True),
        (
            "the candidate raised BackendCompilerFailed: backend='inductor' raised: OSError: [Errno 28] No space left",
            True,
        ),
        ("InductorError: FileNotFoundError: [Errno 2] No such file or directory: '/cache/x.py'", True),
        ("the candidate raised InductorError: CppCompileError: C++ compile error (exact)", True),
        ("the candidate raised InductorError: LoweringException: AssertionError", False),
        ("the candidate raised ImportError: cannot import name 'x'", False),
        ("output is off by 1.0e-01", False),
    ],
)
def test_what_inductor_says_of_code_that_it_cannot_load_is_known(sentence: str, expected: bool) -> None:
    assert not_loaded(sentence) == expected
    assert may_pass(WorkerFailed(sentence, "raised")) == expected


@pytest.mark.parametrize("failure", [f"the candidate raised {CUT} (exact)", "output is another (exact)"])
def test_a_verification_without_the_candidates_code_raises(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "verify", lambda *_, **more: Verification(failures=[failure]))
    worker = Candidate()
    worker.plan, worker.device = Plan(), pick("cpu")
    worker.workload = Workload(name="x", model=lambda: torch.nn.Linear(2, 2), inputs=lambda seed: torch.ones(1, 2))
    if not_loaded(failure):
        with pytest.raises(NotLoaded, match="file too short"):
            worker.verify("exact")
    else:
        assert worker.verify("exact")["failures"] == [failure]


class Answering(Added):
    """A pool in which the first worker of a verification cannot load its code; says: what the next one answers."""

    def __init__(self, says: dict[str, Any] | WorkerFailed) -> None:
        super().__init__()
        self.says: list[dict[str, Any] | WorkerFailed] = [WorkerFailed(CUT, "raised"), says]

    def wait(self, until: Callable[[], bool], left: Callable[[], float]) -> bool:
        for task in self.tasks:
            if not task.done:
                said = self.says.pop(0)
                if isinstance(said, WorkerFailed):
                    task.error = said
                else:
                    task.worker, task.answers = answered(task.name, task.side).worker, {"verify": said}
                    task.took = {"open": 0.1, "verify": 0.2}
        return until()


@pytest.mark.parametrize("again", [PASSED, WorkerFailed(CUT, "raised")])
def test_a_candidate_whose_code_was_not_there_is_verified_once_more_and_never_called_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: dict[str, Any] | WorkerFailed
) -> None:
    monkeypatch.setattr(verdict, "prefetch_next", lambda *_: None)
    made = state(tmp_path)
    made.numerics, made.pool = "exact", Answering(again)  # type: ignore[assignment]
    made.facts.shapes = record_of(list[Batch], [{"elements": 8}])
    record = attempt(rung="compile", stack=["compile"], number=1, log="x", verdict="")
    record.restarts = None
    checks = verifying(made, ["compile"], ["exact"], "01-compile")
    began = time.monotonic()
    verdict.verify_and_judge(made, record, checks, 1.5, Profile())
    assert time.monotonic() - began < 60
    assert record.verdict == ("kept" if again is PASSED else "failed")
    assert made.taken_back == []
