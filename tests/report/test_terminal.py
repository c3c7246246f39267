import subprocess
import sys

import attempt_records
import pytest
from climb_sample import VERDICTS, climb, nothing_kept, planned, unfinished
from msgspec.structs import replace

from rung.records.analyze import Breakdown
from rung.records.climb import Attempt, Baseline, Figure, Mode, Noise, Predicted, Prediction, Shape, Stopped
from rung.records.compare import ComparedSide, Comparison
from rung.records.measured import Compared, Interval, Ratio
from rung.records.workload import Recompilation, Workload
from rung.report import attempt_words, breakdowns, climbs, commands, progress, terminal, units, words
from rung.report.compare import compare_lines
from rung.report.html import render


def untried(rung: str, verdict: str, why: str) -> Attempt:
    return Attempt(number=1, rung=rung, verdict=verdict, why=why, against="baseline")


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_summary_fits_its_width_and_names_every_verdict(width: int) -> None:
    text = terminal.summary(climb(), width=width)
    commands = ("Measure it again", "Use it in Python")
    assert all(len(line) <= width for line in text.splitlines() if not line.startswith(commands))
    assert all(verdict in text for verdict in VERDICTS)


def test_the_line_for_python_says_what_its_names_are() -> None:
    data = climb()
    data.manifest.target, data.manifest.workload.mode = "model.py:make", "train"
    names = "# model: your module; loss, optimizer: as in model.py:make"
    lines = terminal.summary(data, width=100).splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("Use it in Python: train = rung.apply(model, "))
    assert (lines[at][-31:], lines[at + 1]) == ("loss=loss, optimizer=optimizer)", f"  {names}")
    assert f"import rung\n\n{names}\ntrain = rung.apply(" in render(data)
    data.manifest.target = "tiny-transformer"
    assert "# model:" not in terminal.summary(data, width=100) + render(data)


def test_the_line_for_python_gives_all_that_a_step_needs_of_the_workload() -> None:
    data = climb()
    data.manifest.target, data.manifest.workload.mode = "model.py:make", "train"
    data.manifest.workload.own_forward, data.manifest.workload.output = True, False
    names = "# model: your module; forward, loss, optimizer: as in model.py:make"
    arguments = "forward=forward, loss=loss, optimizer=optimizer, output=False)"
    said = terminal.summary(data, width=100)
    assert (names in said, arguments in said) == (True, True)
    assert (names in render(data), arguments in render(data)) == (True, True)


def test_a_summary_says_what_the_rungs_are_compared_by() -> None:
    data = climb()
    said = "Steps were timed at different moments: compare rungs by the speedup."
    assert said in terminal.summary(data, width=140)
    data.attempts = data.attempts[:1]
    assert said not in terminal.summary(data, width=140)


def test_a_summary_explains_the_column_of_errors_where_it_has_one() -> None:
    said = "error: how far off the result is that came nearest to its limit, in multiples of the untouched model's own error."
    wide = terminal.summary(climb(), width=140)
    assert said in wide
    assert "19.1 ms  1.25×  ✓ kept" in wide
    assert said not in terminal.summary(climb(), width=80)
    assert said not in terminal.summary(planned(), width=140)


def test_a_summary_says_how_noisy_the_machine_was() -> None:
    data = climb()
    assert "Noise:" not in terminal.summary(data, width=140)
    data.result.noise = Noise(waited=0.43, visible=0.12)
    data.result.status, data.result.doubt = "provisional", "3 restarts did not show it"
    text, page = (" ".join(shown.split()) for shown in (terminal.summary(data, width=140), render(data)))
    for shown in (text, page):
        assert (
            "Noise: steps waited for a CPU core up to 43% of the time; a gain of one rung below 12.0% is too small to see"
            in shown
        )
        assert "Provisional: verified, and not confirmed: 3 restarts did not show it." in shown
        assert "not verified yet" not in shown


