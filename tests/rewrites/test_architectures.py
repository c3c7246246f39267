"""Three of the architectures of benchmarks/ladder/architectures.py; the script examines all of them."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="Hugging Face transformers is not installed")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "ladder"))

import architectures
import torch
import toys
import verified

from rung.workload import seeded_model


@pytest.mark.parametrize(
    ("name", "mode", "attention", "gemms", "spared", "calls", "masked"),
    [
        # q, k, v, gate and up of two layers; the mask that transformers makes while it is traced is proved causal
        ("Llama", "train", "sdpa", 15, 6, (2, 2), (2, 0)),
        ("BERT", "infer", "eager", 18, 8, (0, 2), (0, 0)),
        # one key head for all query heads; layers written as products with transposed weights
        ("Falcon", "infer", "eager", 13, 6, (0, 2), (0, 0)),
    ],
    ids=["Llama", "BERT", "Falcon"],
)
def test_an_architecture_is_captured_whole_and_rewritten_to_equal_numbers(
    name, mode, attention, gemms, spared, calls, masked
):
    row = architectures.examine(name, mode, attention)
    assert row.passed, row
    assert row.graphs == 1
    # Some versions of transformers work the rotary angles out by a product, which stays.
    assert row.before["gemm"] - row.after["gemm"] == spared
    assert row.before["gemm"] - gemms in (0, 1)
    assert (row.before["sdpa"], row.after["sdpa"]) == calls
    assert (row.before["masked_sdpa"], row.after["masked_sdpa"]) == masked


def test_one_with_grouped_heads_is_made_as_wide_as_kernels_ask_for() -> None:
    made = toys.make("Gemma2", "train", width=128, tokens=20, dtype="bfloat16", adamw=True)
    model = seeded_model(made)
    output = made.forward(model, made.inputs(0))
    assert (output.shape, output.dtype) == ((2, 20, toys.VOCABULARY), torch.bfloat16)
    assert model.config.head_dim == 32
    assert made.optimizer(list(model.parameters())).defaults["lr"] > 0
    with pytest.raises(ValueError, match="BERT is not made in another width"):
        toys.make("BERT", width=128)


def test_an_architecture_that_is_not_equal_has_its_row() -> None:
    """Nothing was timed then, and nothing warned of."""
    record = {
        "verification": {"passed": False, "checks": 48, "failures": ["output is off by 1"]},
        "verdict": "not equal",
    }
    assert verified.told(json.dumps(record), "") == (False, "no: output is off by 1", [])
