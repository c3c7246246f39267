"""What a climb says of the machine and writes down before it has tried anything."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up import GIB, MANIFEST, STEP, answered, on_a_gpu, state

from rung.errors import UsageError, WorkloadError
from rung.ladder.answers import Loaded
from rung.ladder.climb import begin as beginning
from rung.ladder.climb import state as states
from rung.ladder.climb.begin import begin, finish_survey, warn_of_another_machine
from rung.ladder.climb.state import OutOfTime, State
from rung.launch import WorkerFailed
from rung.records.progress import Warned
from rung.records.workload import Facts, Workload
from rung.timing.tasks import Task

BLOCK: dict[str, Any] = {
    "estimate": STEP, "block": {"samples": [STEP] * 9, "outside": 0.0, "calls": 9}, "memory": {"resident": 1},
}  # fmt: skip
Answers = dict[str, dict[str, Any]]
DEVICE = {"name": "a chip", "arch": "x86_64", "memory": 1}
WORKLOAD = {"name": "x", "mode": "infer"}
FACTS: dict[str, Any] = {"gpu": False, "mode": "infer", "rates": {}, "shapes": [{"elements": 64}]}


def opened(**environment: Any) -> dict[str, Any]:
    """What a worker answers that has opened a workload."""
    return {"name": "x", "mode": "infer", "samples": None, "tokens": None, "steps": 1, "environment": environment}


def baseline(opened: dict[str, Any], facts: dict[str, Any] = FACTS) -> Answers:
    """What the worker of the untouched workload answers."""
    return {
        "open": opened,
        "facts": {"workload": WORKLOAD, "facts": facts, "making_seconds": 0.1, "saved": False},
        "warm": {"first_run_seconds": 1.0, "runs": 5, "steady": True, "memory": {"resident": 1}},
    }


class Answered:
    """A pool whose workers have answered already. answers: by the task's name and the method; an exception ends the task."""

    memory = importing = 0.0

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def add(self, task: Task) -> Task:
        said = self.answers[task.name]
        if isinstance(said, list):  # one after the other
            said = said.pop(0)
        if isinstance(said, WorkerFailed):
            task.error = said
        else:
            task.answers, task.took = dict(said), dict.fromkeys(said, 1.0)
        task.worker = SimpleNamespace(call=self.call, kill=lambda: None)  # type: ignore[assignment]
        return task

    def call(self, method: str, limit: float, **arguments: Any) -> Any:
        self.calls.append((method, arguments))
        if method == "profile":
            raise WorkerFailed("no profiler here", "raised")
        return BLOCK[method]

    def wait(self, until: Callable[[], bool], left: Callable[[], float]) -> bool:
        return until()

    def keep_spares(self, *_: Any, load: bool = False) -> None:
        self.loaded_ahead = load


def begun(
    tmp_path: Path,
    busy: float = 0.1,
    ready: Callable[[State], None] | None = None,
    budget: float | None = None,
    **changed: Any,
) -> tuple[State, list[str]]:
    """A climb that has begun, and the warnings that it gave. ready: called when the plain modes may begin; changed: what other tasks
    answer."""
    made = state(tmp_path)
    made.request = replace(made.request, budget=budget)
    made.on_ready = ready and (lambda warm: ready(made))
    now = {"load": [busy * (os.cpu_count() or 1), 0.0, 0.0]}
    told: dict[str, Any] = {
        "baseline": baseline(opened(time="now", now=now, device=DEVICE, torch="2.11.0")),
        "survey": {
            "audit": {"without_gradient": [], "one_shape": ""},
            "survey": {"workload": WORKLOAD, "facts": {**FACTS, "matches": {"sdpa": 8}}},
        },
    }  # fmt: skip
    warnings: list[str] = []
    made.say = lambda event: warnings.append(event.text) if isinstance(event, Warned) else None
    made.known = made.measured = None
    made.pool = Answered({**told, **changed})  # type: ignore[assignment]
    begin(made, [])
    return made, warnings


@pytest.mark.parametrize(("busy", "said"), [(2.0, 1), (0.1, 0)], ids=["crowded", "quiet"])
def test_a_machine_whose_cpus_are_taken_is_named_before_anything_is_timed(
    busy: float, said: int, tmp_path: Path
) -> None:
    _, warnings = begun(tmp_path, busy)
    assert len([text for text in warnings if "load average" in text]) == said


