"""What of a run directory can be read over the network: its own files, and nothing that a name or a link leads to."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from served_history import climbed

from rung.errors import InputError, RungError
from rung.records.history import Entry
from rung.runs.sqlite import SqliteHistory
from rung.serve.files import files_of, open_file

PARTS = ["..", ".", "", "traces", "secret", "%2e%2e", "..%2f", "/", "/etc/passwd", "\\..\\", "traces/baseline.json.gz", "a\0b", ".lock", "~", "baseline.json.gz", "report.html"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def entry(folder: Path) -> Entry:
    store = SqliteHistory(folder / "history.sqlite")
    found = store.entry(str(climbed(store, folder / "run")))
    (folder / "secret").write_text("secret")
    (folder / "run" / "traces" / ".hidden").write_text("secret")
    return found


@pytest.fixture
def copy(entry: Entry, tmp_path: Path) -> Entry:
    """The entry, of a directory that may be changed."""
    shutil.copytree(entry.directory or "", tmp_path / "copy")
    return replace(entry, directory=str(tmp_path / "copy"))


def read(entry: Entry, *parts: str) -> bytes:
    with open_file(entry, parts) as file:
        return file.read()


def test_the_run_s_own_files_are_listed_and_read(entry: Entry) -> None:
    names = [name for name, _ in files_of(entry)]
    assert {"report.html", "recipe.toml", "manifest.json", "result.json", "attempts/01-plain.json", "traces/baseline.json.gz"} <= set(names)  # fmt: skip
    assert not {"model.pt", "begun.json", ".lock"} & set(names)
    assert read(entry, "traces", "baseline.json.gz") == b"a trace"
    for name, size in files_of(entry):
        assert len(read(entry, *name.split("/"))) == size


@pytest.mark.parametrize("parts", [["model.pt"], ["begun.json"], [], [""], ["traces"], ["traces", "none"], ["secret"], ["report.html", ""], ["traces", "/etc/passwd"],
                                   ["traces", "..", "..", "secret"], ["traces", ".hidden"]])  # fmt: skip
def test_what_is_not_for_others_is_not_there(entry: Entry, parts: list[str]) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(entry, *parts)


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=4))
def test_no_way_leads_out_of_the_directory(entry: Entry, parts: list[str]) -> None:
    try:
        found = read(entry, *parts)
    except InputError:
        return
    assert "/".join(parts) in {name for name, _ in files_of(entry)}
    assert found != b"secret"


@pytest.mark.parametrize("name", ["report.html", "traces/link.json.gz", "traces"])
def test_no_link_is_followed(copy: Entry, folder: Path, name: str) -> None:
    place = Path(copy.directory or "") / name
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    place.symlink_to(folder if name == "traces" else folder / "secret")
    assert not any(file.startswith(name) for file, _ in files_of(copy))
    with pytest.raises(InputError, match="no such file"):
        read(copy, *name.split("/"), *(["secret"] if name == "traces" else []))


def test_a_pipe_is_not_waited_for(copy: Entry) -> None:
    (Path(copy.directory or "") / "report.html").unlink()
    os.mkfifo(Path(copy.directory or "") / "report.html")
    assert "report.html" not in {name for name, _ in files_of(copy)}
    with pytest.raises(InputError, match="no such file"):
        read(copy, "report.html")


def test_a_directory_that_is_not_the_run_s_any_more_shows_nothing(entry: Entry, copy: Entry, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(copy.directory or "")
    for other in (
        replace(copy, created="2020-01-01T00:00:00+00:00"),
        replace(copy, directory=str(tmp_path / "link")),
        replace(copy, directory="run"),
        replace(copy, directory="/"),
        replace(copy, directory=str(tmp_path / "gone")),
        replace(copy, directory=None),
        replace(copy, directory="/a\0b"),
        replace(copy, of="profile"),
        replace(copy, of="bench"),
    ):
        assert files_of(other) == []
        with pytest.raises(RungError):
            read(other, "report.html")
    assert files_of(copy) == files_of(entry)


def test_a_recording_shows_what_the_profiler_wrote(entry: Entry, tmp_path: Path) -> None:
    for name in ("plan.json", "profile.json", "recording/out/trace.db", "tool.log", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    recorded = replace(entry, of="profile", directory=str(tmp_path))
    assert [name for name, _ in files_of(recorded)] == ["plan.json", "profile.json", "recording/out/trace.db"]
    assert read(recorded, "recording", "out", "trace.db") == b"recording/out/trace.db"
