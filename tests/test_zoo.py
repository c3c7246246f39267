"""The zoo of benchmarks/zoo: its slice makes models and steps once, its runner goes on where it stopped, and its scores count rightly."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ZOO = Path(__file__).parents[1] / "benchmarks" / "zoo"


@pytest.fixture(scope="module", autouse=True)
def _on_path() -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = [str(ZOO), str(ZOO.parent / "climb")]
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def _not_stopped(_on_path: None) -> Iterator[None]:
    import fresh

    yield
    fresh._stopping.clear()


# ---- the slice -------------------------------------------------------------------------------------------

SLICE = ("own/estuary", "own/unet", "own/ranker", "hf/qwen3-0.6b", "hf/t5-v1.1-base", "timm/convnext_tiny")


def test_the_slice_is_of_cases_that_there_are() -> None:
    import choosing

    assert choosing.SLICE == SLICE
    assert set(SLICE) <= set(choosing.cases())


@pytest.mark.parametrize("variant", ["infer", "train"])
@pytest.mark.parametrize("name", SLICE)
def test_a_case_of_the_slice_makes_a_model_and_steps_once(name: str, variant: str) -> None:
    import checking
    import choosing

    case = choosing.cases()[name]
    if missing := checking.lacking(case):
        pytest.skip(f"{missing} is not installed")
    assert "parameters" in checking.one_step(case, variant)


def test_a_case_is_verified_under_all_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    import checking
    import choosing

    from rung.rewrites import backend

    case = choosing.cases()["own/ranker"]
    assert "equal in" in checking.rewritten(case, "infer")

    def slipped(graph: Any) -> tuple[int, list[str]]:
        found = [node for node in graph.nodes if "relu" in str(node.target)]
        for node in found:
            node.replace_all_uses_with(node.all_input_nodes[0])
        return len(found), []

    monkeypatch.setitem(backend._PASS_FUNCTIONS, "activation-epilogue", slipped)
    with pytest.raises(AssertionError, match="output is off by"):
        checking.rewritten(case, "infer")


def test_a_case_is_verified_on_inputs_of_its_own_seed() -> None:
    import choosing
    import torch

    from rung.hardware import pick
    from rung.verify.audit import audit
    from rung.workload import load

    w = load(choosing.cases()["own/ranker"].target, {"name": "ranker", "train": "true", "toy": "true"})
    assert torch.equal(w.inputs(3)["numbers"], w.inputs(3)["numbers"])
    assert audit(w, pick("cpu")) == []


# ---- names, order, and the results file ------------------------------------------------------------------


def test_the_order_is_drawn_by_the_seed_and_stands_when_cases_come() -> None:
    from rows import drawn

    few = drawn(["a", "b", "c", "d", "e"], 1)
    more = drawn(["e", "f", "d", "c", "b", "a"], 1)
    assert [name for name in more if name != "f"] == few
    assert few != drawn(few, 2)
    assert few != sorted(few)


def test_names_choose_and_never_order() -> None:
    import choosing

    known = choosing.cases()
    order = choosing.in_drawn_order(known)

    def names(*words: str, first: int | None = None) -> list[str]:
        return [f"{case.name}:{variant}" for case, variant in choosing.chosen(known, order, words, first)]

    assert names() == order
    assert names("own/unet", "own/estuary:train") == [
        c for c in order if c.startswith("own/unet:") or c == "own/estuary:train"
    ]
    assert names("timm", first=3) == [c for c in order if c.startswith("timm/")][:3]
    assert all(c.endswith(":train") for c in names("train"))
    assert {c.rpartition(":")[0] for c in names("slice")} == set(SLICE)
    with pytest.raises(SystemExit, match="nothing in the zoo is called 'hf/gpt9'"):
        names("hf/gpt9")


def test_the_zoo_is_as_large_as_its_page_says() -> None:
    import choosing

    known = choosing.cases().values()
    counts = {family: sum(case.family == family for case in known) for family in ("hf", "timm", "diffusers", "own")}
    assert counts["hf"] >= 30
    assert counts["timm"] >= 20
    assert counts["diffusers"] >= 6
    assert all(set(case.variants) <= {"infer", "train"} for case in known)


def test_problems_of_a_checkout_are_cases(tmp_path: Path) -> None:
    import choosing

    (tmp_path / "level2").mkdir()
    problem = tmp_path / "level2" / "7_Thing.py"
    problem.write_text("")
    case = choosing.cases(tmp_path)["kernelbench/level2/7_Thing"]
    assert (case.target, case.kind) == (f"kernelbench:{problem}", "KernelBench level2")
    assert case.all_options("infer", toy=True) == {}  # which such a target would refuse
    with pytest.raises(SystemExit, match=r"has no level1/\*\.py"):
        choosing.cases(tmp_path / "level2")


def run(zoo: Any, monkeypatch: pytest.MonkeyPatch, file: Path, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zoo.py", "run", "--out", str(file), "--toy", "--numerics", "exact", *words])
    return int(zoo.main())


def test_a_run_that_was_cut_goes_on_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The processes are made up; that they are begun once each, and that what was there stays, is not."""
    import running
    import zoo
    from fresh import Climb, Stopped, Timed
    from rows import Results

    begun: list[str] = []
    interrupted: list[bool] = []

    def timed(target: Any, mode: str, env: Any, limit: float) -> Timed:
        what = f"{target.options['name']} {mode}"
        begun.append(what)
        if not interrupted and what == "unet reduce-overhead":
            interrupted.append(True)
            os.kill(os.getpid(), signal.SIGTERM)  # while its process runs, which is ended then
            raise Stopped
        if target.options["name"] == "ranker":
            return Timed(mode=mode, error="MemoryError: too little", kind="out of memory")
        return Timed(mode=mode, ready_s=1.0, step_ms=2.0, device="CPU")

    def climbed(target: Any, budget: float, env: Any) -> Climb:
        begun.append(f"{target.options['name']} {budget:.0f}")
        return Climb(budget_s=budget, wall_s=1.0, exit=0, why="nothing was kept")

    monkeypatch.setattr(running, "timed", timed)
    monkeypatch.setattr(running, "climb", climbed)
    file = tmp_path / "rows.jsonl"
    words = ("own/unet:infer", "own/ranker:infer", "--budget", "10")
    assert run(zoo, monkeypatch, file, *words) == 130
    assert "the same command goes on here" in capsys.readouterr().out
    assert run(zoo, monkeypatch, file, *words) == 0
    once = ["unet eager", "unet default", "unet reduce-overhead", "unet 10", "ranker eager"]
    assert sorted(begun) == sorted([*once, "unet reduce-overhead"])
    assert run(zoo, monkeypatch, file, *words) == 0
    assert len(begun) == len(once) + 1  # nothing is begun again
    # Another budget is another row, for which what is plain was timed already.
    assert run(zoo, monkeypatch, file, "own/unet:infer", "--budget", "20") == 0
    assert begun[len(once) + 1 :] == ["unet 20"]
    results = Results(file)
    assert results.header is not None
    assert len(results.header.order) > 100
    assert [(row.case, row.budget_s, row.reason) for row in results.rows if row.name == "own/ranker"] == [
        ("own/ranker:infer", 10.0, "MemoryError: too little")
    ]
    assert [len(row.plain) for row in results.rows if row.name == "own/unet"] == [2, 2]
    assert all(row.done for row in results.rows)