def test_a_speedup_that_was_measured_on_busy_cores_is_doubtful_wherever_it_is_told() -> None:
    data = climb()
    assert data.result
    assert "doubtful" not in terminal.answer_line(data.result) + terminal.summary(data) + render(data)
    data.result.status = "verified"
    data.result.busy = "threads waited for a CPU core 70% of the time, so the speedup is doubtful"
    assert terminal.answer_line(data.result).endswith(", doubtful (CPU cores were busy)")
    for shown in (terminal.summary(data, width=140), render(data)):
        assert "Threads waited for a CPU core 70% of the time, so the speedup is doubtful." in " ".join(shown.split())


def test_a_busy_machine_is_worth_another_climb_where_something_stayed_open() -> None:
    data = climb()
    data.result.noise = Noise(waited=0.43, visible=0.12)
    for attempt in data.attempts:
        attempt.verdict = "kept" if attempt.verdict == "inconclusive" else attempt.verdict
    advice = "climb again while the machine does nothing else."
    assert advice not in words.noise(data)
    data.attempts[-1].verdict = "inconclusive"
    assert words.noise(data).endswith(advice)
    data.result.noise = Noise(waited=0.2, visible=0.12)
    assert advice not in words.noise(data)


def test_a_summary_says_what_was_gained_and_how_to_use_it() -> None:
    text = terminal.summary(climb(), width=100)
    flat = " ".join(text.split())
    assert "9.40× (9.20–9.60) over the untouched model; 26.6 ms → 2.83 ms per step, peak memory 3.1 → 1.2 GiB" in flat
    assert "Bottleneck: matrix products, 42% of the step (GPU time)." in text
    flat = " ".join(text.split())
    assert "rung bench tiny-transformer --recipe runs/2026-01-02-tiny-transformer/recipe.toml" in flat
    used = 'rung.apply(model, "runs/2026-01-02-tiny-transformer/recipe.toml"'
    assert f"{used}, loss=loss, optimizer=optimizer)" in flat  # of training: without them nothing would train
    assert "--resume" not in text


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("provisional", "not verified yet"),
        ("verified", "Fresh restarts have not confirmed the speed"),
        ("confirmed", "Confirmed: "),
    ],
)
def test_what_is_not_confirmed_is_not_called_so(status: str, says: str) -> None:
    data = climb()
    data.result.status = status
    data.result.speedup, data.result.over_plain = Figure(value=1.25), Figure(value=1.1, low=1.05, high=1.15)
    text = " ".join(terminal.summary(data, width=140).split())
    assert says in text
    assert "1.25× over the untouched model, 1.10× (1.05–1.15) over the best plain torch.compile" in text
    page = render(data)
    assert ("faster</span>" in page) == (status == "confirmed")
    assert status.capitalize() in page


def test_a_climb_that_is_gone_without_a_word_was_interrupted() -> None:
    data = nothing_kept()
    data.manifest.status, data.manifest.why = "running", ""
    assert words.status(data) == "The climb is interrupted."
    assert commands.way_on(data).startswith("Continue with: rung climb --resume")
    assert commands.way_on(data, code=True).startswith("Continue with: `rung climb --resume")
    assert climbs.run_line(data).endswith("interrupted")
    data.running = True
    assert words.status(data) == "The climb is running."
    assert not commands.way_on(data)
    assert climbs.run_line(data).endswith("running")


def test_a_summary_is_plain_unless_color_is_asked_for() -> None:
    assert "\x1b" not in terminal.summary(climb(), width=100)
    assert "\x1b[" in terminal.summary(climb(), width=100, color=True)


def test_a_climb_that_kept_nothing_says_so() -> None:
    text = terminal.summary(nothing_kept(), width=100)
    assert "Nothing was kept: no rung was shown" in text
    untried = replace(nothing_kept(), attempts=[])
    assert "Nothing was kept: no candidate was timed to the end." in terminal.summary(untried, width=100)
    assert "recipe" not in text


def test_an_unfinished_climb_says_how_to_resume() -> None:
    assert "rung climb --resume 'runs/x y'" in terminal.summary(unfinished(), width=100)