@pytest.mark.parametrize("holds", [0, 1 << 30], ids=["nothing of the GPU", "a GPU's memory"])
def test_further_workers_load_ahead_where_loading_takes_no_memory_of_a_gpu(
    holds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 16)
    said = {**opened(time="now", now={}, device=DEVICE, torch="2.11.0"), "gpu_bytes": holds}
    made, _ = begun(tmp_path, baseline=baseline(said))
    assert made.pool.loaded_ahead == (holds == 0)  # type: ignore[attr-defined]


def test_a_step_of_half_a_minute_is_timed_and_profiled_within_the_budget_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BLOCK, "estimate", 30e9)
    monkeypatch.setitem(BLOCK, "block", {"samples": [25e9] * 2, "outside": 0.0, "calls": 2})
    made, warnings = begun(tmp_path, budget=60.0)
    calls = dict(made.pool.calls)  # type: ignore[attr-defined]
    assert calls["block"] == {"count": 2}
    assert "profile" not in calls
    assert warnings == [
        "the baseline is not profiled: a step takes about 25.0 s, and the budget leaves no time for it."
    ]
    made, _ = begun(tmp_path / "longer", budget=600.0)
    calls = dict(made.pool.calls)  # type: ignore[attr-defined]
    assert calls["block"] == {"count": 5}
    assert "profile" in calls


@pytest.mark.parametrize(("parallel", "share"), [("tensor", 2), ("ddp", 1)])
def test_of_a_tensor_parallel_model_each_rank_computes_a_part(
    parallel: str, share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "roofline_bound", lambda flops, *_: asked.append(flops))
    asked: list[float] = []
    facts = {**FACTS, "mode": "train", "ranks": 2, "parallel": parallel}
    made, _ = begun(
        tmp_path,
        baseline=baseline(opened(time="now", now={}, device=DEVICE, torch="2.11.0"), facts),
        survey={
            "audit": {"without_gradient": [], "one_shape": ""},
            "survey": {"workload": {**WORKLOAD, "flops": 8e9}, "facts": facts},
        },
    )  # fmt: skip
    finish_survey(made)
    assert made.facts.flops == asked[-1] == 8e9 / share


def test_what_is_known_before_the_survey_is_in_the_manifest_and_the_survey_adds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "roofline_bound", lambda *_: None)
    made, warnings = begun(tmp_path)
    before = made.run.read("manifest.json")
    assert (before["status"], before["facts"]["surveyed"], before["facts"]["matches"]) == ("running", False, {})
    assert made.run.read("baseline.json")["time"]["value"] == made.baseline.time.value == STEP
    assert warnings == ["no profile of baseline: no profiler here"]
    assert finish_survey(made)
    after = made.run.read("manifest.json")["facts"]
    assert (after["surveyed"], after["matches"], made.facts.matches) == (True, {"sdpa": 8}, {"sdpa": 8})
    assert finish_survey(made)  # once is enough


def test_why_a_workload_has_one_shape_alone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "roofline_bound", lambda *_: None)
    made, warnings = begun(tmp_path)
    assert made.survey_task is not None
    made.survey_task.answers["audit"] = {"without_gradient": [], "one_shape": "on another number of rows it raised"}
    assert finish_survey(made)
    assert "runs on one input shape only (on another number of rows it raised); so does the recipe" in warnings[-1]
    assert made.side([]).one_shape


def test_a_forward_that_draws_random_numbers_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "roofline_bound", lambda *_: None)
    made, warnings = begun(tmp_path)
    assert made.survey_task is not None
    made.survey_task.answers["audit"] = {"without_gradient": [], "one_shape": "", "draws": True}
    assert not made.random
    assert finish_survey(made)
    assert "its forward draws random numbers" in warnings[-1]
    assert made.random
    assert made.run.read("manifest.json")["facts"]["draws"] is True


def test_a_workload_that_the_audit_refuses_leaves_nothing_to_go_on_with(tmp_path: Path) -> None:
    made, warnings = begun(tmp_path, survey=WorkerFailed("its results are not finite", "refused"))
    with pytest.raises(WorkerFailed, match="not finite"):
        finish_survey(made)
    assert made.run.maybe("manifest.json") is None
    assert warnings[-1] == "the run directory is not kept, since this climb cannot go on"