def test_the_time_ends_a_run_between_two_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import running
    import zoo
    from rows import Results

    monkeypatch.setattr(running, "timed", lambda *_: pytest.fail("no process was to be begun"))
    file = tmp_path / "rows.jsonl"
    assert run(zoo, monkeypatch, file, "own/unet:infer", "--seconds", "0.000001") == 1
    assert Results(file).rows == []


def test_a_line_of_something_else_is_refused(tmp_path: Path) -> None:
    from rows import Results

    file = tmp_path / "rows.jsonl"
    file.write_text('{"type":"row"}\n')
    with pytest.raises(SystemExit, match=r"rows\.jsonl, line 1, is no line of the zoo"):
        Results(file)


# ---- scores ----------------------------------------------------------------------------------------------


def row(name: str, eager: float = 10.0, mode: float = 5.0, applied: float | None = None, **more: Any) -> Any:
    """A row with times in milliseconds; applied: of a confirmed recipe, and without it there is none."""
    from fresh import Attempt, Climb, Timed
    from rows import Row

    climb = Climb(budget_s=120, wall_s=100, exit=0, why="" if applied else "nothing was kept")
    if applied:
        climb.applied = Timed(mode="recipe", step_ms=applied, peak_bytes=more.pop("peak", 50))
        climb.result = {"status": "confirmed", "kept": ["compile"], **more.pop("result", {})}
    climb.attempts = [Attempt(**a) for a in more.pop("attempts", ())]
    climb.crash, climb.why = more.pop("crash", ""), more.pop("why", climb.why)
    processes = {
        "eager": Timed(mode="eager", step_ms=eager, peak_bytes=100),
        "plain": [Timed(mode="default", step_ms=2 * mode), Timed(mode="reduce-overhead", step_ms=mode)],
    }
    return Row(
        name=name,
        variant="infer",
        kind="",
        numerics="bf16",
        budget_s=120,
        done=True,
        climb=climb,
        **{**processes, **more},
    )


