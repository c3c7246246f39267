"""Two measurements that were kept as files: what changed, and what differs around them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rung.cli.main import main
from rung.errors import InputError
from rung.timing.saved import compare_saved, read


def kept(path: Path, median: float, count: int = 10, work: dict[str, Any] | None = None, **changed: Any) -> Path:
    environment = {"torch": "2.6", "settings": {"cpu_governor": "performance"}, "now": {"load": [1]}, **changed}
    path.write_text(
        json.dumps(
            {
                "target": "m.py:make",
                "time": {"value": median, "low": 0.99 * median, "high": 1.01 * median},
                "samples": [median] * count,
                "environment": environment,
                **(work or {}),
            }
        )
    )
    return path


def test_a_change_beyond_both_intervals_is_told_with_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = kept(tmp_path / "a.json", 1e6)
    b = kept(tmp_path / "b.json", 1.2e6, settings={"cpu_governor": "powersave"}, now={"load": [9]})
    assert compare_saved(a, b).verdict == "slower"
    assert compare_saved(b, a).verdict == "faster"
    assert compare_saved(a, a).verdict == "inconclusive"
    assert main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "20.0% slower" in out
    assert main(["compare", str(b), str(a)]) == 0
    assert "20.0% faster" in capsys.readouterr().out  # of the speed, as in every other comparison
    assert main(["compare", str(kept(tmp_path / "c.json", 5e6)), str(a)]) == 0
    assert "5.00× faster" in capsys.readouterr().out
    assert "differs in settings.cpu_governor: performance and powersave" in out
    assert "load" not in out
    assert "two processes at two times" in out
    assert main(["compare", str(a), str(b), "--fail-if-slower", "5%", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["rows"][0]["apart"]
    assert main(["compare", str(a), str(b), "--fail-if-slower", "30%"]) == 0


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    for name, text in {
        "x": "{",
        "y": "[]",
        "z": '{"time": 1}',
        "w": '[{"time": {"value": 0, "low": 0, "high": 0}}]',
    }.items():
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        with pytest.raises(InputError, match=f"{name}.json"):
            read(path)
    with pytest.raises(InputError, match="could not be read"):
        read(tmp_path / "none.json")
    good = json.loads(kept(tmp_path / "a.json", 1e6).read_text())
    other = copy.deepcopy(good)
    other["target"] = "n.py:make"
    (tmp_path / "two.json").write_text(json.dumps([good, {**good, "point": {"batch": "1"}}]))
    (tmp_path / "b.json").write_text(json.dumps([other, {**other, "point": {"batch": "1"}}]))
    with pytest.raises(InputError, match="no measurement in common"):
        compare_saved(tmp_path / "two.json", tmp_path / "b.json")
    assert list(read(tmp_path / "two.json")) == ["m.py:make", "m.py:make batch=1"]


@pytest.mark.parametrize("few", [{"count": 5}, {"work": {"measured": False}}])
def test_too_few_samples_show_no_difference_and_fail_no_job(
    few: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = kept(tmp_path / "a.json", 1e6), kept(tmp_path / "b.json", 2e6, **few)
    assert compare_saved(a, b).verdict == compare_saved(b, a).verdict == "inconclusive"
    assert main(["compare", str(a), str(b), "--fail-if-slower", "5%"]) == 0
    assert "m.py:make: B " in capsys.readouterr().out
    assert compare_saved(a, kept(tmp_path / "c.json", 2e6, count=6)).verdict == "slower"


@pytest.mark.parametrize(
    ("work", "says"),
    [
        ({"options": {"n": "2"}}, "options n=1 and n=2"),
        ({"rungs": ["compile"]}, "rungs none and compile"),
        ({"mode": "inference"}, "mode train and inference"),
        ({"timer": {"name": "graph", "cold": None}}, "timer events and graph"),
        ({"timer": {"name": "events", "cold": 1}}, "caches warm and cold"),
        ({"target": "other.py:make"}, "target m.py:make and other.py:make"),
    ],
)
def test_measurements_of_different_work_are_compared_with_a_warning(
    work: dict[str, Any], says: str, tmp_path: Path
) -> None:
    of_a = {"options": {"n": "1"}, "rungs": [], "mode": "train", "timer": {"name": "events", "cold": None}}
    a, b = kept(tmp_path / "a.json", 1e6, work=of_a), kept(tmp_path / "b.json", 1e6, work=of_a | work)
    assert [w for w in compare_saved(a, b).warnings if "different work" in w and says in w]
    assert not [w for w in compare_saved(a, a).warnings if "different work" in w]


def test_two_measurements_of_one_name_in_a_file_are_refused(tmp_path: Path) -> None:
    one = json.loads(kept(tmp_path / "a.json", 1e6).read_text())
    (tmp_path / "twice.json").write_text(json.dumps({"benchmarks": [one, one]}))
    with pytest.raises(InputError, match=r"two measurements of m\.py:make"):
        read(tmp_path / "twice.json")


@pytest.mark.parametrize("option", ["--markdown", "--junit=x.xml", "--html=x.html", "--fail-if-inconclusive"])
def test_what_two_files_cannot_give_is_refused(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(kept(tmp_path / "a.json", 1e6))
    assert main(["compare", a, a, option]) == 2
    assert f"{option.partition('=')[0]} needs a comparison that runs now" in capsys.readouterr().err
