"""The face of the commands: quick help, clear errors with their exit codes, one JSON document on stdout."""

import argparse
import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rung.cli.common import target_options
from rung.cli.main import main
from rung.errors import InputError
from rung.ladder.climb import Climb
from rung.recipes.recipe import Recipe
from rung.runs import Run, write_whole
from rung.timing.compare_here import compare_here

MICRO = f"{Path(__file__).parents[1] / 'helpers' / 'micro.py'}:make"
TINY = ["tiny-transformer", "--hidden-dim", "32", "--num-layers", "1", "--num-heads", "2", "--seq-len", "8", "--mode", "infer", "--batch-size", "2"]  # fmt: skip

# A function that needs no torch.
NAPS = "import time\n\n\ndef nap():\n    time.sleep(0.002)\n"
PRINTS = """
import torch
from rung import Workload
print("loading")
def make(n: int = 1): return Workload("prints", lambda: torch.nn.Linear(4, 4), lambda seed: torch.ones(2, 4))
def broken(): raise ValueError("no weights here")
def exits(): raise SystemExit(3)
"""


def test_help_costs_little_and_loads_neither_torch_nor_polars() -> None:
    code = "import sys; sys.argv = ['rung', '--help']\nfrom rung.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "print({'torch', 'polars', 'numpy'} & set(sys.modules))"

    def spent(code: str) -> tuple[float, str]:
        """Seconds of the CPU."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout + done.stderr

    times = []
    for _ in range(5):
        # One right after the other: the machine may change its speed.
        (bare, _), (helped, said) = spent("pass"), spent(code)
        assert said.endswith("set()\n"), said
        times.append(helped / bare)
    assert min(times) < 10


@pytest.mark.parametrize("command", ["climb", "bench", "profile", "report", "runs"])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"  rung {command} " in text[text.index("example") :]
    assert "--json" in text


def test_no_command_at_all_is_answered_with_the_help() -> None:
    done = subprocess.run([sys.executable, "-m", "rung"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "climb" in done.stdout


def test_help_after_a_target_lists_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["climb", "tiny-transformer", "--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--batch-size", "--seq-len", "--hidden-dim", "--num-layers", "--num-heads", "--learning-rate",
                   "--use-amp", "--num-steps", "--mode", "--size"):  # fmt: skip
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["climb"], 2, "give a TARGET"),
        (
            ["climb", "tiny-transformer", "--rungs", "turbo"],
            2,
            "there is no rung 'turbo'; `rung rungs` lists those that there are",
        ),
        (["climb", "tiny-transformer", "--rungs", "captur"], 2, "there is no rung 'captur'; did you mean capture?"),
        (["climb", "tiny-transformer", "--rungs", "compile,compile"], 2, "compile is named 2 times; once is enough."),
        (["climb", "tiny-transformer", "stray"], 2, "unexpected argument 'stray'"),
        (["climb", "no_such_file.py:make"], 2, "no_such_file.py"),
        (["climb", "tiny-transformer", "--hiden-dim", "3"], 2, "no option --hiden-dim"),
        (["climb", "tiny-transformer", "--device", "cuda:99"], 2, "--device cuda:99"),
        (["climb", "tiny-transformer", "--numeric", "bf16"], 2, "rung climb itself has --numerics."),
        (["clim", "tiny-transformer"], 2, "there is no command 'clim': did you mean `rung climb`?"),
        (["xyzzy"], 2, "there is no command 'xyzzy': `rung --help` lists them."),
        (["bench", "tiny-transfomer"], 2, "unknown target 'tiny-transfomer': did you mean 'tiny-transformer'?"),
        (["bench", "tiny-transformer", "--prset=quick"], 2, "rung bench itself has --preset."),
        (["bench", "tiny-transformer", "--budget", "20"], 2, "rung bench itself has --time."),
        (["climb", "tiny-transformer", "--time", "20"], 2, "rung climb itself has --budget."),
        (
            ["runs", "--jsn"],
            2,
            "unexpected argument '--jsn'; `--help` lists what the command takes. Did you mean --json?",
        ),
        (["climb", "--resume", "nowhere", "--bugdet=9"], 2, "Did you mean --budget?"),
        (["climb", "--resume", "nowhere"], 3, "nowhere is not a run directory"),
        (["bench", "tiny-transformer", "--recipe", "missing.toml"], 3, "missing.toml could not be read"),
        (["report", "nowhere"], 3, "nowhere is not a run directory"),
        (["climb", "tiny-transformer", "--res", "64"], 2, "no option --res"),
        (["climb", "--size", "tiny", "tiny-transformer"], 2, "put TARGET first"),
        (["bench", "--size", "tiny", "tiny-transformer"], 2, "put TARGET first"),
        (["compare", "--size", "tiny", "tiny-transformer"], 2, "put TARGET first"),
        (["climb", "tiny-transformer", "--device", "cudax"], 2, "unknown device 'cudax'"),
        (["climb", "tiny-transformer", "--budget", "soon"], 2, "rung: --budget: 'soon' is not a time"),
        *(
            (["climb", "--resume", "x", *option], 2, f"{option[0]} cannot be changed by --resume")
            for option in (
                ["--rungs", "compile"],
                ["--numerics", "bf16"],
                ["--device", "cpu"],
                ["--out", "y"],
                ["--deadline", "900"],
                ["--dry-run"],
            )
        ),
    ],
)
def test_an_error_is_one_sentence_with_its_exit_code(
    arguments: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    captured = capsys.readouterr()
    last = captured.err.splitlines()[-1]
    assert last.startswith("rung: ")
    assert says in last
    assert "usage:" not in captured.err  # a dozen lines of options, above the one that helps
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not list(tmp_path.glob(".rung/*"))


def test_where_the_target_has_an_option_like_a_misspelt_one_the_commands_are_not_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "tiny-transformer", "--batch-siz", "2"]) == 2
    assert capsys.readouterr().err.endswith("has no option --batch-siz; did you mean --batch-size?\n")


@pytest.mark.parametrize("command", ["climb", "bench", "compare", "profile"])
@pytest.mark.parametrize("words", [["tiny-transfomer"], ["none.py:make"], ["tiny-transformer", "--device", "cudax"]])
def test_what_is_misspelt_is_refused_before_a_process_is_started(
    command: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", started)
    assert main([command, *words]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("rung: ")


def test_an_error_is_a_document_where_json_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["climb", "no_such_file.py:make", "--json"]) == 2
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["kind"], found["exit_code"]) == ("error", 2)
    assert captured.err.rstrip().endswith(found["error"])


@pytest.mark.parametrize(
    "words",
    [["no-such-command"], ["climb", "t", "--budget", "soon"], ["bench", "t", "--preset", "x"], ["bench", "--device"]],
)
def test_what_the_parser_refuses_is_a_document_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json"]) == 2
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["kind"], found["exit_code"]) == ("error", 2)
    assert captured.err.endswith(f"rung: {found['error']}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_comparison_that_is_stopped_is_one_document_and_leaves_no_worker(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("rung.timing.compare.compare", stopped)
    before = [(n, signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # where it is not asked for, it must not end the tests
    try:
        assert main(["compare", MICRO, "--rungs", "compile", "--json"]) == 130
    finally:
        for n, handler in before:
            signal.signal(n, handler)
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["exit_code"]) == ("error", 130)


def test_a_workload_that_fails_under_bench_is_one_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fails.py").write_text("def soon():\n    raise ValueError('no')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "fails.py:soon", "--call", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["exit_code"]) == ("error", 4)
    assert "no" in found["error"]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--rungs", ""], "'' has an empty name"),
        (["--rungs", "tf32,,compile"], "'tf32,,compile' has an empty name"),
        *((["--budget", bad], f"{bad!r} is not a time") for bad in ("nan", "inf", "0", "soon")),
        (["--budget=-1"], "'-1' is not a time"),
        (["--deadline", "nan"], "'nan' is not a time"),
    ],
)
def test_a_value_that_is_none_is_refused(option: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("climb", "compare"):
        assert main([command, "tiny-transformer", *option]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert says in last


def test_options_with_their_value_attached_may_stand_before_the_target() -> None:
    options = target_options(
        argparse.Namespace(
            rest=["--size=tiny", "--mode", "infer"], words=["climb", "--size=tiny", "t", "--mode", "infer"]
        )
    )
    assert options == {"size": "tiny", "mode": "infer"}


def test_help_names_the_kinds_of_a_targets_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kinds.py"
    file.write_text("def make(width: int = 3, rate: float | None = None, plain=True, bare=None): ...\n")
    assert main(["climb", f"{file}:make", "--help"]) == 0
    text = capsys.readouterr().out
    for line in ("--width  int (default 3)", "--rate  float", "--plain  bool (default True)", "--bare  text"):
        assert f"  {line}\n" in text


def test_help_for_a_target_that_there_is_not_is_the_error_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "no_such_file.py:make", "--help", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def manifest(**more: Any) -> dict[str, Any]:
    """The least that a climb's manifest holds."""
    device = {"name": "a chip", "memory": 1, "arch": "x"}
    return {"schema": 1, "status": "running", "why": "", "target": MICRO, "numerics": "exact", "facts": {"gpu": False, "mode": "train", "rates": {}, "matches": {}, "skipped": [], "graph_breaks": [],
                      "without_gradient": []},
            "request": {"target": MICRO}, "workload": {"name": "micro", "mode": "train"},
            "environment": {"torch": "0.1", "device": device}, **more}  # fmt: skip