def test_what_is_compared_is_what_a_user_has_in_the_end() -> None:
    import score

    assert score.over_best(row("a", 10, 5, 4)) == pytest.approx(1.25)
    assert score.over_eager(row("a", 10, 5, 4)) == pytest.approx(2.5)
    assert score.over_mode(row("a", 10, 5, 4)) == pytest.approx(2.5)  # of the mode `default`, which took 10
    assert score.over_best(row("a", 10, 5)) == pytest.approx(0.5)  # no recipe: eager
    assert score.over_best(row("a", 3, 5)) == pytest.approx(1.0)  # where eager was the fastest, that is the rival
    assert score.over_eager(row("a", plain=[])) == pytest.approx(1.0)
    not_climbed = row("a")
    not_climbed.climb = None
    assert score.over_best(not_climbed) is None
    unapplied = row("a", 10, 5, 4)
    unapplied.climb.applied.step_ms = None
    assert score.over_best(unapplied) is None


def test_a_geometric_mean_has_an_interval_over_models() -> None:
    import score

    mean = score.geometric_mean([2.0, None, 0.5, 1.0])
    assert mean is not None
    assert (mean.value, mean.count) == (pytest.approx(1.0), 3)
    assert mean.low < 0.5  # t with 2 degrees of freedom, standard error 0.4: 1.7 either way, as logarithms
    assert mean.high == pytest.approx(1 / mean.low)
    assert score.geometric_mean([1.5]).low is None
    assert score.geometric_mean([None]) is None


def test_models_below_the_best_plain_mode_are_counted_with_and_without_interval() -> None:
    import score

    rows = [
        row("a", 10, 5, 4),
        row("b", 10, 5, 5.2, result={"over_plain": {"value": 0.96, "low": 0.94, "high": 0.98}}),
        row("c", 10, 5, 5.2, result={"over_plain": {"value": 0.99, "low": 0.97, "high": 1.01}}),
        row("d", 10, 5, 5.02),  # 0.996
    ]
    assert score.share_below(rows) == (2, 1, 4)


def test_fast_p_is_of_all_problems_and_of_verified_recipes_alone() -> None:
    import score

    rows = [
        row("kernelbench/level1/1", 10, 5, 4),
        row("kernelbench/level1/2", 10, 5, 6),
        row("kernelbench/level1/3", 10, 5, 4, result={"status": "provisional"}),
        row("kernelbench/level1/4", 10, 5),
        row("kernelbench/level1/5", 10, 5, 12),
    ]
    assert score.fast(rows, 1.0, score.over_eager) == pytest.approx(2 / 5)
    assert score.fast(rows, 2.0, score.over_eager) == pytest.approx(1 / 5)
    assert score.fast(rows, 1.0, score.over_best) == pytest.approx(1 / 5)
    assert score.fast([], 1.0, score.over_best) is None
    assert list(score.levels([*rows, row("hf/gpt2")])) == [("level1", "bf16")]
    assert list(score.grouped([*rows, row("hf/gpt2")])) == [(120, "infer")]


def test_the_time_to_an_answer_counts_those_who_never_had_one() -> None:
    import score

    history = [{"status": "provisional", "seconds": 20.0}, {"status": "verified", "seconds": 70.0}]
    early = row("a", applied=4, result={"history": history})
    assert score.answer_after(early, "provisional") == 20.0
    assert score.answer_after(early, "verified") == 70.0
    assert score.answer_after(early, "confirmed") is None
    assert score.answer_after(row("b"), "provisional") is None
    straight = row("c", applied=4, result={"history": history[1:]})
    assert score.answer_after(straight, "provisional") == 70.0
    times = [10.0, 30.0, 20.0, None]
    assert score.quantile(times, 0.5) == 20.0
    assert score.quantile(times, 0.9) == float("inf")


