"""What `rung runs gc` removes: nothing unasked, nothing in use, and nothing that is not Rung's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rung.records.history import Entry
from rung.runs import Run
from rung.runs.garbage import collect
from rung.runs.sqlite import SqliteHistory

OLD, NEW = "2020-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"
MANIFEST: dict[str, Any] = {
    "schema": 1, "status": "complete", "why": "", "target": "x", "numerics": "exact", "request": {},
    "workload": {"name": "small", "mode": "train"}, "environment": {"device": {"name": "chip", "memory": 1}},
    "facts": {"gpu": False, "mode": "train", "rates": {}, "matches": {}, "skipped": [], "graph_breaks": [], "without_gradient": []},
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> SqliteHistory:
    return SqliteHistory(tmp_path / "data" / "history.sqlite")


def climbed(store: SqliteHistory, directory: Path, created: str = OLD) -> Run:
    run = Run.create(directory.parent, "x", directory)
    run.write("manifest.json", MANIFEST | {"created": created})
    add(store, str(directory), created)
    return run


def add(store: SqliteHistory, directory: str | None, created: str = OLD, of: str = "climb") -> int:
    return store.add(Entry(created=created, of=of, target="x", status="complete", answer="", command="", host="", device="", folder="", directory=directory))  # fmt: skip


def test_entries_whose_directories_are_gone_go_when_asked(store: SqliteHistory, tmp_path: Path) -> None:
    climbed(store, tmp_path / "there")
    gone, _, tagged = (
        add(store, str(tmp_path / "gone")),
        add(store, None, of="bench"),
        add(store, str(tmp_path / "too")),
    )
    store.tag(tagged, ["keep"])
    for do in (False, True):
        found = collect(store, do=do)
        assert [(one.entry, one.directory) for one in found.removed] == [(gone, None)]
        assert [(one.entry, one.why) for one in found.kept] == [(tagged, "it has a tag: keep")]
        assert len(store.entries()) == (3 if do else 4)
    assert (tmp_path / "there" / "manifest.json").exists()


def test_old_directories_go_with_their_entries_and_new_ones_stay(store: SqliteHistory, tmp_path: Path) -> None:
    climbed(store, tmp_path / "old")
    climbed(store, tmp_path / "new", NEW)
    recording = tmp_path / "recording"
    (recording / "recording").mkdir(parents=True)
    for name in ("plan.json", "profile.json", "steps-0.json", "steps-1.json", "slurm-job.json", "1-trace.log"):
        (recording / name).write_text("{}")
    add(store, str(recording), of="profile")
    assert len(collect(store, older_than=30).removed) == 2
    assert (tmp_path / "old").exists()
    collect(store, older_than=30, do=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "new"]
    assert [entry.created for entry in store.entries()] == [NEW]


def test_a_directory_in_use_of_another_or_with_files_of_the_users_stays(store: SqliteHistory, tmp_path: Path) -> None:
    locked = climbed(store, tmp_path / "1")
    locked.lock()
    climbed(store, tmp_path / "2")
    (tmp_path / "2" / "notes.txt").write_text("mine")
    other = climbed(store, tmp_path / "3")
    other.write("manifest.json", MANIFEST | {"created": NEW})
    climbed(store, tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store.remove([entry.id for entry in store.entries() if entry.directory == str(tmp_path / "real")])
    add(store, str(tmp_path / "link"))
    (tmp_path / "home").mkdir()
    add(store, str(tmp_path / "home"))
    add(store, str(tmp_path / "home"), of="profile")
    found = collect(store, older_than=1, do=True)
    assert found.removed == []
    whys = [one.why for one in found.kept]
    for part in ("a climb is running", "not Rung's: notes.txt", "another climb", "a link", "not a run directory", "not a recording"):  # fmt: skip
        assert any(part in why for why in whys), part
    assert all((tmp_path / name).exists() for name in ("1", "2", "3", "real", "link", "home"))
    locked.unlock()


def recording(folder: Path) -> Path:
    (folder / "recording").mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    return folder


@pytest.mark.parametrize("by_link", [False, True])
@pytest.mark.parametrize("tagged", [False, True])
def test_an_old_entry_takes_no_recording_that_another_entry_keeps(
    store: SqliteHistory, tmp_path: Path, tagged: bool, by_link: bool
) -> None:
    folder = recording(tmp_path / "real" / "out")
    (tmp_path / "link").symlink_to("real")
    old = add(store, str(folder), of="profile")
    keeps = add(
        store,
        str(tmp_path / "link" / "out" if by_link else folder),
        "2020-02-02T00:00:00+00:00" if tagged else NEW,
        "profile",
    )
    if tagged:
        store.tag(keeps, ["keep"])
    found = collect(store, older_than=30, do=True)
    assert found.removed == []
    whys = {one.entry: one.why for one in found.kept}
    assert whys[old] == f"entry {keeps} is of the same directory, and is newer or has a tag"
    assert (folder / "plan.json").exists()
    assert len(store.entries()) == 2


def test_two_old_entries_of_one_directory_both_go(store: SqliteHistory, tmp_path: Path) -> None:
    folder = recording(tmp_path / "out")
    other = recording(tmp_path / "other")
    for created in (OLD, "2020-02-02T00:00:00+00:00"):
        add(store, str(folder), created, "profile")
    add(store, str(other), "2020-03-03T00:00:00+00:00", "profile")
    assert len(collect(store, older_than=30, do=True).removed) == 3
    assert not folder.exists()
    assert not other.exists()
    assert store.entries() == []


def test_what_a_killed_climb_was_writing_keeps_no_directory(store: SqliteHistory, tmp_path: Path) -> None:
    climbed(store, tmp_path / "old")
    (tmp_path / "old" / ".result.json.0123456789abcdef.partial").write_text("{")
    climbed(store, tmp_path / "mine")
    (tmp_path / "mine" / ".notes.partial").write_text("mine")
    assert [one.directory for one in collect(store, older_than=1, do=True).removed] == [str(tmp_path / "old")]


def test_a_link_within_an_old_directory_is_not_followed(store: SqliteHistory, tmp_path: Path) -> None:
    climbed(store, tmp_path / "old")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    (tmp_path / "old" / "workers").symlink_to(tmp_path / "mine")
    collect(store, older_than=1, do=True)
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "mine" / "file").exists()