def test_a_workload_that_leaves_no_memory_for_others_is_refused_with_what_to_do(tmp_path: Path) -> None:
    made, _ = begun(tmp_path, survey=WorkerFailed("CUDA out of memory", "out of memory"))
    on_a_gpu(made, {"allocated": 45 * GIB})
    vars(made).pop("gpu_bytes", None)
    with pytest.raises(
        WorkloadError, match=r"one of this workload takes 46\.0 GiB of the GPU's 80\.0 GiB: use a smaller batch"
    ):
        finish_survey(made)
    assert made.run.maybe("manifest.json") is None


def large(peak: int) -> dict[str, Any]:
    """What the baseline's worker says of a workload that takes so much of a GPU of 80 GiB."""
    device = {"name": "a chip", "arch": "sm90", "memory": 80 * GIB}
    facts = {"gpu": True, "mode": "infer", "rates": {}, "shapes": [{"elements": 64}]}
    return {
        "open": opened(time="now", now={}, device=device, torch="2.11.0"),
        "facts": {"workload": {"name": "x", "mode": "infer"}, "facts": facts, "making_seconds": 0.1, "saved": False},
        "warm": {"first_run_seconds": 1.0, "runs": 5, "steady": True, "memory": {"reserved": peak}},
    }


LACKED = WorkerFailed("CUDA out of memory", "out of memory")
SURVEYED = {
    "audit": {"without_gradient": [], "one_shape": ""},
    "survey": {
        "workload": {"name": "x", "mode": "infer"},
        "facts": {"gpu": True, "mode": "infer", "rates": {}, "shapes": []},
    },
}


@pytest.mark.parametrize(
    ("peak", "survey", "modes"),
    [(4 * GIB, [SURVEYED], "with the baseline"), (30 * GIB, [SURVEYED], "after the survey"), (30 * GIB, [LACKED, SURVEYED], "later")],
)  # fmt: skip
def test_a_workload_that_fills_the_gpu_is_surveyed_before_its_modes_begin_and_alone_where_it_must(
    peak: int, survey: list[Any], modes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 16)
    seen: list[str] = []

    def ready(made: State) -> None:
        seen.append("after the survey" if made.measured else "with the baseline")

    monkeypatch.setitem(BLOCK, "memory", {"reserved": peak})
    monkeypatch.setattr(beginning, "roofline_bound", lambda *_: None)
    made, _ = begun(tmp_path, ready=ready, baseline=large(peak), survey=list(survey))
    assert seen == ([] if modes == "later" else [modes])
    assert (made.baseline_worker is None) is (modes == "later")
    if modes == "later":  # nor does it hold memory that the modes and the untouched model need
        assert made.survey_task is None
        assert made.facts.surveyed
        return
    assert made.survey_task is not None
    assert not made.survey_task.error
    assert made.survey_task.memory == peak + GIB  # nothing that has no room beside it begins


def test_a_baseline_that_lacked_memory_beside_the_survey_is_measured_once_more_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 16)
    made, _ = begun(tmp_path, baseline=[LACKED, large(20 * GIB)], survey=[SURVEYED, SURVEYED])
    assert made.baseline.time.value == STEP
    with pytest.raises(WorkerFailed, match="out of memory"):
        begun(tmp_path / "again", baseline=[LACKED, LACKED], survey=[SURVEYED, SURVEYED, SURVEYED])


def test_a_workload_that_cannot_run_is_refused_in_the_words_of_the_audit(tmp_path: Path) -> None:
    failed = {
        "baseline": WorkerFailed("it raised somewhere", "raised"),
        "survey": WorkerFailed("its results are not finite", "refused"),
    }
    with pytest.raises(WorkerFailed, match="not finite"):
        begun(tmp_path, **failed)


def test_of_a_run_directory_that_was_not_announced_nothing_is_said(tmp_path: Path) -> None:
    made = state(tmp_path)
    made.say = lambda event: pytest.fail(str(event))
    beginning._leave_nothing(made)


