"""`rung estimate` on the command line."""

import json

import pytest

from rung.cli.main import main

SHAPE = [
    "estimate",
    "--hidden",
    "4096",
    "--layers",
    "32",
    "--heads",
    "32",
    "--kv-heads",
    "8",
    "--ffn",
    "14336",
    "--vocab",
    "128256",
]


def test_the_page_has_every_part_and_fits_eighty_columns_without_a_gpu(capsys):
    assert main(SHAPE) == 0
    out = capsys.readouterr().out
    for part in ("qkv", "scores", "projection", "mlp", "logits", "total", "8.03 G parameters"):
        assert part in out
    assert "roof" not in out


@pytest.mark.parametrize("mode", ["train", "infer", "decode"])
def test_with_a_gpu_it_says_the_time_at_the_roof_and_whether_it_fits(capsys, mode):
    assert main([*SHAPE, "--mode", mode, "--gpu", "mi300x"]) == 0
    out = capsys.readouterr().out
    assert "At the roof of one MI300X" in out
    assert "fits in 192 GiB" in out
    assert max(map(len, out.splitlines())) <= 120


def test_json_is_one_document(capsys):
    assert main([*SHAPE, "--gpu", "H100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "estimate"
    assert found["gpu"] == "H100"
    assert sum(part["flops"] for part in found["parts"]) == found["flops"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["estimate"], "--hidden is needed"),
        ([*SHAPE, "--gpu", "Voodoo"], "no GPU named"),
        ([*SHAPE, "--mode", "play"], "no mode"),
        ([*SHAPE, "--dtype", "int3"], "no dtype"),
        ([*SHAPE, "--seq", "0"], "--seq must be"),
        ([*SHAPE, "more"], "unexpected argument"),
        (["estimate", "--hidden", "10", "--layers", "1", "--heads", "3"], "no multiple"),
    ],
)
def test_wrong_use_is_one_sentence(capsys, words, said):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
