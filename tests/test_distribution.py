"""Wheel and sdist as they are published: the same bytes each time, with what Rung needs and nothing else, and they run without torch."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import dist
import pytest
from test_packaging import DEPENDENCIES, REPO

pytestmark = pytest.mark.long

METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
BESIDE = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "pyproject.toml"}
# Nothing of this checkout, and of pip no remarks.
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1"
}
TRACE = REPO / "tests" / "data" / "ddp" / "ranks2-one-bucket" / "rank0.json.gz"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of the last commit."""
    sdist, wheel = dist.build("HEAD", tmp_path_factory.mktemp("dist"))
    return sdist, wheel


def committed(folder: str) -> set[str]:
    listed = subprocess.check_output(["git", "ls-tree", "-r", "--name-only", "HEAD", folder], cwd=REPO, text=True)
    return set(listed.splitlines())


def test_one_commit_gives_the_same_bytes_with_another_umask_time_zone_and_language(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    local = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "PATH": "/usr/bin:/bin"}
    words = [sys.executable, str(REPO / "tools" / "dist.py"), "--out", str(tmp_path)]
    subprocess.run(words, cwd=tmp_path, env=local, umask=0o077, capture_output=True, check=True)
    assert {path.name: path.read_bytes() for path in built} == {
        path.name: path.read_bytes() for path in tmp_path.iterdir()
    }


def test_the_wheel_holds_the_package_and_its_metadata_alone(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
        modes = {entry.external_attr >> 16 & 0o777 for entry in wheel.infolist()}
    stem = "-".join(built[1].name.split("-")[:2])
    expected = {name.removeprefix("src/") for name in committed("src/rung")}
    assert names == expected | {f"{stem}.dist-info/{name}" for name in METADATA}
    assert modes <= {0o644, 0o664, 0o755}
    assert built[1].stat().st_size < 2_500_000


def test_the_sdist_holds_what_the_wheel_is_built_from(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        files = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
        owners = {(member.uid, member.gid, member.uname, member.gname) for member in sdist.getmembers()}
    generated = {name for name in files if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert files - generated == committed("src/rung") | BESIDE
    assert owners == {(0, 0, "", "")}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the base dependencies alone."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    wanted = [*DEPENDENCIES, "setuptools>=77"]
    fetched = subprocess.run(
        [venv / "bin" / "pip", "-q", "install", *wanted], env=ENV, capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        pytest.skip(f"the dependencies are not to be had here: {fetched.stderr.strip().splitlines()[-1]}")
    return venv / "bin"


@pytest.mark.parametrize("which", ["sdist", "wheel"])
def test_it_installs_into_an_empty_environment_and_works_without_torch(
    built: tuple[Path, Path], empty: Path, which: str, tmp_path: Path
) -> None:
    def run(*words: str) -> str:
        done = subprocess.run(
            [empty / words[0], *words[1:]], cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    sdist, wheel = built
    # Without the network: what is missing in the package fails here.
    install = ("pip", "-q", "install", "--no-index", "--no-build-isolation", "--force-reinstall", "--no-deps")
    run(*install, str(sdist if which == "sdist" else wheel))
    assert run("python", "-c", "import importlib.util; print(importlib.util.find_spec('torch'))").strip() == "None"
    assert run("rung", "--version").split() == ["rung", sdist.name.removesuffix(".tar.gz").partition("-")[2]]
    assert "fused-optimizer" in run("rung", "rungs")
    assert "Bottleneck" in run("rung", "analyze", str(TRACE), "--html", "page.html")
    assert "<script" in (tmp_path / "page.html").read_text()