def test_a_survey_that_takes_longer_than_the_budget_ends_the_wait(tmp_path: Path) -> None:
    made, _ = begun(tmp_path)
    assert made.survey_task is not None
    made.survey_task.start(SimpleNamespace(send=lambda *_, **__: None), ["open"])  # type: ignore[arg-type]
    assert finish_survey(made, wait=False) is False
    with pytest.raises(OutOfTime):
        finish_survey(made)


@pytest.mark.parametrize("torch", ["2.11.0", "2.13.0"])
def test_going_on_on_another_machine_is_said_once(tmp_path: Path, torch: str) -> None:
    made, said = state(tmp_path), []
    made.run.write("manifest.json", MANIFEST)
    made.say = lambda event: said.append(event.text) if isinstance(event, Warned) else None
    warn_of_another_machine(made)  # nothing is known yet
    here = opened(device={"name": "a chip", "memory": 1}, torch=torch)
    made.resume_worker = answered("resume", made.side([]), open=here)
    for _ in range(2):
        warn_of_another_machine(made)
    assert len(said) == (torch != "2.11.0")
    assert all(text.startswith("begun on a chip with torch 2.11.0, now on a chip with torch 2.13.0") for text in said)


def test_a_climb_that_is_gone_on_with_runs_within_the_same_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 16)
    made = on_a_gpu(state(tmp_path))
    made.run.write("manifest.json", {**MANIFEST, "facts": {**MANIFEST["facts"], "surveyed": True}})
    made.run.write("baseline.json", made.baseline)
    made.model_file.write_bytes(b"a stranger's")
    spares: list[int] = []
    tasks: list[Task] = []
    pool = SimpleNamespace(
        memory=math.inf,
        most=8,
        add=lambda task: tasks.append(task) or task,
        keep_spares=lambda side, n: spares.append(n),
    )
    made.pool = pool  # type: ignore[assignment]
    begin(made, [])
    assert pool.memory == pytest.approx(0.95 * 80 * GIB)
    assert spares == [beginning.SPARES]
    assert not made.model_file.exists()
    assert [(task.name, task.ends_when_done) for task in tasks] == [("resume", True)]
    assert made.side([]).saved_model == str(made.model_file)  # which that worker writes
    made.request = replace(made.request, ranks=2)
    begin(made, [])
    assert made.side([]).saved_model == ""  # on a rank's host that may be a stranger's file
    assert made.side([]).gpu_draws


@pytest.mark.parametrize(
    ("devices", "idle", "there"),
    [
        ("", [1], []),
        ("0", [], []),
        ("0,1", [], ["1"]),
        ("1,0", [], ["0"]),
        ("auto", [1, 3], ["1", "3"]),
        ("auto", [], []),
    ],
)
def test_what_is_not_timed_has_the_other_gpus_of_the_request(
    devices: str, idle: list[int], there: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    said: list[Warned] = []
    made = SimpleNamespace(
        request=SimpleNamespace(devices=devices), pool=SimpleNamespace(elsewhere=()), say=said.append
    )
    beginning.use_other_gpus(made, loaded(idle))  # type: ignore[arg-type]
    assert [next(iter(place.variables.values())) for place in made.pool.elsewhere] == there
    assert [place.name for place in made.pool.elsewhere] == [f"GPU {number}" for number in there]
    assert bool(said) == (devices == "auto" and not there)


@pytest.mark.parametrize(
    ("devices", "said"),
    [("0,2", "GPU 2 is a MI300X, and the one that is timed a H100"), ("0,4", "GPU 4 is not there: there are 4")],
)
def test_gpus_of_another_kind_do_not_verify(devices: str, said: str) -> None:
    made = SimpleNamespace(request=SimpleNamespace(devices=devices), pool=SimpleNamespace(elsewhere=()))
    with pytest.raises(UsageError, match=said):
        beginning.use_other_gpus(made, loaded([]))  # type: ignore[arg-type]


def loaded(idle: list[int]) -> Loaded:
    facts = Facts(gpu=True, vendor="nvidia", mode="train", rates={})
    gpus = ["H100", "H100", "MI300X", "H100"]
    return Loaded(
        workload=Workload(name="x", mode="train"),
        facts=facts,
        making_seconds=0.0,
        saved=False,
        gpus=gpus,
        idle_gpus=idle,
    )
