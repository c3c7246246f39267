"""Targets and their options."""

import sys
from pathlib import Path

import pytest

from rung.errors import RungError, UsageError, WorkloadError
from rung.workload import load, shapes

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "mlp.py") + ":make"


def test_the_built_in_workload_takes_its_documented_options() -> None:
    w = load("tiny-transformer", {"size": "tiny", "mode": "infer", "batch-size": "2", "use-amp": "true"})
    assert w.mode == "infer"
    assert w.options["hidden_dim"] == 256
    assert w.samples == 2
    assert str(w.amp) == "torch.bfloat16"


@pytest.mark.parametrize(("gpu", "size"), [(True, (8, 256, 512, 8)), (False, (8, 128, 256, 4))], ids=["gpu", "cpu"])
def test_the_built_in_workload_is_as_large_as_the_machine_bears(
    gpu: bool, size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    found = load("tiny-transformer").options
    assert (found["batch_size"], found["seq_len"], found["hidden_dim"], found["num_layers"]) == size


def test_a_file_of_the_user_is_loaded_the_same_way() -> None:
    assert load(EXAMPLE, {"width": "32"}).name == "mlp"


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("nosuch", {}, "unknown target"),
        ("no.such.module:x", {}, "no module"),
        ("missing.py:make", {}, "no file"),
        (EXAMPLE.replace("make", "nothing"), {}, "has no 'nothing'"),
        (EXAMPLE, {"depht": "3"}, r"no option --depht; did you mean --depth\?$"),
        ("tiny-transformer", {"num-layer": "4"}, r"did you mean --num-layers\?$"),
        (EXAMPLE, {"colour": "red"}, "no option --colour; it takes: --width, --depth"),
        (EXAMPLE, {"width": "wide"}, "must be a whole number"),
        ("tiny-transformer", {"size": "giant"}, "must be one of"),
        ("tiny-transformer", {"num-heads": "7"}, "heads must be even"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(target: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(target, options)


def test_a_name_that_a_file_lacks_is_answered_with_those_it_has(tmp_path: Path) -> None:
    path = tmp_path / "several.py"
    path.write_text("from os.path import join\nimport math\ndef infer(): pass\ndef train(): pass\ndef _own(): pass\n")
    for name, words in (("infr", "Did you mean 'infer'\\?"), ("nope", "It has: infer, train\\.$")):
        with pytest.raises(UsageError, match=words):
            load(f"{path}:{name}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_package.part", "`pip install no_such_package`, or put the folder"),
        ("import yaml\n", "`pip install pyyaml`"),
        ("import json.nothing", "the json that is installed has no module 'json.nothing'"),
        ("def make():\n    import no_such_package", r"in make\).* `pip install no_such_package`"),
    ],
)
def test_a_module_that_is_missing_comes_with_the_way_to_get_it(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)  # an import of it fails
    (tmp_path / "lacks.py").write_text(text)
    with pytest.raises(WorkloadError, match=rf"lacks\.py.*{says}"):
        load(f"{tmp_path / 'lacks.py'}:make")


def test_a_file_that_raises_on_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(WorkloadError, match=r"ZeroDivisionError: division by zero \(.*bad\.py:1\)$"):
        load(f"{tmp_path / 'bad.py'}:make")


def test_a_second_shape_is_derived_from_the_first_dimension() -> None:
    first, second = shapes(load(EXAMPLE, {"batch": "8"}))
    assert first(1)["images"].shape[0] == 8
    assert second(1)["images"].shape[0] == 3
    assert second(1)["labels"].shape[0] == 3


def test_a_missing_extra_is_one_clear_sentence() -> None:
    pytest.importorskip("torch")
    try:
        import transformers  # noqa: F401
    except ImportError:
        with pytest.raises(RungError, match="pip install transformers"):
            load(EXAMPLE.replace("mlp", "hf_llama"))
    else:
        pytest.skip("transformers is installed, so its absence cannot be seen")


def test_a_file_without_a_name_is_told_from_an_unknown_target(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(UsageError, match=r"mine\.py is a file: name the function"):
        load(str(tmp_path / "mine.py"))


KINDS = """
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Union
from rung import Workload
if TYPE_CHECKING:
    from collections.abc import Sequence

class Kind(enum.Enum):
    FAST = "f"
    SMALL = 2

def seen(**values): return Workload("seen", lambda: None, lambda seed: None, options=values)
def choice(n: Literal[1, 2] = 1, m: Literal["a", None] = "a"): return seen(n=n, m=m)
def several(sizes: list[int] = [], pair: tuple[int, float] = (1, 2.0), bare=(1, 2)): return seen(sizes=sizes, pair=pair, bare=bare)
def union(k: Union[str, int, None] = 1, b: Union[bool, None] = None): return seen(k=k, b=b)
def odd(where: Path = Path(), kind: Kind = Kind.FAST): return seen(where=where, kind=kind.name)
def unread(x: "Sequence[int]" = (), n: int = 1): return seen(n=n)
def mixed(betas=(0, 0.95), steps=[1e-3, 1]): return seen(betas=betas, steps=steps)
def needs(n: int): return seen(n=n)
"""


@pytest.fixture
def kinds(tmp_path: Path) -> str:
    (tmp_path / "kinds.py").write_text(KINDS)
    return f"{tmp_path}/kinds.py"


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("choice", {"n": "2"}, 2),
        ("choice", {"m": "none"}, None),
        ("several", {"sizes": "3,4"}, [3, 4]),
        ("several", {"pair": "3, 0.5"}, (3, 0.5)),
        ("several", {"bare": "3,4,5"}, (3, 4, 5)),
        ("mixed", {"betas": "0.9,0.95"}, (0.9, 0.95)),
        ("mixed", {"steps": "0.5,2"}, [0.5, 2.0]),
        ("union", {"k": "abc"}, "abc"),
        ("union", {"k": "3"}, 3),
        ("union", {"b": "off"}, False),
        ("odd", {"where": "/tmp"}, Path("/tmp")),
        ("odd", {"kind": "SMALL"}, "SMALL"),
        ("odd", {"kind": "2"}, "SMALL"),
        ("unread", {"n": "2"}, 2),
    ],
)
def test_an_option_has_the_type_that_its_parameter_says(
    kinds: str, name: str, typed: dict[str, str], value: object
) -> None:
    found = load(f"{kinds}:{name}", typed).options[next(iter(typed))]
    assert (found, type(found)) == (value, type(value))