def test_a_climb_of_a_job_goes_on_in_one_and_what_a_file_says_stays_words() -> None:
    data = unfinished()
    data.manifest.request = {"slurm": "--slurm 2 --account 'a b;rm -rf ~' --walltime 5; touch x", "launcher": "srun"}
    text = " ".join(terminal.summary(data, width=400).split())
    options = "--slurm 2 --account 'a b;rm -rf ~' --walltime '5;' touch x"
    assert f"--resume 'runs/x y' {options}" in text
    assert commands.bench_command(data).endswith(f"recipe.toml' {options}")
    data.manifest.request = {"slurm": "--slurm '2"}
    assert commands.resume(data) == "rung climb --resume 'runs/x y'"


def test_a_budget_that_would_not_suffice_again_is_raised_in_the_command() -> None:
    data = climb()
    assert data.result is not None
    data.manifest.request = {"budget": 60}
    for needs, command in ((65.0, " --budget 120"), (50.0, " --budget 90"), (20.0, ""), (None, "")):
        data.result.stopped = Stopped(rule="budget", why="too short", needs=needs)
        assert commands.resume(data).endswith(f"transformer{command}")


def test_a_climb_whose_budget_ended_twice_is_given_more_than_it_had_in_the_command() -> None:
    data = climb()
    assert data.result is not None
    data.manifest.request = {"budget": 60}
    data.result.stopped = Stopped(rule="budget", why="the budget of 60 s ended before the recipe was verified")
    for spent, command in ((64.0, ""), (125.0, " --budget 150"), (275.0, " --budget 300"), (None, "")):
        data.manifest.spent_seconds = spent
        assert commands.resume(data).endswith(f"transformer{command}")
    data.manifest.spent_seconds = 125.0
    data.result.stopped.rule = "tried"
    assert commands.resume(data).endswith("transformer")


def test_a_climb_without_a_recipe_is_given_twice_its_budget_in_the_command() -> None:
    data = climb()
    assert data.result is not None
    data.manifest.request, data.result.kept = {"budget": 60}, []
    data.result.stopped = Stopped(rule="budget", why="no candidate was timed to the end")
    for spent, command in ((64.0, " --budget 120"), (190.0, " --budget 210")):
        data.manifest.spent_seconds = spent
        assert commands.resume(data).endswith(f"transformer{command}")


def test_over_ranks_it_is_said_how_to_time_autocast_alone() -> None:
    data = climb()
    assert data.result is not None
    data.result.kept = ["bf16", "compile"]
    assert not commands.autocast_alone(data)
    data.manifest.facts = replace(data.manifest.facts, ranks=2)
    data.manifest.options = {"batch_size": "32", "kind": "a b"}
    said = commands.bench_command(data).partition(" --recipe ")[0]
    command = f"{said} --rungs bf16,fused-optimizer --batch-size 32 --kind 'a b' --nproc-per-node 2\n"
    assert f"What autocast and a fused optimizer give alone: {command}" in terminal.summary(data)
    data.result.kept = ["compile"]
    assert not commands.autocast_alone(data)


def test_nothing_is_above_a_prediction_that_was_not_decided() -> None:
    row = next(attempt for attempt in climb().attempts if attempt.comparison)
    assert row.comparison
    for answer, said in (("faster", True), ("undecided", False)):
        shown = replace(row, forecast="above", comparison=replace(row.comparison, answer=answer))
        assert ("above the prediction" in terminal.attempt_line(shown)) is said


def test_what_is_not_verified_yet_is_not_called_kept() -> None:
    data = climb()
    assert data.result is not None
    assert words.kept_so_far(data) == "Kept"
    data.result.status = "provisional"
    assert "In the recipe so far: " in terminal.summary(data)


def test_an_interval_that_says_nothing_is_not_given_as_a_gain() -> None:
    data = climb()
    assert data.result is not None
    row = Shape(shape="f32[8, 4]", speedup=Figure(value=1.4, low=0.2, high=8.1), answer="undecided", elements=32)
    data.result.shapes = [row]
    assert "too noisy to say (0.20–8.10)" in words.shapes(data)[0]
    for low, high in ((1.3, 1.5), (2.0, 4.5)):  # wide, and faster in any case
        data.result.shapes = [replace(row, speedup=Figure(value=1.4, low=low, high=high))]
        assert f"1.40× ({low:.2f}–{high:.2f})" in words.shapes(data)[0]


