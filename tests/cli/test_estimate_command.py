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
    for part in (
        "embedding and head",
        "projections",
        "attention",
        "mlp",
        "norms and elementwise",
        "total",
        "8.03 G parameters",
    ):
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


MIXTURE = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTURE))
    return tmp_path


@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_configuration_is_read_from_its_file_or_its_folder(capsys, folder, name):
    assert main(["estimate", "--hf", str(folder / name), "--mode", "decode", "--gpu", "MI300X", "--seq", "4096"]) == 0
    out = capsys.readouterr().out
    assert "46.7 G parameters (12.9 G active)" in out
    assert "2 of 8 experts of 14336" in out
    assert "router and experts" in out
    assert "128 KiB a token, 512 MiB a sequence of 4,096" in out
    assert "sequences of 4,096 tokens fit into 90% of its memory, in pages of 16 tokens" in out


def test_ranks_share_the_work_and_the_record_has_all_of_it(capsys, folder):
    words = ["estimate", "--hf", str(folder), "--mode", "train", "--gpu", "H100", "--tensor-parallel", "8"]
    words += ["--data-parallel", "4", "--sharding", "zero1"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "On each of 32 GPUs (8 tensor-parallel x 4 data-parallel, zero1; 8,192 tokens in all)" in out
    assert "Tensor parallelism: each GPU sends" in out
    assert "With recomputation of each layer:" in out
    assert max(map(len, out.splitlines())) <= 120
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["sharding"] == "zero1"
    assert found["memory"]["total_recomputed"] < found["memory"]["total"]
    assert found["communication"]["tensor"] > found["communication"]["tensor_per_layer"] > 0
    assert found["active"] < found["parameters"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dtype", "bf16"], "two moments and a copy of the weights in fp32"),
        (["--dtype", "fp32"], "All of it is in fp32; the optimizer, AdamW, keeps two moments."),
        ([], "Add --gpu NAME"),
        (["--gpu", "H100"], "--data-parallel N --sharding fsdp divides weights, gradients and optimizer among N GPUs."),
        (
            ["--gpu", "H100", "--data-parallel", "2", "--sharding", "fsdp", "--seq", "20480"],
            "To fit it, give more GPUs",
        ),
        (["--gpu", "H100", "--seq", "1000000"], "The activations alone do not fit"),
    ],
)
def test_what_fills_the_memory_of_a_training_and_what_to_do_is_said(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main([*SHAPE, "--mode", "train", *words]) == 0
    assert said in capsys.readouterr().out


def test_nothing_is_advised_where_a_training_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHAPE, "--mode", "train", "--gpu", "MI300X"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Weights and gradients are in bf16")


def test_a_model_that_leaves_no_room_for_a_sequence_is_told(capsys, folder):
    assert main(["estimate", "--hf", str(folder), "--mode", "decode", "--gpu", "H100"]) == 0
    out = capsys.readouterr().out
    assert "does not fit in 80.0 GiB" in out
    assert "No sequence of 2,048 tokens fits" in out


def test_names_in_a_configuration_cannot_steer_a_terminal(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "\x1b[31mred\u202e<script>"}))
    assert main(["estimate", "--hf", str(tmp_path)]) == 3
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "which Rung cannot estimate" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hidden", "64"], "--hf says what --hidden is"),
        (["--tensor-parallel", "3"], "does not divide the 32 heads of attention"),
        (["--sharding", "zero4", "--mode", "train"], "--sharding: invalid choice: 'zero4'"),
        (["--data-parallel", "8"], "add --mode train"),
        (["--source", "77"], "--source is for models with an encoder"),
    ],
)
def test_what_does_not_go_with_a_configuration_is_one_sentence(capsys, folder, words, said):
    assert main(["estimate", "--hf", str(folder), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["estimate"], "--hidden is needed"),
        ([*SHAPE, "--gpu", "Voodoo"], "no GPU named"),
        ([*SHAPE, "--mode", "play"], "--mode: invalid choice: 'play'"),
        ([*SHAPE, "--dtype", "int3"], "--dtype: invalid choice: 'int3'"),
        ([*SHAPE, "--train"], "Did you mean --mode train?"),
        ([*SHAPE, "--seq", "0"], "--seq must be"),
        ([*SHAPE, "more"], "unexpected argument"),
        (["estimate", "--hidden", "10", "--layers", "1", "--heads", "3"], "not a multiple"),
    ],
)
def test_wrong_use_is_one_sentence(capsys, words, said):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_one_layer_and_one_head_are_no_layers_and_heads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--hidden", "64", "--layers", "1", "--heads", "1"]) == 0
    assert "1 layer, 1 head of 64" in capsys.readouterr().out
    assert main(["estimate", "--hidden", "64", "--layers", "2", "--heads", "2"]) == 0
    assert "2 layers, 2 heads of 32" in capsys.readouterr().out