def test_memory_is_over_eager_at_the_same_precision() -> None:
    import score

    assert score.memory_ratio(row("a", applied=4, peak=50)) == pytest.approx(0.5)
    assert score.memory_ratio(row("a")) == pytest.approx(1.0)
    assert score.more_memory([row("a", applied=4, peak=101), row("b", applied=4, peak=120), row("c")]) == 1


def test_the_matrix_tells_apart_what_came_of_a_rung() -> None:
    import score

    attempts = [
        {"rung": "plain", "verdict": "kept", "members": ["compile", "capture"], "stack": ["compile", "capture"]},
        {"rung": "sdpa", "verdict": "reverted", "refused": True},
        {"rung": "fused-qkv", "verdict": "inconclusive"},
        {"rung": "fused-qkv", "verdict": "reverted"},
        {"rung": "triton-rope", "verdict": "no-op"},
        {"rung": "bf16-stream", "verdict": "failed"},
        {"rung": "aiter-gemm", "verdict": "inapplicable"},
    ]
    rungs = ["compile", "capture", "sdpa", "fused-qkv", "triton-rope", "bf16-stream", "aiter-gemm", "channels-last"]
    found = score.matrix([row("a", applied=4, attempts=attempts)], rungs)
    assert {rung: of["a:infer, bf16, 120 s"] for rung, of in found.items()} == {
        "compile": "kept",
        "capture": "reverted",  # what replaced it in the end was faster
        "sdpa": "refused by verification",
        "fused-qkv": "reverted",
        "triton-rope": "no effect",
        "bf16-stream": "failed",
        "aiter-gemm": "inapplicable",
        "channels-last": "not reached",
    }


def test_a_crash_is_no_answer_and_a_reason_is_one() -> None:
    import score

    rows = [row("a", applied=4), row("b"), row("c", crash="Traceback", why=""), row("d", why="")]
    assert score.covered(rows) == (2, 4)
    assert [score.crashed(r) for r in rows] == [False, False, True, False]


def test_the_distance_is_that_of_the_recipe_in_the_end() -> None:
    import score

    attempts = [
        {"rung": "plain", "verdict": "kept", "stack": ["bf16"], "worst": {"ratio": 9.0}},
        {"rung": "compile", "verdict": "kept", "stack": ["compile"], "worst": {"ratio": 1.25}},
        {"rung": "sdpa", "verdict": "reverted", "stack": ["compile", "sdpa"], "worst": {"ratio": 99.0}},
    ]
    assert score.distance(row("a", applied=4, attempts=attempts)) == 1.25
    assert score.distance(row("a")) is None


def test_the_tables_and_the_chart_hold_every_row_and_say_what_was_left(tmp_path: Path) -> None:
    from chart import page
    from fresh import Timed
    from rows import Header, Results
    from tables import table

    results = Results(tmp_path / "rows.jsonl")
    results.header = Header(
        seed=1, began="then", order=["hf/a:infer", "hf/b:infer", "kernelbench/level1/1:infer", "hf/z:infer"]
    )
    failing = row(
        "hf/b", plain=[Timed(mode="default", error="RuntimeError: a | b", kind="raised")], crash="Traceback: <here>"
    )
    left = row("hf/c", reason="ImportError: transformers 4.1 has no X", eager=None, plain=[])
    left.climb = None
    results.rows = [row("hf/a", applied=4), failing, left, row("kernelbench/level1/1", applied=4)]
    results.write()
    again = Results(results.path)
    text = table(again)
    assert again.rows == results.rows
    for part in (
        "of 4 cases were run",
        "crashes of Rung: 1",
        "| hf/a |",
        "hf/c:infer: ImportError",
        "RuntimeError: a",
        "fast_1",
        "| compile | 2 |",
    ):
        assert part in text
    assert "| a | b |" not in text
    drawn = page(again)
    for part in ("hf/a", "1.25×", "KernelBench level1, bf16", "compile, hf/a:infer, bf16, 120 s: kept"):
        assert part in drawn
    assert "<script" not in drawn


# ---- the processes ---------------------------------------------------------------------------------------