def test_a_small_gain_is_called_verified_only_where_it_was() -> None:
    data = climb()
    assert data.result is not None
    data.result.status, data.result.doubt = "provisional", ""
    assert data.result.speedup is not None
    data.result.speedup.value = 1.05
    data.attempts[0].verdict, data.attempts[0].stack = "kept", list(data.result.kept)
    assert "Provisional: verified. Rung claims" in words.total(data)
    for attempt in data.attempts:
        attempt.stack = ["another"]
    assert "Provisional: timed in one restart" in words.total(data)


@pytest.mark.parametrize("status", ["provisional", "verified"])
@pytest.mark.parametrize("all_shapes", [True, False])
def test_nobody_is_told_of_gradients_in_inference(status: str, all_shapes: bool) -> None:
    assert "radients" in words.meaning(status, "train", all_shapes=all_shapes)
    assert "radients" not in words.meaning(status, "infer", all_shapes=all_shapes)


def test_an_interval_from_nothing_to_everything_is_none() -> None:
    assert units.interval(Figure(value=1.5, low=2e-5, high=113369.0)) == "1.50×"
    assert units.interval(Figure(value=20.0, low=1.5, high=200.0)) == "20.0× (1.50–200)"
    assert units.interval(Figure(value=1.5, low=0.5, high=4.0)) == "1.50× (0.50–4.00)"


def test_a_mode_says_in_which_lower_precision_it_is() -> None:
    mode = Mode(
        name="default", title="torch.compile", rungs=["bf16", "compile"], speedup=1.3, step_ns=2e6, ready_seconds=9.0
    )
    assert "torch.compile, in bf16: 1.30×, 2.60 ms → 2.00 ms per step" in terminal.mode_line(mode)
    assert "torch.compile: 1.30×" in terminal.mode_line(replace(mode, rungs=["compile"]))


def test_times_that_do_not_give_the_ratio_are_explained() -> None:
    data = climb()
    assert data.result is not None
    times = {"baseline": Figure(value=70e6), "best": Figure(value=47e6)}
    for value, explained in ((70 / 47, False), (1.02 * 70 / 47, True)):
        data.result.times, data.result.speedup = times, replace(data.result.speedup, value=value)
        assert ("the speedup compares neighbouring rounds" in words.total(data)) is explained


def test_the_untouched_step_beside_the_recipe_is_not_taken_for_the_one_alone() -> None:
    data = climb()
    assert data.result
    assert data.baseline
    for alone, told in ((80e6, True), (70e6, False)):
        data.baseline.time = Figure(value=alone)
        data.result.times = {"baseline": Figure(value=70e6), "best": Figure(value=47e6)}
        assert ("beside the recipe; 80.0 ms when it was timed alone" in terminal.summary(data)) is told


def test_the_memory_of_the_untouched_model_is_that_beside_the_recipe() -> None:
    """On a CPU an attempt runs in forks, which take less than the fresh processes of the last comparison."""
    data = climb()
    assert data.result
    assert data.baseline
    kept, mib = next(a for a in data.attempts[::-1] if a.verdict == "kept"), 2**20
    kept.stack = list(data.result.kept)
    kept.memory = {"best": {"resident": 280 * mib}, "candidate": {"resident": 345 * mib}}
    data.baseline.memory = {"resident": 280 * mib}
    for before, best, fresh, told in ((280, 345, None, ""), (331, 415, [[1.1]], " in fresh processes")):
        data.result.memory = {"baseline": {"resident": before * mib}, "best": {"resident": best * mib}}
        data.result.restarts = fresh
        text = " ".join(terminal.summary(data, width=140).split())
        assert f"per step, peak memory {before} MiB" in text
        assert f"peak memory {before} → {best} MiB{told}. " in text


def test_a_precision_that_made_the_modes_slower_is_named() -> None:
    """`--numerics bf16` and a recipe without bf16 make a user ask why."""
    data = nothing_kept()
    modes = [
        attempt_records.mode("bf16", "compile", title="torch.compile", speedup=0.45),
        attempt_records.mode("compile", title="torch.compile", speedup=1.14),
    ]
    data.attempts = [attempt_records.attempt(rung="plain", verdict="kept", stack=["compile"], modes=modes)]
    said = "bf16 is not in the recipe: the fastest mode with it was torch.compile, 0.45×, and without it 1.14×."
    assert words.slower_precision(data) == said
    assert said in terminal.summary(data, width=200)
    data.attempts[0].modes[0].speedup = 1.3  # type: ignore[index, union-attr]
    assert words.slower_precision(data) == ""


