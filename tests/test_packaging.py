"""What is installed with Rung: the same wherever its wheel was built, and not much."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement
from test_rooms import ROOT, imports

from rung.toml import parse_toml

REPO = Path(__file__).parent.parent
DEPENDENCIES: list[str] = parse_toml((REPO / "pyproject.toml").read_text())["project"]["dependencies"]
# Of torch, of GPUs' vendors, of extras, and of pytest, whose plugin is a part of Rung: used where they are.
BY_OTHERS = {
    *("torch", "triton", "transformers", "huggingface_hub", "timm", "diffusers", "aiter", "amdsmi", "pynvml", "pytest"),
    *(
        "distributed",
        "dask_jobqueue",
        "xlsxwriter",
        "IPython",
        "mcp",
        "anyio",
        "pydantic",
        "mlflow",
        "tensorboard",
        "wandb",
        "sqlalchemy",
        "psycopg",
    ),
}
MOST = 300_000_000  # bytes of the base install
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two environments that a wheel may be built for and with: without torch, and with something of that name."""
    found = {}
    for name in ("without torch", "with torch"):
        folder = tmp_path_factory.mktemp("target")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        found[name] = folder / "bin" / "python"
    where = subprocess.check_output(
        [found["with torch"], "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    )
    Path(where.decode().strip(), "torch.py").write_text("__version__ = '2.9.0+rocm6.4'\n")
    return found


def built(python: Path, tmp_path: Path, tracker: bool) -> Message:
    """The metadata of a wheel as pip builds it: setuptools on PYTHONPATH, PIP_BUILD_TRACKER set where it is pip that asks."""
    project = tmp_path / f"project-{len(list(tmp_path.iterdir()))}"
    shutil.copytree(REPO / "src" / "rung", project / "src" / "rung", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "setup.py"):
        if (REPO / name).exists():
            shutil.copy(REPO / name, project)
    # Of the environment of these tests, setuptools alone: torch is in it, too.
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    packages = Path(setuptools.__file__).parent.parent
    for part in (*packages.glob("setuptools*"), packages / "_distutils_hack"):
        if not (tools / part.name).exists():
            (tools / part.name).symlink_to(part)
    env = {k: v for k, v in os.environ.items() if k != "PIP_BUILD_TRACKER"} | {"PYTHONPATH": str(tools)}
    if tracker:
        env["PIP_BUILD_TRACKER"] = str(tmp_path)
    done = subprocess.run(
        [python, "-c", BUILD, str(project)], cwd=project, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with zipfile.ZipFile(project / done.stdout.split()[-1]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(wheel.read(name).decode())


def test_a_wheel_asks_for_the_same_wherever_it_was_built_and_for_torch_nowhere(
    targets: dict[str, Path], tmp_path: Path
) -> None:
    wheels = [built(python, tmp_path, tracker) for python in targets.values() for tracker in (True, False)]
    assert len({wheel.as_string() for wheel in wheels}) == 1
    asked = [Requirement(line) for line in wheels[0].get_all("Requires-Dist") or []]
    always = [one.name for one in asked if "extra" not in str(one.marker)]
    assert {"numpy", "polars"} <= set(always)
    assert not {"torch", "scipy", "triton", "rich"} & set(always)
    (torch,) = [one for one in asked if one.name == "torch"]
    assert str(torch.marker) == 'extra == "torch"'
    # The extra leaves builds of other versions in their place.
    assert all(torch.specifier.contains(version) for version in ("2.6.0", "2.9.0+rocm6.4", "2.13.0+cpu"))


def test_what_is_imported_is_in_the_base_install_or_is_looked_for_first() -> None:
    used = {name.split(".")[0] for path in ROOT.rglob("*.py") for name in imports(path)}
    others = used - sys.stdlib_module_names - {"rung", "tomllib"} - BY_OTHERS
    assert others <= required(DEPENDENCIES) | {"demangle", "tomli"}  # which not every Python needs, or can have


def test_the_base_install_is_small() -> None:
    """All that `pip install .` brings, by what the installed distributions say of their files."""
    sizes = {name: size(name) for name in required(DEPENDENCIES)}
    assert {"numpy", "polars", "jinja2"} <= set(sizes)
    sizes["rung"] = sum(path.stat().st_size for path in (REPO / "src" / "rung").rglob("*") if path.is_file())
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    assert sum(sizes.values()) < MOST, largest


def test_what_lies_beside_the_code_is_part_of_a_wheel() -> None:
    """Templates, scripts, tables: each file that is no module has a pattern in pyproject.toml."""
    patterns = re.findall(r'"\*\*/\*(\.\w+)"', (REPO / "pyproject.toml").read_text())
    beside = {
        path for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert {path.suffix for path in beside} >= {".js", ".css", ".html", ".toml"}
    assert [path for path in beside if path.suffix not in patterns and path.name != "py.typed"] == []


def required(lines: list[str]) -> set[str]:
    """The distributions that these requirements name for this machine, and those that they require in turn."""
    found: set[str] = set()
    waiting = [(Requirement(line), {""}) for line in lines]
    while waiting:
        one, extras = waiting.pop()
        wanted = one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
        if wanted and one.name.lower() not in found:
            found.add(one.name.lower())
            inner = importlib.metadata.requires(one.name) or []
            waiting += [(Requirement(line), {"", *one.extras}) for line in inner]
    return found


def size(name: str) -> int:
    """Bytes of its files, those that Python compiled among them."""
    distribution = importlib.metadata.distribution(name)
    files = [Path(str(file.locate())) for file in distribution.files or []]
    if not files:
        pytest.skip(f"{name} was not installed by pip, and has no list of its files")
    return sum(path.stat().st_size for path in files if path.is_file())