def test_an_annotation_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nfrom rung import Workload\n"
        "if TYPE_CHECKING:\n    from collections.abc import Sequence\n"
        "def make(sizes: Sequence[int] = (), wide: Workload.none = 1, rate: float | None = None, *, layers: int) -> Sequence:\n"
        "    return Workload('later', lambda: None, lambda seed: None, options=locals())\n"
    )
    typed = {"layers": "4", "rate": "0.5", "wide": "2"}
    found = load(f"{tmp_path}/later.py:make", typed).options
    assert found["layers"] == 4
    assert found["rate"] == 0.5
    assert found["wide"] == 2  # as its default


@pytest.mark.parametrize(
    ("name", "typed", "says"),
    [
        ("choice", {"n": "3"}, "must be one of 1, 2"),
        ("several", {"sizes": "3,x"}, "--sizes is 'x'; it must be a whole number"),
        ("several", {"pair": "3"}, "must be 2 values with commas between them"),
        ("odd", {"kind": "big"}, "must be one of f, 2, FAST, SMALL"),
        ("needs", {}, "needs --n"),
    ],
)
def test_an_option_of_another_type_is_refused(kinds: str, name: str, typed: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(f"{kinds}:{name}", typed)


def test_who_switches_an_option_off_as_git_does_is_told_how(tmp_path: Path) -> None:
    (tmp_path / "off.py").write_text("def make(half_rate: bool = True, rate: int = 1): pass\n")
    with pytest.raises(UsageError, match=r"no option --no-half-rate; write --half-rate false\.$"):
        load(f"{tmp_path}/off.py:make", {"no-half-rate": "true"})
    with pytest.raises(UsageError, match=r"did you mean --rate"):
        load(f"{tmp_path}/off.py:make", {"no-rate": "true"})


def test_a_target_that_reads_the_command_line_finds_none_of_our_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parses = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--width', type=int, default=3)\n"
    )
    makes = "def make(): return Workload(f'width {(given or parser.parse_args()).width}', lambda: None, lambda seed: None)\n"
    for name, given in (("early", "parser.parse_args()"), ("late", "None")):
        (tmp_path / f"{name}.py").write_text(f"from rung import Workload\n{parses}given = {given}\n{makes}")
        monkeypatch.setattr("sys.argv", ["rung", "bench", "mine.py:make", "--help"])
        assert load(f"{tmp_path}/{name}.py:make").name == "width 3"


def test_a_file_that_exits_on_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("raise SystemExit('no licence')")
    with pytest.raises(WorkloadError, match=r"exits\.py could not be imported: SystemExit: no licence"):
        load(f"{tmp_path / 'exits.py'}:make")


def test_a_model_in_the_place_of_a_workload_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self): super().__init__(2, 2)\n"
    )
    with pytest.raises(
        UsageError, match=r"net.py:Net gives a model, and a climb needs inputs, too: .* rung.Workload\(name="
    ):
        load(f"{tmp_path}/net.py:Net")
