"""No name that an agent gives leads out of its folder."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.agents.root import Root
from rung.errors import UsageError
from rung.workload.by_name import FAMILIES


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A folder with a file in it, links that lead out, and one that stays."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "model.py").write_text("")
    folder = tmp_path / "project"
    (folder / "traces").mkdir(parents=True)
    (folder / "model.py").write_text("")
    (folder / "trace.json").write_text("{}")
    (folder / "link.py").symlink_to(tmp_path / "outside" / "model.py")
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "same.py").symlink_to("model.py")
    return Root.of(folder)


OUTSIDE = [
    "../outside/model.py",
    "/etc/passwd",
    "link.py",
    "out/model.py",
    "out/new.html",
    "traces/../../outside/model.py",
    "..",
    "/",
]


@pytest.mark.parametrize("text", OUTSIDE)
def test_a_path_that_leads_out_is_refused_wherever_it_may_stand(root: Root, text: str) -> None:
    for ask in (root.path, root.trace, root.run, lambda name: root.target(f"kernelbench:{name}")):
        with pytest.raises(UsageError, match="leads outside of"):
            ask(text)
    with pytest.raises(UsageError):
        root.page(text)
    for target in (f"{text}:make", *(f"{prefix}{text}" for prefix in FAMILIES)):
        with pytest.raises(UsageError):
            root.target(target)


def test_a_path_inside_is_given_back_without_links(root: Root) -> None:
    assert root.path("model.py") == "model.py"
    assert root.path(f"{root.folder}/traces/../model.py") == "model.py"
    assert root.path("same.py") == "model.py"
    assert root.path("new/page.html") == "new/page.html"
    assert root.target("same.py:make") == "model.py:make"


@given(st.text(alphabet="./ab~-\\\0 ", max_size=12))
def test_whatever_is_asked_stays_inside_or_is_refused(text: str) -> None:
    root = Root(Path(os.path.realpath("/tmp/a/b")))
    try:
        found = root.path(text)
    except UsageError:
        return
    assert not found.startswith(("-", "/"))
    assert (root.folder / found).resolve().is_relative_to(root.folder)


def test_a_folder_with_a_link_that_leads_out_is_refused(root: Root) -> None:
    assert root.path("traces") == "traces"
    (root.folder / "traces" / "deep").mkdir()
    (root.folder / "traces" / "deep" / "rank0.json").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match=r"traces/deep/rank0\.json leads outside"):
        root.path("traces")


def test_what_readers_look_at_beside_a_trace_leads_nowhere_else(root: Root) -> None:
    assert root.trace("trace.json") == "trace.json"  # the other links are none of a reader's business
    (root.folder / "capture_bs32.json").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="capture_bs32"):
        root.trace("trace.json")


@pytest.mark.parametrize(
    "text",
    ["os:getcwd", "package.module:make", "model.py", "model.py:", "model.py:a.b", "model:make", "hf:", "--json", ""],
)
def test_what_is_no_target_of_the_folder_is_refused(root: Root, text: str) -> None:
    with pytest.raises(UsageError):
        root.target(text)


@pytest.mark.parametrize(
    "text", ["tiny-transformer", "hf:Qwen/Qwen3-0.6B", "timm:resnet50.a1_in1k", "kernelbench:model.py"]
)
def test_published_models_and_built_in_ones_are_targets(root: Root, text: str) -> None:
    assert root.target(text) == text


def test_a_file_that_begins_like_an_option_is_none(root: Root) -> None:
    (root.folder / "-x.py").write_text("")
    assert root.path("-x.py") == "./-x.py"


def test_a_run_whose_target_lies_outside_is_not_gone_on_with(root: Root) -> None:
    run = root.folder / "run"
    run.mkdir()
    with pytest.raises(UsageError, match="not a run directory"):
        root.run("run")
    for target, refused in (("../outside/model.py:make", True), ("os:getcwd", True), ("model.py:make", False)):
        (run / "manifest.json").write_text(json.dumps({"request": {"target": target}}))
        if refused:
            with pytest.raises(UsageError):
                root.run("run")
        else:
            assert root.run("run") == "run"


def test_a_revision_needs_the_repository_s_top_and_is_no_option(root: Root) -> None:
    with pytest.raises(UsageError, match="whose top is"):
        root.revision("main")
    (root.folder / ".git").mkdir()
    assert root.revision("main") == "main"
    with pytest.raises(UsageError):
        root.revision("--output=/tmp/x")


def test_pages_replace_no_other_file(root: Root) -> None:
    with pytest.raises(UsageError, match=r"\.html"):
        root.page("model.py")
    with pytest.raises(UsageError, match="is not a folder"):
        Root.of(root.folder / "model.py")
