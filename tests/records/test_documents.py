"""The documents of --json: their schemas are those that are published, and what earlier versions wrote still opens."""

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rung
from rung.cli.main import COMMANDS, main
from rung.hardware.sensors import Watch
from rung.hardware.sensors.reading import Reading
from rung.records.bench import TimerFacts
from rung.records.climb import Begun, ClimbRun, NotBegun
from rung.records.kernels import Inspected, Resources
from rung.records.measured import Compared, Range, Ratio
from rung.records.record import SCHEMA, plain, record_of
from rung.records.schemas import DOCUMENTS, schema
from rung.runs import Run, to_json

ROOT = Path(__file__).parents[2]
EARLIER = sorted((ROOT / "tests" / "data" / "documents").glob("*.json"))


def opened(text: str | bytes, document: str) -> Any:
    return msgspec.json.decode(text, type=DOCUMENTS[document][1])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_published_schema_is_that_of_the_struct(name: str) -> None:
    published = ROOT / "docs" / "schemas" / f"{name}.json"
    assert published.read_text() == schema(name), "run `make schemas`"


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.stem)
def test_a_document_of_an_earlier_version_opens_and_loses_nothing(path: Path) -> None:
    """Written before documents had the version of their schema."""
    found = opened(path.read_bytes(), path.stem.partition("-")[0])
    assert json.loads(to_json(plain(found))) == json.loads(path.read_text()) | {"schema": 1}


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.stem)
def test_a_document_without_one_of_its_fields_or_with_another_type_is_none(path: Path) -> None:
    document = json.loads(path.read_text())
    for name in ("kind", "verdict" if "verdict" in document else "target"):
        if name in document:
            with pytest.raises(msgspec.ValidationError):
                opened(json.dumps(document | {name: 7}), path.stem.partition("-")[0])
            if name != "kind":
                less = {key: value for key, value in document.items() if key != name}
                with pytest.raises(msgspec.ValidationError):
                    opened(json.dumps(less), path.stem.partition("-")[0])


def test_a_field_of_a_later_version_is_passed_over() -> None:
    text = (ROOT / "tests" / "data" / "documents" / "bench.json").read_text()
    assert opened(json.dumps(json.loads(text) | {"new": 1}), "bench") == opened(text, "bench")


def test_what_is_measured_now_is_such_a_document() -> None:
    measured = rung.bench(lambda: sum(range(100)), name="<script>", seconds=0.2)
    two = rung.compare(lambda: 1, lambda: sum(range(9)), seconds=0.1)
    three = rung.compare(lambda: 1, lambda: 2, lambda: sum(range(9)), seconds=0.1)
    for found, name in ((measured, "bench"), (two, "compare"), (three, "compare")):
        text = to_json(found.to_dict())
        assert json.loads(text)["schema"] == SCHEMA
        assert json.loads(to_json(plain(opened(text, name)))) == json.loads(text)


def test_what_is_not_finite_is_null_and_is_read_again() -> None:
    one = Ratio(value=1.5, low=0.0, high=math.inf)
    answer = Compared(
        answer="undecided",
        speedup=one,
        restarts=1,
        confidence=0.98,
        margin=None,
        visible=math.inf,
        final=True,
        cut=True,
    )
    text = to_json(plain(answer))
    again = msgspec.json.decode(text, type=Compared)
    assert again.speedup.high is None
    assert again.visible is None
    assert to_json(plain(again)) == text


MM = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5, "args": {
    "Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"], "Input Strides": [[8, 1], [1, 8]],
    "Concrete Inputs": ["", ""]}}  # fmt: skip
