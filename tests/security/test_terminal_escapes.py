"""Names in traces, runs and recipes are a stranger's: no command passes a control sequence of theirs on to a terminal."""

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.cli.main import main
from rung.cli.output import Visible, raw
from rung.runs import Run
from rung.text import HIDDEN, visible

EVIL = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b31m\r\u202eover\x08\x7f"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
QUERY = "select * from events"


@given(st.text())
def test_visible_text_has_no_character_that_a_terminal_obeys(text: str) -> None:
    shown = visible(text)
    assert not CONTROLS.search(shown)
    assert len(shown) == len(text)
    assert all(a in (b, HIDDEN) for a, b in zip(shown, text, strict=True))
    shown.encode()


@given(st.text().filter(str.isprintable))
def test_what_can_be_printed_stays(text: str) -> None:
    assert visible(text) == text.replace("\u200e", HIDDEN)


def test_our_own_colors_pass() -> None:
    stream = io.StringIO()
    Visible(stream).writelines(["\x1b[1mtitle\x1b[0m\n"])
    assert stream.getvalue() == f"{HIDDEN}[1mtitle{HIDDEN}[0m\n"
    assert raw(Visible(stream)) is stream  # type: ignore[arg-type]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A trace, a run and a recipe in which every text is hostile, below names that are."""
    monkeypatch.chdir(tmp_path)
    folder = Path(f"folder{EVIL}")
    folder.mkdir()
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 0, "args": {"device": 0, "stream": 0, "correlation": 1}}
    call = {"ph": "X", "cat": "cuda_runtime", "pid": EVIL, "tid": EVIL, "args": {"correlation": 1}}
    op = {"ph": "X", "cat": "cpu_op", "pid": EVIL, "tid": EVIL, "args": {"Input Dims": [[EVIL]], "Input type": [EVIL]}}
    events = [each | {"name": EVIL + each["cat"], "ts": 10 * k, "dur": 5} for k, each in enumerate((op, call, kernel))]
    top = {"deviceProperties": [{"id": 0, "name": EVIL}], "traceName": EVIL, "distributedInfo": {"backend": EVIL}}
    trace = folder / "trace.json"
    trace.write_text(json.dumps(top | {"traceEvents": events}))
    run = Run.create(Path("runs"), "a")
    run.write("manifest.json", manifest())
    Run.create(Path("runs"), f"b{EVIL}").write("manifest.json", {"schema": 1, EVIL: EVIL})
    recipe = folder / "recipe.toml"
    recipe.write_text(f'[recipe]\nstatus = "{EVIL.encode("unicode_escape").decode()}"\n', "utf-8")
    return {"TRACE": str(trace), "RUN": str(run.directory), "RECIPE": str(recipe), "FOLDER": str(folder)}


def manifest() -> dict[str, Any]:
    facts = {"gpu": True, "mode": EVIL, "rates": {}, "matches": {}, "skipped": [EVIL], "graph_breaks": [EVIL]}
    return {
        "schema": 1, "status": EVIL, "why": EVIL, "target": EVIL, "numerics": EVIL, "request": {},
        "workload": {"name": f"{EVIL}\nkept: a line of its own", "mode": EVIL},
        "environment": {"torch": EVIL, "device": {"name": EVIL, "memory": 1}},
        "facts": facts | {"without_gradient": [EVIL]},
    }  # fmt: skip


COMMANDS = [
    "runs --in runs",
    "report RUN",
    "apply RECIPE",
    "analyze TRACE",
    "analyze TRACE --show kernels,ops,timeline,launches,findings,completeness",
    f"analyze TRACE --show {EVIL.replace(' ', '')}",
    "analyze FOLDER",
    "diff TRACE TRACE --by category,op,shape,module,instance,kernel",
    "query TRACE",
    "replay TRACE --op mm --list",
    "climb RECIPE",
    "bench RECIPE",
    "compare RECIPE RECIPE",
    "profile --dry-run RECIPE",
    "estimate RECIPE",
    "kernels resources RECIPE",
    "doctor --oops RECIPE",
    f"{EVIL}",
]


@pytest.mark.parametrize("command", [*COMMANDS, "query TRACE SELECT", "runs --in runs --json", "report RUN --json"])
def test_no_command_passes_on_a_control_sequence(
    places: dict[str, str], capfd: pytest.CaptureFixture[str], command: str
) -> None:
    words = [QUERY if word == "SELECT" else places.get(word, word) for word in command.split(" ")]
    code = main(words)
    sys.stdout.flush()
    out, err = capfd.readouterr()
    assert code in (0, 2, 3, 4), err
    assert out or err
    assert not CONTROLS.search(out + err)
    if "--json" not in words:
        assert "\nkept: a line" not in out


def test_json_is_exact(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", places["TRACE"], "select distinct pid from events where kind = 'runtime'", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [{"pid": EVIL}]


def test_csv_is_exact_for_a_program_and_visible_on_a_terminal(
    places: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["query", places["TRACE"], "select distinct pid from events where kind = 'runtime'", "--csv", "-"]
    assert main(words) == 0
    assert "\x1b]0;title" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(words) == 0
    assert not CONTROLS.search(capsys.readouterr().out)


def test_a_name_that_is_no_utf8_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")]) == 3
    assert HIDDEN in capsys.readouterr().err
