"""`rung kernels`: what kernels take of GPUs that are not here, of Rung's own, a user's and Inductor's."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel_agreement import HAS_TRITON

from rung.cli.main import main
from rung.kernels.resources.own import launches

HERE = Path(__file__).parent
MINE = HERE / "mine.py"
BIASED = HERE.parents[1] / "src" / "rung" / "kernels" / "families" / "biased_attention_kernels.py"
LOG = HERE.parent / "data" / "inductor" / "output_code.log"
ARCHES = "gfx90a,gfx942,gfx950,sm90,sm100"

STRIDES = [f"{t}_{axis}=32" for t in "qkvo" for axis in ("batch", "head", "row")]
# Windows of 49 tokens, each with a bias of its own: no row of it is aligned.
WINDOW = [
    *(f"{t}=*bf16" for t in ("Q", "K", "V", "BIAS", "OUT")), "LSE=*fp32", "SEED=*i64", "heads=3", "m=49", "n=49", "columns=49",
    "scale=fp32", "keep=fp32", "DROPOUT=0",
    *STRIDES, "bias_batch=7203", "bias_head=2401", "bias_row=49", "bias_key=1", "ONE=1", "DIM=32", "V_DIM=32", "WIDTH=32", "V_WIDTH=32",
    "EXACT=0", "BLOCK_M=64", "BLOCK_N=64", "num_warps=4", "--arch", "sm90",
]  # fmt: skip

# One process compiles for all tests: what it takes to import torch and Triton, once.
ASKED: dict[str, list[str]] = {
    "rotation": ["rope", "--arch", "gfx942,sm90"],
    "everywhere": ["cross_entropy_forward", "--arch", ARCHES],
    "gradient": ["cross_entropy_backward", "--arch", "gfx950,sm100"],
    "one query": ["decode_attention", "--arch", "gfx90a,gfx942,sm90"],
    "one row": ["gemv", "--arch", "gfx90a,gfx942,gfx950,sm90"],
    "example": [f"{MINE}:double", "--arch", "gfx942,sm90"],
    "call": [f"{MINE}:double", "num_warps=4", "--call", "two_warps", "--arch", "sm90"],
    "called": [f"{MINE}:double", "--call", "two_warps", "--arch", "sm90"],
    "arguments": [f"{MINE}:tuned", "X=*fp32", "Y=*fp32", "n=i32", "--arch", "sm90"],
    "greedy": [f"{MINE}:greedy", "X=*bf16", "Y=*bf16", "BLOCK=4096", "num_warps=1", "waves_per_eu=8", "--arch", "gfx942"],
    "greedy too": [f"{MINE}:greedy", "X=*bf16", "Y=*bf16", "BLOCK=1024", "num_warps=1", "maxnreg=24", "--arch", "sm90"],
    "matrix": [f"{MINE}:product", "X=*bf16", "Y=*bf16", "Z=*fp32", "BLOCK=64", "matrix_instr_nonkdim=16", "--arch", "gfx942,sm90"],
    "bias first": [f"{BIASED}:biased_attention_forward", "BIAS_FIRST=1", *WINDOW],
    "inductor": [str(LOG), "--arch", "gfx942,sm90"],
    "lacks": [f"{MINE}:double", "--call", "double_example", "wrong=1"],
    "misspelt": [f"{MINE}:tuned", "X=*fp32", "Y=*fp32", "N=i32"],
    "no file": [f"{MINE.with_name('none.py')}:tuned"],
    "unnamed": [str(MINE)],
    "another": ["float32_attention", "--arch", "gfx942"],
    "no kernel": [f"{MINE}:not_a_kernel"],
    "no call": [f"{MINE}:double", "--call", "nothing"],
    "no type": [f"{MINE}:tuned", "X=*fp99", "Y=*fp32", "n=i32", "--arch", "sm90"],
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton-cache")


@pytest.fixture(scope="module")
def answers(cache: Path) -> dict[str, dict[str, Any]]:
    asked = {name: ["kernels", "inspect", *words, "--json"] for name, words in ASKED.items()}
    asked["cached"] = ["kernels", "inspect", str(cache), "--json"]
    asked["cached for one"] = ["kernels", "inspect", str(cache), "--arch", "gfx950", "--json"]
    asked["table"] = ["kernels", "inspect", "cross_entropy_forward", "--arch", "gfx942,sm90"]
    return answered(asked, cache)


def answered(asked: dict[str, list[str]], cache: Path) -> dict[str, dict[str, Any]]:
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(HERE / "compiled_kernels.py")], input=json.dumps(list(asked.values())), env=env,
        capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Answers(zip(asked, json.loads(done.stdout), strict=True))


class Answers(dict[str, dict[str, Any]]):
    """Skips what Triton 3.2 cannot do without a GPU: it links for AMD with ROCm's own linker, where later ones bring theirs, and a
    file that has an autotuned kernel asks for a driver when it is imported. And code of Inductor that this torch is too old for."""

    def __getitem__(self, name: str) -> dict[str, Any]:
        answer = super().__getitem__(name)
        if any(words in answer["err"] for words in ("ROCm linker", "0 active drivers", "torch that generated it")):
            pytest.skip(answer["err"].strip())
        return answer


def rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    assert answer["out"], answer["err"]
    return json.loads(answer["out"])["rows"]


@pytest.mark.parametrize("name", ["rotation", "everywhere", "gradient", "one query", "one row"])
def test_no_kernel_of_rungs_spills_at_its_configuration(name: str, answers: dict[str, Any]) -> None:
    found = rows(answers[name])
    assert answers[name]["code"] == 0
    assert {row["arch"] for row in found} == set(ASKED[name][-1].split(","))
    assert 2 * sum("float32" in row["source"] for row in found) == len(found)
    for row in found:
        assert row["spills"] == row["scratch"] == 0, row
        assert row["waves"] >= 0.25 * row["most"], row


def test_an_unaligned_bias_leaves_room_for_many_windows(answers: dict[str, Any]) -> None:
    """Read behind the product it would take twice the registers: the softmax is computed in two layouts."""
    (row,) = rows(answers["bias first"])
    if not importlib.metadata.version("triton").startswith(("3.6.", "3.7.")):
        pytest.skip("other compilers of Triton were not looked at")
    assert row["registers"] <= 80, row


@pytest.mark.long  # twenty kernels are compiled
def test_a_kernel_for_one_architecture_is_compiled_for_that_alone_and_spills_nothing(tmp_path: Path) -> None:
    asked = {"hopper": ["kernels", "inspect", "float32_attention", "--arch", "gfx942,sm90", "--json"]}
    found = rows(answered(asked, tmp_path)["hopper"])
    assert len(found) == 20
    assert sum("no TF32" in row["source"] and "TF32=0" in row["config"] for row in found) == 10
    assert {row["arch"] for row in found} == {"sm90"}
    if importlib.metadata.version("triton").startswith(("3.2.", "3.9.")):
        pytest.skip("the compilers of Triton 3.2 and 3.9 spill registers of these kernels")
    assert [row for row in found if row["spills"] or row["scratch"]] == []


def test_what_is_compiled_for_float32_is_what_a_call_in_float32_launches() -> None:
    found = [k for k in launches(32) if "float32" in k.about]
    assert {k.kernel for k in found} == {k.kernel for k in launches(32) if "*bf16" in k.values.values()}
    for k in found:
        assert not {"*bf16", "*fp16"} & {v for v in k.values.values() if isinstance(v, str)}, k.name
        assert k.values.get("EXACT", True), k.name


def test_registers_and_sizes_are_told_for_every_architecture(answers: dict[str, Any]) -> None:
    for row in rows(answers["everywhere"]):
        assert 16 <= row["registers"] <= 512
        assert row["shared"] > 0  # a sum over the threads
        amd = row["arch"].startswith("gfx")
        assert (row["sgprs"] is not None) == amd
        threads = row["warps"] * (64 if amd else 32)
        assert 128 <= threads <= 1024
        assert "BLOCK=" in row["config"]


def test_a_kernel_of_a_user_with_its_example(answers: dict[str, Any]) -> None:
    assert [row["arch"] for row in rows(answers["example"])] == ["gfx942", "sm90"]
    assert {row["config"] for row in rows(answers["example"])} == {"BLOCK=1024"}
    assert [row["warps"] for row in rows(answers["called"])] == [2]
    assert [row["warps"] for row in rows(answers["call"])] == [4]  # the command line goes before the function


def test_every_configuration_of_an_autotuned_kernel(answers: dict[str, Any]) -> None:
    found = [(row["arch"], row["warps"], "BLOCK=512" in row["config"]) for row in rows(answers["arguments"])]
    assert found == [("sm90", w, w == 4) for w in (4, 8)]


def test_spills_are_found_and_told_by_the_exit_code(answers: dict[str, Any]) -> None:
    for name in ("greedy", "greedy too"):
        assert answers[name]["code"] == 1
        (row,) = rows(answers[name])
        assert row["spills"] > 0
        assert row["scratch"] > 0


def test_options_of_the_other_vendor_are_left_out(answers: dict[str, Any]) -> None:
    assert [row["arch"] for row in rows(answers["matrix"])] == ["gfx942", "sm90"]


def test_what_inductor_generated(answers: dict[str, Any]) -> None:
    found = rows(answers["inductor"])
    assert [row["arch"] for row in found] == ["gfx942", "sm90"]
    assert {row["kernel"] for row in found} == {"triton_per_fused__to_copy_add_gelu_mean_mul_pow_rsqrt_0"}
    assert all("XBLOCK=1" in row["config"] for row in found)


def test_a_cache_of_tritons_says_what_compiling_said(answers: dict[str, Any]) -> None:
    def plain(found: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
        told = ("arch", "warps", "registers", "spills", "shared", "sgprs", "waves")
        return {tuple(row[k] for k in told) for row in found}

    cached = rows(answers["cached"])
    for name in ("one query", "everywhere", "inductor", "greedy"):
        assert plain(rows(answers[name])) <= plain(cached)
    assert {row["arch"] for row in rows(answers["cached for one"])} == {"gfx950"}


def test_the_table_is_read_at_a_glance(answers: dict[str, Any]) -> None:
    text = answers["table"]["out"]
    assert "gfx942: registers of a thread (VGPRs)" in text
    assert "cross_entropy_forward" in text
    assert "no kernel of 4 spills registers" in text


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("lacks", 2, "double has no argument wrong; its arguments are X, Y, n, BLOCK"),
        ("misspelt", 2, "tuned has no argument N; its arguments are X"),
        ("no file", 3, "there is no file"),
        ("unnamed", 2, "name a kernel in it, as in"),
        ("no kernel", 2, "has no @triton.jit function 'not_a_kernel'; it has double, tuned, greedy, product"),
        ("another", 2, "float32_attention is made for one architecture; give --arch sm90"),
        ("no call", 2, "has no function 'nothing' for --call"),
        ("no type", 4, "tuned does not compile for sm90"),
    ],
)
def test_errors_name_the_kernel_and_what_to_do(name: str, code: int, says: str, answers: dict[str, Any]) -> None:
    assert answers[name]["code"] == code
    assert says in answers[name]["err"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["kernels"], 2, "say what"),
        (["kernels", "inspect", "rope", "BLOCK"], 2, "'BLOCK' is not an argument"),
        (["kernels", "inspect", "rope", "BLOCK=3"], 2, "belong to a kernel of yours"),
        (["kernels", "inspect", "nothing"], 2, "there is no kernel 'nothing'"),
        (["kernels", "inspect", "no/such/folder"], 3, "does not exist"),
        (["kernels", "inspect", "--arch", "h100"], 2, "as in gfx942,sm90"),
        (["kernels", "inspect", str(HERE)], 3, "holds no Triton kernel"),
        (["kernels", "list", "rope"], 2, "takes no arguments"),
    ],
)
def test_wrong_words_are_refused(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    assert says in capsys.readouterr().err


def test_the_list_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    import rung.kernels

    assert main(["kernels", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["kernels"]
    assert {k["name"] for k in listed} == set(rung.kernels.__all__) - {"available"}
    assert all(k["kernels"] for k in listed)


def test_numbers_that_come_in_float64_are_computed_with_in_float32(tmp_path: Path) -> None:
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}  # empty: what is cached is not compiled
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(HERE / "double_numbers.py")], env=env, capture_output=True, text=True, check=False,
        timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    losses, attention = {"cross_entropy_forward", "cross_entropy_backward"}, {"decode_attention_part"}
    attention |= {f"biased_attention_{of}" for of in ("forward", "backward_q", "backward_kv")}
    attention |= {"float32_attention_forward", "float32_attention_backward"}
    assert {*losses, *attention} == set(found)
    assert not {name: lines for name, lines in found.items() if lines}