def test_a_process_that_hangs_or_dies_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import fresh

    target = fresh.Target("x.py:make", {}, "exact")
    hung = fresh._finished([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ), 0.5)
    died = fresh._finished([sys.executable, "-c", "import sys; sys.exit('no such thing')"], dict(os.environ), 60.0)
    assert (hung.code, died.code) == (None, 1)
    monkeypatch.setattr(fresh, "_finished", lambda *_: hung)
    found = fresh.timed(target, "eager", {}, limit=7.0)
    assert (found.kind, found.error) == ("hung", "it was not done after 7 s")
    monkeypatch.setattr(fresh, "_finished", lambda *_: died)
    found = fresh.timed(target, "eager", {})
    assert found.kind == "died"
    assert "ended with 1" in found.error
    assert "no such thing" in found.error


def test_a_climb_without_a_recipe_has_a_reason_and_a_crash_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    import fresh

    def ending(code: int | None, *lines: str) -> Any:
        monkeypatch.setattr(
            fresh, "_finished", lambda *_: fresh._Ended(code, 1.0, [f"   0.1 {line}" for line in lines])
        )
        return fresh.climbed(fresh.Target("x.py:make", {}, "exact"), 10.0, {})

    refused = ending(4, "WORKER took 3 s", "rung: workload 'x': its output is not finite.")
    assert (refused.why, refused.crash) == ("workload 'x': its output is not finite.", "")
    crash = ending(70, "Traceback", "KeyError: 3")
    assert "KeyError: 3" in crash.crash
    assert "killed" in ending(None).why


def test_a_stop_ends_the_process_that_is_waited_for() -> None:
    import fresh

    threading.Timer(0.5, fresh.stop).start()
    with pytest.raises(fresh.Stopped):
        fresh._finished([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ), 60.0)


def test_a_target_runs_in_this_process_as_a_user_would_write_it(tmp_path: Path) -> None:
    import fresh

    options = {"name": "ranker", "toy": "true"}
    found = fresh.here(fresh.Target(f"{ZOO / 'handwritten.py'}:make", options, "bf16"), "eager")
    assert found.step_ms is not None
    assert found.low_ms <= found.step_ms <= found.high_ms
    assert found.parameters
    assert not found.error
    training = fresh.here(
        fresh.Target(f"{ZOO / 'handwritten.py'}:make", {**options, "train": "true"}, "exact"), "eager"
    )
    assert training.step_ms


def test_none_is_timed_before_all_are_ready_or_beside_another(tmp_path: Path) -> None:
    from fresh import _Turn

    first, second = _Turn(str(tmp_path / "turn")), _Turn(str(tmp_path / "turn"))
    events: list[str] = []

    def go(turn: Any, name: str) -> None:
        turn.take()
        events.append(f"{name} begins")
        time.sleep(0.1)
        events.append(f"{name} ends")
        turn.file.close()  # as the end of its process does

    one = threading.Thread(target=go, args=(first, "first"))
    one.start()
    one.join(0.2)
    assert one.is_alive()
    assert events == []  # the second is not ready
    two = threading.Thread(target=go, args=(second, "second"))
    two.start()
    one.join(10)
    two.join(10)
    assert [e.split()[1] for e in events] == ["begins", "ends"] * 2
    _Turn(None).take()  # alone, there is nobody to wait for


def test_plain_processes_that_begin_together_run_once_more_alone_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import running
    import zoo
    from fresh import TURN, Climb, Timed
    from rows import Results

    begun: list[tuple[str, bool]] = []
    together = threading.Barrier(3, timeout=10)

    def timed(target: Any, mode: str, env: Any, limit: float) -> Timed:
        begun.append((mode, TURN in env))
        if TURN in env:
            together.wait()
            if mode == "default":
                return Timed(mode=mode, error="OutOfMemoryError: too little", kind="out of memory")
        return Timed(mode=mode, ready_s=1.0, step_ms=2.0, device="CPU")

    monkeypatch.setattr(running, "timed", timed)
    monkeypatch.setattr(running, "climb", lambda *_: Climb(budget_s=10, wall_s=1.0, exit=0, why="nothing was kept"))
    file = tmp_path / "rows.jsonl"
    assert run(zoo, monkeypatch, file, "own/unet:infer", "--gpus", "0") == 0
    assert sorted(begun) == [("default", False), ("default", True), ("eager", True), ("reduce-overhead", True)]
    (row,) = Results(file).rows
    assert row.done
    assert not row.reason
    assert sorted((t.mode, t.step_ms) for t in row.plain) == [("default", 2.0), ("reduce-overhead", 2.0)]