def test_a_damaged_run_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "c"):
        Run.create(Path(".rung"), name, Path(".rung") / name).write("manifest.json", manifest())
    Run.create(Path(".rung"), "b", Path(".rung/b")).write("manifest.json", {"schema": 1})
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [".rung/a", ".rung/b", ".rung/c"]
    assert lines[1].startswith(".rung/b  damaged: ")
    assert main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found[1]) == ["directory", "error"]
    assert found[2]["manifest"]["status"] == "running"
    assert main(["climb", "--resume", ".rung/b"]) == 3
    assert "missing required field `status`" in capsys.readouterr().err


def test_resuming_a_damaged_attempt_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path, "x", tmp_path / "x")
    run.write("manifest.json", manifest())
    run.write("attempts/01-compile.json", {})
    assert main(["climb", "--resume", str(run.directory)]) == 3
    assert "01-compile.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("measured", [True, False])
def test_ctrl_c_still_answers_in_one_json_document(
    measured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(climb: Climb, dry: bool) -> None:
        if measured:
            climb.run.write("manifest.json", manifest())
        raise KeyboardInterrupt

    monkeypatch.setattr(Climb, "_climb", interrupted)
    monkeypatch.chdir(tmp_path)
    assert main(["climb", "tiny-transformer", "--out", "run", "--json"]) == 130
    data = json.loads(capsys.readouterr().out)
    assert data["manifest"]["status"] == "interrupted"
    assert data["directory"] == ("run" if measured else None)
    assert Path("run").exists() == measured  # else the same --out would be refused


def test_a_page_that_cannot_be_written_costs_no_answer_of_a_climb_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(climb: Climb, dry: bool) -> None:
        climb.run.write("manifest.json", manifest())
        (climb.run.directory / "report.html").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(Climb, "_climb", interrupted)
    monkeypatch.chdir(tmp_path)
    assert main(["climb", "tiny-transformer", "--out", "run", "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["manifest"]["status"] == "interrupted"
    assert "rung climb --resume run" in captured.err
    assert "report.html could not be written" in captured.err


def test_the_way_on_can_be_pasted_into_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(climb: Climb, dry: bool) -> None:
        climb.run.write("manifest.json", manifest())
        raise KeyboardInterrupt

    monkeypatch.setattr(Climb, "_climb", interrupted)
    monkeypatch.chdir(tmp_path)
    assert main(["climb", "tiny-transformer", "--out", "my run"]) == 130
    assert "rung climb --resume 'my run'" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [[], ["--json"]])
def test_a_recipe_that_was_refuted_ends_with_the_same_code_either_way(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done(climb: Climb, dry: bool) -> dict[str, Any]:
        climb.run.write("manifest.json", manifest())
        return {
            **climb.run.data(),
            "result": {"kept": [], "taken_back": [{"kept": ["compile"], "why": "", "seconds": 1.0}]},
        }

    monkeypatch.setattr(Climb, "climb", done)
    monkeypatch.setattr("rung.report.html.render", lambda data, traces=None: "")
    monkeypatch.setattr("rung.report.terminal.summary", lambda data, width, color: "")
    monkeypatch.chdir(tmp_path)
    assert main(["climb", "tiny-transformer", *asked]) == 1


def test_bench_answers_in_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *TINY, "--num-steps", "12", "--time", "0.5", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert len(result["samples"]) >= 12
    assert result["time"]["low"] <= result["time"]["value"] <= result["time"]["high"]
    assert result["kind"] == "bench"
    assert {result["units"][name] for name in ("time", "summary", "samples")} == {"ns"}
    assert (result["samples_per_step"], result["tokens_per_step"]) == (2, 16)
    assert result["environment"]["torch"]


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from rung.runs import write_whole\n"
        "path = Path(sys.argv[1]); write_whole(path, 'old')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: write_whole(path, 'new' * 10000)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], capture_output=True, text=True)
    assert done.stdout.startswith("InputError")
    assert "could not be written" in done.stdout
    assert (tmp_path / "f").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("code", "mend"), [(errno.ENOSPC, "free some space or give"), (errno.EPERM, "; give")])
def test_space_is_asked_for_where_it_lacks(
    code: int, mend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(InputError, match=re.escape(f"could not be written: {os.strerror(code)}")) as refused:
        write_whole(tmp_path / "x", "text", "give another --html")
    assert f"{mend} another --html." in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--html", "--csv"])
def test_a_file_that_cannot_be_written_costs_no_answer_and_adds_no_second_document(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "naps.py").write_text(NAPS)
    asked = [option, str(tmp_path / "file" / "out"), "--json"]
    assert main(["bench", f"{tmp_path}/naps.py:nap", "--call", "--preset", "quick", *asked]) == 3
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["samples"]) == 5
    assert "could not be written" in captured.err
    assert f"; give another {option}." in captured.err
    assert "free some space" not in captured.err


def test_a_run_where_nothing_can_be_written_is_still_shown_and_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path, "old", tmp_path / "old")
    run.write("manifest.json", manifest())
    for name in ("report.html", ".report.html.partial", ".lock"):  # a folder can be written by nobody, be it root
        (run.directory / name).mkdir()
    assert main(["report", str(run.directory), "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["manifest"]["target"] == MICRO
    assert "report.html could not be written" in captured.err
    assert main(["climb", "--resume", str(run.directory), "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["exit_code"] == 3
    assert captured.err.startswith(f"rung: {run.directory}/.lock: Is a directory; ")


def test_a_mistake_of_our_own_does_not_say_worse(tmp_path: Path) -> None:
    code = (
        "import sys; from rung.cli import main, runs\n"
        "def wrong(parsed): raise KeyError('wrong')\n"
        "runs.run = wrong; sys.argv = ['rung', 'runs']; main.command()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 70
    assert "KeyError" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["runs", "query"])
@pytest.mark.parametrize("answered", [False, True])
def test_a_mistake_of_our_own_is_one_document_where_json_is_asked_for(
    command: str, answered: bool, tmp_path: Path
) -> None:
    code = (
        f"import sys; from rung.cli import common, main, {command} as called\n"
        "def wrong(parsed):\n"
        f"    if not {answered}: raise KeyError('wrong')\n"
        '    print(\'{"kind": "answer"}\')\n'
        "    with common.after_the_answer(): raise KeyError('wrong')\n"
        f"called.run = wrong; sys.argv = ['rung', '{command}', '--json']; main.command()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 70
    assert "KeyError" in done.stderr
    found = json.loads(done.stdout)
    error = {"kind": "error", "schema": 1, "error": "a bug in Rung: KeyError: 'wrong'", "exit_code": 70}
    assert found == ({"kind": "answer"} if answered else error)


def test_what_a_target_prints_is_no_part_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.toml").write_text(Recipe(("compile",)).text())
    (tmp_path / "prints.py").write_text(PRINTS)
    monkeypatch.chdir(tmp_path)
    assert main(["apply", "recipe.toml", "prints.py:make", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["changes"]
    assert "loading" in captured.err
    assert main(["bench", "prints.py:make", "--help"]) == 0
    assert "loading" not in capsys.readouterr().out.splitlines()


def test_what_a_target_raises_in_our_own_process_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.toml").write_text(Recipe(("compile",)).text())
    (tmp_path / "prints.py").write_text(PRINTS)
    monkeypatch.chdir(tmp_path)
    assert main(["apply", "recipe.toml", "prints.py:broken", "--json"]) == 4
    assert (
        json.loads(capsys.readouterr().out)["error"]
        == "prints.py:broken: ValueError: no weights here (prints.py:6, in broken)"
    )
    assert main(["apply", "recipe.toml", "prints.py:exits", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"] == "prints.py:exits: SystemExit: 3 (prints.py:7, in exits)"


def test_bench_stops_when_the_median_is_known_and_says_what_it_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "naps.py").write_text(NAPS)
    assert main(["bench", f"{tmp_path}/naps.py:nap", "--call", "--target", "50%", "--time", "10", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["reached"] == result["steady"]  # on a machine whose load comes and goes it may be neither
    assert result["summary"]["mean"]
    assert main(["bench", *TINY, "--target", "0.0001%", "--time", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "not yet within ±0.0001%" in out
    assert "histogram" in out
    assert "FLOP/s" in out


def test_sanity_is_never_reported_as_a_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "naps.py").write_text(NAPS)
    assert main(["bench", f"{tmp_path}/naps.py:nap", "--call", "--preset", "sanity"]) == 0
    out = capsys.readouterr().out
    assert "This is not a measurement" in out
    assert "interval" not in out


def test_a_sweep_is_a_table_and_a_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [*TINY[:-2], "--num-steps", "10", "--time", "0.2"]
    assert main(["bench", *small, "--sweep", "batch-size=1,2", "--csv", str(tmp_path / "s.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| batch-size | median step |")
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1", "2"]
    rows = (tmp_path / "s.csv").read_text().splitlines()
    assert rows[0] == "workload,batch-size,step,ns,flops_per_second"
    assert len(rows) > 20
    assert main(["bench", *small, "--sweep", "batch-size"]) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sweep", "n=1,2", "--sweep", "n=3"], "--sweep n was given twice"),
        (["--sweep", "a_b=1,2", "--a-b", "9"], "the option would have two values"),
    ],
)
def test_an_option_is_given_its_values_in_one_place(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "tiny-transformer", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is always full")
def test_an_answer_that_does_not_fit_on_the_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rung.cli.main", "analyze", "--show", "list"],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 3
    assert (
        done.stderr
        == "rung: the answer could not be written: No space left on device; free some space and run the command again.\n"
    )


def test_progress_that_nobody_reads_stops_no_work_and_changes_no_exit_code(tmp_path: Path) -> None:
    works = "from rung.cli.common import say; say('one'); say('two'); print('done')"
    refused = "from rung.cli.main import command; import sys; sys.argv = ['rung', 'report', 'no-such-run']; command()"
    for code, expected in ((works, (0, "done\n")), (refused, (3, ""))):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write, text=True, cwd=tmp_path
        )
        os.close(write)
        assert (done.returncode, done.stdout) == expected


@pytest.mark.parametrize(
    ("begun", "way"), [(True, "go on with `rung climb --resume 'my run'`"), (False, "or empty it")]
)
def test_a_folder_that_is_not_empty_names_a_way_that_there_is(
    begun: bool, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run.create(tmp_path, "x", Path("my run"))
    if begun:
        run.write("manifest.json", manifest())
    assert main(["climb", "tiny-transformer", "--out", "my run"]) == 2
    assert way in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "rung.cli.main", "analyze", "--show", "list"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_closed_output_is_no_mistake() -> None:
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        call = f"{sys.executable} -m rung.cli.main analyze --show list {closed}"
        done = subprocess.run(["sh", "-c", call], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "t.json", "--show", "kernels", "--steps", "0"], ["analyze", "t.json", "--steps", "-2"],
        ["analyze", "t.json", "--show", "kernels", "--top", "-1"], ["query", "t.json", "select 1", "--steps", "0"],
        ["diff", "t.json", "t.json", "--top", "-1"], ["diff", "t.json", "t.json", "--new-steps", "0"],
    ],
)  # fmt: skip
def test_a_number_that_counts_nothing_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "must be a whole number, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fail-if-slowr", "2%"], "Did you mean --fail-if-slower?"),
        (["--batch", "8"], "unexpected argument '--batch'"),
        *(
            (option.split(), f"{option.split()[0]} needs a comparison that runs now")
            for option in ("--verify", "--budget 5", "--rungs compile", "--recipe compare.py", "--env A=1", "--call")
        ),
        (["--base=main"], "--base needs a comparison that runs now"),
    ],
)
def test_two_files_of_measurements_take_no_option_of_a_comparison_that_runs(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compare.py").write_text("")
    assert main(["compare", "monday.json", "tuesday.json", *words]) == 2
    assert said in capsys.readouterr().err


def test_two_files_of_measurements_do_with_options_of_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.rung.compare]\nbudget = 5\nverify = true\n")
    assert main(["compare", "monday.json", "tuesday.json"]) == 3  # there is no such file: it was looked at
    assert "monday.json" in capsys.readouterr().err


def test_only_who_can_follow_it_is_told_to_ask_for_fresh_processes() -> None:
    """`fresh=True` is of rung.compare, and takes functions without arguments."""
    torch = pytest.importorskip("torch")

    def warnings(inputs: Any, *calls: Any) -> str:
        answer = compare_here(dict(zip("fg", calls, strict=True)), seconds=0.05, device="cpu", inputs=inputs)
        assert "all sides ran in one process" in " ".join(answer.warnings)
        return " ".join(answer.warnings)

    def make(seed: int) -> Any:
        return torch.randn(64, generator=torch.Generator().manual_seed(seed))

    assert "fresh=True" in warnings(None, lambda: sum(range(99)), lambda: sum(range(99)))
    assert "fresh=True" not in warnings(make, torch.relu, lambda x: x.clamp(min=0))


@pytest.mark.parametrize(
    "words",
    [
        ["query", "t.json", "select 1", "--timeout", "1e10"],
        ["query", "t.json", "select 1", "--memory", "9000000T"],
        ["query", "t.json", "select 1", "--top", "9" * 20],
        ["runs", "list", "--most", "9" * 20],
        ["analyze", "t.json", "--steps", "9" * 23],
        ["diff", "t.json", "t.json", "--base-steps", "9" * 22],
        ["diff", "t.json", "t.json", "--new-steps", "9" * 22],
    ],
)
def test_a_number_that_no_library_counts_to_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert f"{words[-2]}: {words[-1]!r} is too " in capsys.readouterr().err


def test_options_may_stand_before_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--json", "runs"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["--debug", "--json", "analyze", "none.json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == 3
    assert "Traceback" in err
    assert main(["--jsn", "analyze", "none.json"]) == 2
    assert "unexpected argument '--jsn'" in (said := capsys.readouterr().err)
    assert "Did you mean --json?" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--k8s-nodes", "2"], "--k8s-nodes needs --k8s-manifest"),
        (["--k8s-image=x", "--slurm", "1"], "--k8s-image needs --k8s-manifest"),
        (["--partition", "gpu"], "--partition needs --slurm"),
        (["--dry-run"], "--dry-run needs --slurm"),
        (["--container", "x", "--k8s-manifest", "-", "--k8s-image", "x"], "--container needs --slurm"),
    ],
)
def test_an_option_of_a_job_alone_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "none.py:make", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_point_of_a_sweep_that_is_refused_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "naps.py").write_text(NAPS)
    target = f"{tmp_path}/naps.py:nap"
    assert main(["bench", target, "--call", "--preset", "sanity", "--sweep", "size=1,2"]) == 2
    out, err = capsys.readouterr()
    assert "failed" in out
    assert err.count("has no option --size") == 1
    assert f"rung: size=1: {target} has no option --size" in err


@pytest.mark.parametrize(
    ("line", "words", "said"),
    [
        ("steps = 0", ["profile", "naps.py:nap", "--dry-run"], "--steps must be at least 1"),
        ('gpu = "nogpu"', ["estimate", "--hidden", "64", "--layers", "1", "--heads", "1"], "no GPU named 'nogpu'"),
        ('device = "cudax"', ["bench", "naps.py:nap", "--call"], "unknown device 'cudax'"),
    ],
)
def test_a_value_that_only_the_command_refuses_names_its_file(
    line: str,
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "naps.py").write_text(NAPS)
    (tmp_path / "pyproject.toml").write_text(f"[tool.rung]\n{line}\n")
    assert main(words) == 2
    assert f"rung: {tmp_path}/pyproject.toml [tool.rung]: {said}" in capsys.readouterr().err
    name, _, value = line.replace('"', "").partition(" = ")
    assert main([*words, f"--{name}", value]) == 2
    assert f"rung: {said}" in capsys.readouterr().err
