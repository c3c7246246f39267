"""Targets and their options."""

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
    small = load("tiny-transformer").options
    assert (small["batch_size"], small["seq_len"], small["hidden_dim"], small["num_layers"]) == (8, 256, 512, 8)


def test_a_file_of_the_user_is_loaded_the_same_way() -> None:
    assert load(EXAMPLE, {"width": "32"}).name == "mlp"


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("nosuch", {}, "unknown target"),
        ("no.such.module:x", {}, "no module"),
        ("missing.py:make", {}, "no file"),
        (EXAMPLE.replace("make", "nothing"), {}, "has no 'nothing'"),
        (EXAMPLE, {"depht": "3"}, "no option --depht"),
        (EXAMPLE, {"width": "wide"}, "must be int"),
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


def test_a_file_that_raises_on_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(WorkloadError, match="ZeroDivisionError"):
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
