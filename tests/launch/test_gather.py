"""Files of ranks that share no folder with their coordinator: whole, or named."""

import hashlib
import json
import os
import resource
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.errors import WorkloadError
from rung.hardware.ranks import Ranks
from rung.launch import gather
from rung.launch.gather import FILES, Gathering, writing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Ranks, "here", Ranks(1, 2))
    monkeypatch.setattr(gather, "ENDING", 0.5)
    (tmp_path / "out" / "recording").mkdir(parents=True)
    return tmp_path / "out"


def elsewhere(gathering: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host on which the coordinator's folder is not."""
    given = json.loads(gathering.variables[FILES])
    monkeypatch.setenv(FILES, json.dumps([*given[:4], "no such mark"]))


def wrote(path: str, content: bytes) -> Path:
    """A rank that writes one file."""
    with writing() as files:
        place = files.place(path)
        place.write_bytes(content)
        files.told(place)
    return place


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=3000), st.booleans(), st.integers(1, 700))
def test_a_file_comes_whole_from_another_host(folder: Path, content: bytes, shared: bool, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "CHUNK", chunk)
        path = folder / "recording" / "trace.rank1.json.gz"
        with Gathering(folder, here=True) as gathering:
            patch.setenv(FILES, gathering.variables[FILES])
            if not shared:
                elsewhere(gathering, patch)
            place = wrote(str(path), content)
        assert (place == path) == shared
        assert path.read_bytes() == content
        assert gathering.lacking() == ["rank 0 of 2 never listed its files: they may be missing."]
        assert sorted(os.listdir(folder)) == ["recording"]
        assert os.listdir(folder / "recording") == ["trace.rank1.json.gz"]
        assert shared or not place.exists()


def test_a_file_in_a_folder_that_only_the_rank_has_made_comes_into_one_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gathering(folder, here=True) as gathering, monkeypatch.context() as patch:
        elsewhere(gathering, patch)
        wrote(str(folder / "samples" / "rank1" / "samples.csv"), b"gpu")
    assert (folder / "samples" / "rank1" / "samples.csv").read_bytes() == b"gpu"


def test_a_file_that_is_cut_off_after_it_was_written_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "recording" / "trace"
    with Gathering(folder, here=True) as gathering, monkeypatch.context() as patch:
        patch.setenv(FILES, gathering.variables[FILES])
        with writing() as files:
            path.write_bytes(b"0123456789")
            told = files._say
            patch.setattr(files, "_say", lambda document: (path.write_bytes(b"0123"), told(document)))
            files.told(path)
    assert (
        gathering.lacking()[0]
        == f"recording/trace is cut off: 4 of 10 bytes arrived, of rank 1 on {socket.gethostname()}."
    )


@pytest.mark.parametrize(
    ("sha256", "sent", "says"),
    [
        (hashlib.sha256(b"1234567890").hexdigest(), b"1234", "ended before it listed its files"),
        (hashlib.sha256(b"others").hexdigest(), b"1234567890", "t changed on the way: its SHA-256 differs"),
    ],
)
def test_what_breaks_off_or_changes_on_its_way_is_named(sha256: str, sent: bytes, says: str, folder: Path) -> None:
    with Gathering(folder, here=True) as gathering:
        host, port, token, *_ = json.loads(gathering.variables[FILES])
        with socket.create_connection((host, port)) as rank:
            hello = {"token": token, "rank": 0, "world": 1, "host": "node-7"}
            for document in (hello, {"name": "t", "size": 10, "sha256": sha256, "sent": True}):
                rank.sendall(json.dumps(document).encode() + b"\n")
            rank.sendall(sent)
            rank.shutdown(socket.SHUT_WR)
            rank.recv(1)
    found = " ".join(gathering.lacking())
    assert says in found
    assert "rank 0 on node-7" in found
    assert os.listdir(folder) == ["recording"]


def test_a_file_for_which_there_is_no_room_is_named_and_the_next_one_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, steps = folder / "recording" / "trace", folder / "steps-1.json"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Gathering(folder, here=True) as gathering, monkeypatch.context() as patch:
        elsewhere(gathering, patch)
        with writing() as files:
            place = files.place(str(trace))
            place.write_bytes(b"x" * 3_000_000)
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, limits[1]))
                files.told(place)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            files.place(str(steps)).write_text("{}")
            files.told(files.place(str(steps)))
    assert gathering.lacking()[0] == (
        f"recording/trace could not be written: File too large, of rank 1 on {socket.gethostname()}."
    )
    assert steps.read_text() == "{}"
    assert sorted(os.listdir(folder)) == ["recording", "steps-1.json"]
    assert os.listdir(folder / "recording") == []


def test_a_file_whose_folder_is_a_file_here_is_named_and_the_next_one_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "samples").write_text("a file")
    with Gathering(folder, here=True) as gathering, monkeypatch.context() as patch:
        elsewhere(gathering, patch)
        with writing() as files:
            for name in ("samples/gpu.csv", "steps-1.json"):
                place = files.place(str(folder / name))
                place.write_bytes(b"x" * 100_000)
                files.told(place)
    assert gathering.lacking()[0].startswith("samples/gpu.csv could not be written: ")
    assert len(gathering.lacking()) == 2  # and rank 0, which never came
    assert (folder / "steps-1.json").stat().st_size == 100_000


def test_a_link_in_the_place_of_a_partial_file_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = folder.parent / "mine"
    mine.write_text("precious")
    (folder / ".trace.partial").symlink_to(mine)
    with Gathering(folder, here=True) as gathering, monkeypatch.context() as patch:
        elsewhere(gathering, patch)
        wrote(str(folder / "trace"), b"new")
    assert mine.read_text() == "precious"
    assert (folder / "trace").read_bytes() == b"new"
    assert not (folder / "trace").is_symlink()


def test_there_is_room_for_the_files_of_all_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []
    monkeypatch.setattr(gather, "make_room", wanted.append)
    with Gathering(folder, here=True) as gathering:
        monkeypatch.setenv(FILES, gathering.variables[FILES])
        wrote(str(folder / "t"), b"")
    assert wanted == [4]


@pytest.mark.parametrize("name", ["../t", "/no such folder/t"])
def test_nothing_is_written_outside_of_the_folder_nor_for_a_stranger(name: str, folder: Path) -> None:
    with Gathering(folder, here=True) as gathering:
        host, port, token, *_ = json.loads(gathering.variables[FILES])
        for who, path in ((token, name), ("guessed", "t")):
            with socket.create_connection((host, port)) as rank:
                hello = {"token": who, "rank": 0, "world": 1, "host": "h"}
                file = {"name": path, "size": 1, "sha256": hashlib.sha256(b"x").hexdigest(), "sent": True}
                rank.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in (hello, file)) + b"x")
                rank.shutdown(socket.SHUT_WR)
                assert rank.recv(1) == b""
    assert not (folder / name).exists()
    assert os.listdir(folder) == ["recording"]


def test_a_coordinator_that_cannot_be_reached_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gathering = Gathering(folder, here=True)
    gathering._server.server_close()
    monkeypatch.setenv(FILES, gathering.variables[FILES])
    with (
        pytest.raises(WorkloadError, match=r"rank 1 on .* cannot reach 127.0.0.1, port \d+, to send its files"),
        writing(),
    ):
        pass