MODEL = ["--hidden=64", "--layers=2", "--heads=2"]
CLIMB = str(ROOT / "tests" / "data" / "run_directory")
PRINTED = {
    "analyze": [["analyze", "t.json"], ["analyze", "t.json", "t.json"]],
    "tables": [["analyze", "t.json", "--show", "ops,timeline"]],
    "analyses": [["analyze", "--show", "list"]],
    "query": [["query", "t.json", "select name, 1.5 as x from events"], ["query", "t.json"]],
    "replay": [["replay", "t.json", "--op", "mm"]],
    "calls": [["replay", "t.json", "--op", "mm", "--list"]],
    "estimate": [["estimate", *MODEL], ["estimate", *MODEL, "--gpu=H100", "--mode=train"],
                 ["estimate", *MODEL, "--gpu=MI300X", "--mode=decode"]],
    "profile": [["profile", "--list"]],
    "climb": [["report", CLIMB, CLIMB]],
    "runs": [["runs", "--in", str(Path(CLIMB).parent)]],
    "rungs": [["rungs"]],
    "apply": [["apply", f"{CLIMB}/recipe.toml", "--device=cpu"]],
    "kernels": [["kernels", "list"]],
    "doctor": [["doctor", "--wait=0.1"]],
    "error": [["estimate"], ["analyze", "nothing.json"]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param(name, words, id="-".join(Path(word).name for word in words))
        for name, calls in PRINTED.items()
        for words in calls
    ],
)
def test_what_a_command_prints_is_the_document_of_its_schema(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every field of it: nothing is lost when it is read, and nothing is added."""
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [MM], "schemaVersion": 1}))
    monkeypatch.chdir(tmp_path)
    main([*words, "--json"])
    text = capsys.readouterr().out
    found = opened(text, name)
    read = json.loads(to_json(msgspec.to_builtins(found)))
    if name == "runs":  # what another version wrote into a run directory is handed on
        assert parts(json.loads(text)).items() <= parts(read).items()
    else:
        assert read == json.loads(text)


def test_what_inspect_prints_is_the_document_of_its_schema() -> None:
    row = Resources("k", "sm90", "num_warps=4", 4, 32, 0, 0, 1024, waves=64.0, most=64, limit="nothing")
    text = to_json(plain(Inspected(rows=[row], failed=["another: could not be read"])))
    assert opened(text, "kernels") == Inspected(rows=[row], failed=["another: could not be read"])
    assert list(json.loads(text)) == ["kind", "schema", "rows", "failed"]


def test_every_command_that_prints_a_document_has_a_schema() -> None:
    without = {"serve", "completion"}  # they refuse --json, or print no document
    named = {word for command, _ in DOCUMENTS.values() for word in re.findall(r"rung (\w+)", command)}
    assert set(COMMANDS) - named == without


class Counted:
    """A sensor of a GPU: 100 J a second, one reading of two throttled."""

    source, limit = "nvml", 700.0

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Reading:
        self.reads += 1
        reasons = ("power",) if self.reads % 2 else ()
        return Reading(
            self.reads, energy=100.0 * self.reads, core=1980.0, memory=2619.0, celsius=60.0, throttled=reasons
        )


def test_what_is_seen_of_a_gpu_is_part_of_a_measurement() -> None:
    watch = Watch(Counted())  # type: ignore[arg-type]
    with watch:
        pass
    seen = watch.summary()
    assert seen is not None
    assert (seen.power, seen.limit) == (100.0, 700.0)
    assert seen.core == Range(median=1980.0, low=1980.0, high=1980.0)
    assert list(seen.throttled) == ["power"]
    assert "energy_per_step" not in plain(seen)
    graph = {"name": "graph", "calls": 20, "launch_ns": 3100.0, "empty_pair_ns": 1500.0, "cold": 1 << 26}
    assert plain(record_of(TimerFacts, graph)) == graph


def parts(value: Any, path: str = "") -> dict[str, Any]:
    """Every plain value with its path."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in parts(item, f"{path}.{key}").items()}
    if isinstance(value, list):
        return {k: v for n, item in enumerate(value) for k, v in parts(item, f"{path}.{n}").items()}
    return {path: value}


def test_a_run_directory_of_an_earlier_version_is_such_a_document() -> None:
    data = Run.open_(ROOT / "tests" / "data" / "run_directory").data()
    found = opened(to_json(data), "climb")
    assert isinstance(found, ClimbRun)
    assert found.result is not None
    assert found.result.plain is not None
    assert found.attempts[0].comparison
    kept = parts(json.loads(to_json(plain(found))))
    lost = {path for path, value in parts(json.loads(to_json(data))).items() if (path, value) not in kept.items()}
    assert lost == set()


def test_a_climb_that_was_stopped_before_it_began_is_a_document_too() -> None:
    text = to_json(plain(NotBegun(manifest=Begun(status="interrupted", why="stopped by Ctrl-C"))))
    assert isinstance(opened(text, "climb"), NotBegun)
    assert json.loads(text)["attempts"] == []