def test_a_climb_whose_budget_ended_says_how_to_go_on() -> None:
    data = nothing_kept()
    data.manifest.why = "the budget of 60 s was too short to test sdpa."
    data.directory = f"runs/{'long' * 20}"
    text = terminal.summary(data, width=60)
    assert f"test sdpa.\nContinue with: rung climb --resume {data.directory}\n" in text


def test_a_list_of_runs_tells_an_early_end_from_a_whole_climb() -> None:
    data = nothing_kept()
    assert climbs.run_line(data).endswith("no recipe")
    data.manifest.why = "the budget of 60 s is spent"
    assert climbs.run_line(data).endswith("no recipe, ended early")


def test_one_sample_is_a_sample() -> None:
    one = Workload(name="mine", mode="infer", samples=1, tokens=8)
    assert words.workload(replace(unfinished().manifest, workload=one)) == "mine (infer, 1 sample, 8 tokens)"


def test_a_dry_run_shows_its_plan_again() -> None:
    text = " ".join(terminal.summary(planned(), width=100).split())
    assert "· channels-last, cudnn-attention: inapplicable. There is none." in text
    assert "sdpa — The rung called sdpa" in text
    assert "Start it with: rung climb --resume 'runs/x y'" in text


def test_many_reasons_are_a_line_with_the_count_and_names_by_kind_of_reason() -> None:
    data = planned()
    because = [("gpu-a", "for GPUs", "A."), ("gpu-b", "for GPUs", "B."), ("chip", "for other chips", "C."), ("odd", "", "D."),
               ("none", "no match in the graph", "E.")]  # fmt: skip
    left = [replace(untried(rung, "inapplicable", why), group=group) for rung, group, why in because]
    left += [untried("stream", "not yet", "it needs bf16."), untried("same", "no-op", "F.")]
    data.plan.rungs = [data.plan.rungs[0], *left]
    shown = [line.strip() for line in terminal.summary(data, width=100).splitlines()]
    head = next(k for k, line in enumerate(shown) if line.startswith("· 7 rungs are not tried here"))
    assert shown[head + 1 : head + 3] == ["not yet: it needs bf16: stream", "for GPUs: gpu-a, gpu-b"]
    assert {"for other chips: chip", "already in effect, or without effect here: same"} <= {*shown[head:]}
    assert "other reasons: odd" in shown[head:]
    assert attempt_words.some(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d, e, f"
    assert attempt_words.some(["a", "b", "c", "d", "e", "f", "g"]) == "a, b, c, d, e and 2 more"
    # In a climb that is over, too.
    done = replace(climb(), attempts=[*climb().attempts, *(row for row in left if row.verdict != "not yet")])
    assert "for GPUs: gpu-a, gpu-b" in terminal.summary(done, width=100)
    assert [attempt_words.name(row) for row in attempt_words.folded(left)] == [row.rung for row in left]


def test_text_of_others_is_neither_markup_nor_a_terminal_command() -> None:
    data = climb()
    data.attempts[0].why = "[red]see \x1b]0;title\x07 [/nothing]"
    data.attempts[1].rung = "[bold]x"
    text = terminal.summary(data, width=140)
    assert "[red]see" in text
    assert "[bold]x" in text
    assert "\x1b" not in text


def test_progress_lines_are_single_lines() -> None:
    for attempt in climb().attempts:
        assert "\n" not in terminal.attempt_line(attempt) + terminal.prediction_line(attempt)
        assert attempt.verdict in terminal.attempt_line(attempt)
    first = climb().attempts[0]
    assert "tf32: kept, 1.39× (1.35–1.43), inside the prediction 1.20–2.00×. " in terminal.attempt_line(first)
    lower = replace(first, why="verified, and faster.")
    assert "1.20–2.00×; verified, and faster." in terminal.attempt_line(lower)
    assert "Predicted 1.20–2.00×: pointwise 30%, waiting for a launch 12% of the step" in terminal.prediction_line(
        first
    )
    assert first.prediction
    told = replace(first, prediction=replace(first.prediction, expected=1.304))
    assert "Predicted 1.20–2.00×, expected 1.30×: pointwise" in terminal.prediction_line(told)
    least = untried("", "", "")
    assert terminal.attempt_line(least) == "  rung: no verdict"
    assert terminal.prediction_line(least) == "rung. No prediction."


def test_predictions_are_said_by_rung_the_farthest_off_first() -> None:
    data = climb()
    by_rung = {"tf32": 3.1, "capture": 9.4}
    data.result.predictions = Predicted(median_error=6.2, decided=3, inside=1, by_rung=by_rung)
    said = "Predictions were off by 6% of a step in the median (capture 9%, tf32 3%); 1 of 3 results were inside"
    assert said in words.predictions(data)
    alone = Predicted(median_error=6.2, decided=1, inside=0, by_rung={"tf32": 6.2})
    data.result.predictions = alone
    said = "The prediction of tf32 was off by 6% of a step; the result was outside the predicted range."
    assert words.predictions(data) == said
    data.result.predictions = replace(alone, inside=1)
    assert words.predictions(data).endswith("; the result was inside the predicted range.")
    missed = replace(untried("x", "kept", ""), prediction_error=12.4)
    assert attempt_words.off(missed) == "12% of a step from what was expected"
    assert attempt_words.off(untried("x", "kept", "")) == words.predictions(unfinished()) == ""


def test_a_missing_breakdown_has_no_lines() -> None:
    assert terminal.breakdown_lines(None) == []
    assert terminal.breakdown_lines(Breakdown(parts={"gemm": float("nan")}, step_ns=0)) == []


def test_importing_the_room_loads_no_jinja2() -> None:
    code = "import sys, rung.report, rung.report.terminal, rung.report.html\n"
    code += "sys.exit(bool({'jinja2', 'torch', 'polars'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rungs_that_were_not_tried_for_one_reason_are_one_row() -> None:
    data = climb()
    never = [untried(name, "no-op", "it is for AMD GPUs.") for name in ("queues", "kernargs", "scratch")]
    data.attempts += [*never, untried("odd", "no-op", "another reason.")]
    rows = attempt_words.folded(data.attempts)
    assert [r.rung for r in rows[-2:]] == ["queues, kernargs, scratch", "odd"]
    assert len(rows) == len(data.attempts) - 2
    assert never[0].rung == "queues"  # the records themselves stay
    text = terminal.summary(data, width=120)
    assert text.count("it is for AMD GPUs.") == 1


def test_where_the_graph_breaks_and_what_is_compiled_anew_is_printed() -> None:
    facts = unfinished().manifest.facts
    assert progress.graph_lines(facts) == []
    facts.graph_breaks = ["model.py:4 in forward: `x.item()`: a number is read (x2)"]
    facts.recompilations = [Recompilation(where="model.py:3 in forward", why="self.calls == 0")]
    text = "\n".join(progress.graph_lines(facts))
    assert "breaks the graph in 1 place:\n    model.py:4 in forward: `x.item()`" in text
    assert (
        "compiles again for a second batch of the same shape:\n    model.py:3 in forward: it was compiled for self.calls == 0"
        in text
    )


def test_a_prediction_names_the_parts_as_the_breakdown_does() -> None:
    asked = replace(untried("compile", "", ""), prediction=Prediction(low=1.1, high=2.0, shares={"launch_gap": 0.7}))
    on_a_gpu = terminal.prediction_line(replace(asked, clock="gpu"))
    on_a_cpu = terminal.prediction_line(replace(asked, clock="cpu"))
    assert "waiting for a launch 70% of the step" in on_a_gpu
    assert "Python and dispatch 70% of the step" in on_a_cpu


def test_on_a_cpu_there_are_operators_and_no_kernels() -> None:
    here = Breakdown(clock="cpu", parts={"gemm": 3e6, "other": 1e6}, kernels=0, launches=0, gemms=111, steps=3)
    assert breakdowns.parts(here)[1][1] == "other operators"
    assert breakdowns.parts(replace(here, clock="gpu"))[1][1] == "other kernels"
    assert breakdowns.per_step(here) == "111 matrix products per step"
    assert (
        breakdowns.per_step(replace(here, kernels=2, launches=1)) == "2 kernels, 1 launch, 111 matrix products per step"
    )
    assert breakdowns.per_step(replace(here, gemms=0)) == ""


def test_one_restart_tells_no_confidence_and_a_comparison_that_sees_nothing_says_nothing_of_it() -> None:
    alone = Compared(
        answer="undecided", speedup=Ratio(value=0.98, low=None, high=None), restarts=1, confidence=0.995, margin=None, visible=None,
        final=True, cut=True,
    )  # fmt: skip
    side = ComparedSide(target="x", options={}, rungs=[], env={})
    result = Comparison(
        units={}, margin=0.01, results_compared=True, verdict="inconclusive", seconds=1.0, a=side, b=side, comparison=alone,
        times={name: Interval(value=1e6, low=1e6, high=1e6) for name in "ab"}, memory={"a": {}, "b": {}},
    )  # fmt: skip
    for compared in (False, True):
        first = compare_lines(replace(result, results_compared=compared))[0]
        assert first.startswith("results not compared") is not compared
    said = "\n".join(compare_lines(result))
    assert "0.98×, without an interval, 1 restart of both" in said
    blind = replace(alone, speedup=Ratio(value=1.65, low=0.1, high=30.0), restarts=2, visible=3.6e17)
    said = "\n".join(compare_lines(replace(result, comparison=blind)))
    assert "1.65×, without an interval, 2 restarts of both" in said
    assert "would have been found" not in said
    seen = replace(alone, visible=0.18)
    said = "\n".join(compare_lines(replace(result, comparison=seen)))
    assert "A change of 18% would have been found in four of five such comparisons." in said
    apart = replace(alone, answer="faster", speedup=Ratio(value=1.21, low=1.04, high=1.42), restarts=20)
    found = replace(result, verdict="faster", comparison=apart)
    same = compare_lines(found)[-1]
    assert same == (
        "A and B are the same, and this machine shows 1.21× (1.04–1.42) between them, 20 restarts of both: trust no smaller difference here."
    )
    other = replace(found, b=replace(side, options={"width": "128"}))
    assert "B is faster than A: 1.21× (1.04–1.42)" in "\n".join(compare_lines(other))
    cpu = replace(alone, speedup=Ratio(value=1.42, low=1.38, high=1.47))
    for waited in (0.02, 0.4):
        said = "\n".join(compare_lines(replace(result, cpu_time=cpu, waited={"a": waited, "b": 0.0})))
        assert ("In CPU time" in said) is ("1.42× (1.38–1.47)" in said) is (waited > 0.1)


def test_a_breakdown_is_as_long_as_what_was_measured() -> None:
    slowed = Breakdown(step_ns=16e6, parts={"gemm": 12e6, "pointwise": 4e6}, clock="cpu")
    shorter = breakdowns.as_measured(slowed, Figure(value=8e6))
    assert shorter == replace(slowed, step_ns=8e6, parts={"gemm": 6e6, "pointwise": 2e6})
    assert breakdowns.as_measured(slowed, Figure(value=20e6)).parts == {"gemm": 15e6, "pointwise": 5e6}
    assert breakdowns.as_measured(slowed, None) == slowed
    assert breakdowns.as_measured(None, Figure(value=8e6)) is None


def test_the_parts_of_a_baseline_add_up_to_the_step_that_was_measured_and_not_to_the_profiled_one() -> None:
    profiled = Breakdown(parts={"gemm": 150e6, "pointwise": 50e6}, step_ns=200e6)
    baseline = Baseline(
        time=Figure(value=1e6), first_run_seconds=1.0, memory={"allocated": 1 << 20}, breakdown=profiled
    )
    shown = "\n".join(progress.baseline_lines(baseline))
    assert "750 µs" in shown
    assert "250 µs" in shown
    assert "150 ms" not in shown
