"""From a command's document to its entry: the figures, what they are of, and nothing large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from climb_sample import climb

from rung.records.history import Entry, Measured
from rung.records.record import plain
from rung.runs.entries import Call, entry_of, full_target

DOCUMENTS = Path(__file__).parents[1] / "data" / "documents"


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCUMENTS / f"{name}.json").read_text())
    return found


def figures(entry: Entry) -> list[tuple[str, str, dict[str, str], float, float | None]]:
    return [(one.name, one.target.rpartition("/")[2], one.variant, one.value, one.low) for one in entry.measured]


def test_a_measurement_is_kept_without_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = document("bench-call")
    entry = entry_of("bench", whole, Call("rung bench ops.py:one", "ops.py:one", call=True))
    time = Measured(
        name="time",
        target=f"{tmp_path}/{whole['target']}",
        options=whole["options"],
        variant={"mode": "call"},
        unit="ns",
        value=whole["time"]["value"],
        low=whole["time"]["low"],
        high=whole["time"]["high"],
    )
    assert entry.measured[0] == time
    assert (entry.of, entry.device, entry.folder) == ("bench", "AMD EPYC", str(tmp_path))
    assert entry.measured[1].name == "memory"
    assert entry.environment
    assert {"torch", "rung"} & set(entry.environment) >= {"rung"}
    assert entry.document == {k: v for k, v in whole.items() if k not in ("samples", "discarded", "environment")}


def test_how_it_was_measured_tells_figures_apart() -> None:
    whole = document("bench-call") | {"timer": {"name": "graph", "calls": 8, "cold": 1 << 20}, "rungs": ["compile"]}
    found = entry_of("bench", whole | {"point": {"n": "7"}}, Call()).measured[0]
    assert found.variant == {"mode": "call", "rungs": "compile", "timer": "graph", "caches": "cold"}
    assert found.options["n"] == "7"


@pytest.mark.parametrize("name", ["bench-sanity", "bench-error"])
def test_what_is_no_measurement_has_no_figure(name: str) -> None:
    whole = document(name)
    entry = entry_of("bench", whole, Call())
    assert entry.measured == []
    assert entry.status == whole["status"]
    assert entry.answer == whole.get("error", "")


def test_one_sample_tells_no_interval() -> None:
    """Its ends are the sample itself."""
    assert figures(entry_of("bench", document("bench"), Call()))[0][-1] is None


def test_a_comparison_has_the_times_of_both_sides_and_the_speedup() -> None:
    entry = entry_of("compare", document("compare"), Call(call=True))
    assert (entry.target, entry.answer) == ("ops.py:one | ops.py:two", "slower")
    assert [one[:3] for one in figures(entry) if one[0] != "memory"] == [
        ("time", "ops.py:one", {"mode": "call"}),
        ("time", "ops.py:two", {"mode": "call"}),
        ("speedup", "ops.py:two", {"mode": "call", "over": full_target("ops.py:one")}),
    ]
    assert "restarts" not in (entry.document or {})


def test_comparisons_on_other_inputs_are_of_other_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    called = [Call(call=True, inputs=inputs) for inputs in ("", "ops.py:small", "ops.py:large")]
    variants = [entry_of("compare", document("compare"), call).measured[0].variant for call in called]
    assert variants == [
        {"mode": "call"},
        {"mode": "call", "inputs": f"{tmp_path}/ops.py:small"},
        {"mode": "call", "inputs": f"{tmp_path}/ops.py:large"},
    ]


def test_a_side_of_another_revision_is_named_by_it_and_not_by_its_checkout() -> None:
    whole = document("compare")
    whole["a"] |= {"target": "/tmp/checkout/ops.py:two", "env": {"PYTHONPATH": "/tmp/checkout", "N": "2"}}
    entry = entry_of("compare", whole, Call(target="ops.py:two", base="main"))
    assert entry.target == "ops.py:two"
    assert entry.measured[0].target == full_target("ops.py:two")
    assert entry.measured[0].variant == {"revision": "main", "$N": "2"}
    assert entry.measured[-1].variant == {"over revision": "main", "over $N": "2"}


def test_sides_that_are_ranked_have_a_time_each() -> None:
    whole = document("compare-ranking")
    entry = entry_of("compare", whole, Call())
    assert len([one for one in entry.measured if one.name == "time"]) == len(whole["sides"])


def test_sides_that_are_not_equal_have_no_figure() -> None:
    whole = document("compare")
    for name in ("times", "memory", "comparison", "environment", "unit"):
        del whole[name]
    entry = entry_of("compare", whole | {"verdict": "not equal"}, Call())
    assert (entry.measured, entry.answer, entry.device) == ([], "not equal", "")


def test_a_climb_has_its_answer_and_leaves_the_rest_to_its_directory() -> None:
    whole = plain(climb())
    whole["result"]["status"] = "confirmed"
    entry = entry_of("climb", whole, Call())
    assert entry.directory == str(Path(whole["directory"]).absolute())
    assert entry.created == whole["manifest"]["created"]
    assert entry.answer == f"{' + '.join(whole['result']['kept'])}, confirmed"
    assert {one.variant.get("side") for one in entry.measured if one.name == "time"} >= {"baseline", "best"}
    assert [one.value for one in entry.measured if one.name == "speedup"] == [whole["result"]["speedup"]["value"]]
    assert entry.document
    assert "attempts" not in entry.document
    assert "restarts" not in entry.document["result"]


def test_a_recording_is_found_by_its_folder() -> None:
    entry = entry_of("profile", document("profile"), Call(target="model.py:make"))
    assert (entry.target, entry.directory) == ("model.py:make", "/home/you/prof")
    assert entry.answer.startswith("torch: operators")
    assert "analysis" not in (entry.document or {})


@pytest.mark.parametrize("name", ["bench-call", "bench", "compare", "compare-ranking", "profile"])
def test_an_entry_is_a_record_that_can_be_written(name: str) -> None:
    entry = entry_of(name.partition("-")[0], document(name), Call())
    assert msgspec.convert(plain(entry), Entry) == entry


@pytest.mark.parametrize(
    ("target", "full"),
    [
        ("tiny-transformer", "tiny-transformer"),
        ("hf:Qwen/Qwen3-0.6B", "hf:Qwen/Qwen3-0.6B"),
        ("package.module:name", "package.module:name"),
        ("here:name", "{here}/here.py:name"),
        ("folder.module:name", "{here}/folder/module.py:name"),
        ("model.py:make", "{here}/model.py:make"),
        ("../b/model.py:make", "{up}/b/model.py:make"),
        ("kernelbench:a/1.py", "kernelbench:{here}/a/1.py"),
    ],
)
def test_a_file_is_named_by_its_whole_path(target: str, full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file in ("here.py", "folder/module.py"):
        (tmp_path / file).touch()
    assert full_target(target) == full.format(here=tmp_path, up=tmp_path.parent)
