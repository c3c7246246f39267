"""Models by their names: what each family makes of a configuration, what is refused, and the file that a name stands for.

The libraries are optional: tests of a family skip, saying so, where its library is missing.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rung.cli.main import main
from rung.engine.step import Step
from rung.errors import UsageError, WorkloadError
from rung.hardware import pick
from rung.plan import Plan
from rung.workload import load, seeded_model
from rung.workload.by_name import FAMILIES, family, source
from rung.workload.load import parameters

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
IMAGE = {"image_size": 32, "patch_size": 8}
TEXT = {**SMALL, "vocab_size": 128}
SIDES = {
    f"{side}_{what}": n
    for side in ("encoder", "decoder")
    for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
# By the class of transformers that a configuration names: the configuration's class, and values of it.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3ForCausalLM": ("Qwen3Config", {**TEXT, "num_key_value_heads": 2, "head_dim": 16}),
    "BertForMaskedLM": ("BertConfig", TEXT),
    "ViTForImageClassification": ("ViTConfig", {**SMALL, **IMAGE}),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {**SIDES, **TOKENS, "d_model": 64, "vocab_size": 128, "max_source_positions": 32, "max_target_positions": 64},
    ),
    "CLIPModel": ("CLIPConfig", {"text_config": {**TEXT, "eos_token_id": 2}, "vision_config": {**SMALL, **IMAGE}, "projection_dim": 32}),
    "ASTForAudioClassification": ("ASTConfig", {**SMALL, "max_length": 64, "num_mel_bins": 32}),
}  # fmt: skip
HEADS = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
UNET = {
    "sample_size": 8, "block_out_channels": (16, 32), "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "cross_attention_dim": 32, "norm_num_groups": 4, "layers_per_block": 1,
    "attention_head_dim": 8,
}  # fmt: skip
DIFFUSERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SD3Transformer2DModel": (
        "transformer",
        {**HEADS, "in_channels": 16, "out_channels": 16, "joint_attention_dim": 32, "caption_projection_dim": 32,
         "pooled_projection_dim": 32, "sample_size": 8, "pos_embed_max_size": 16},
    ),
    "FluxTransformer2DModel": (
        "transformer",
        {"num_attention_heads": 2, "attention_head_dim": 16, "axes_dims_rope": (4, 6, 6), "num_single_layers": 1, "num_layers": 1,
         "joint_attention_dim": 32, "pooled_projection_dim": 32, "in_channels": 16, "guidance_embeds": True},
    ),
    "DiTTransformer2DModel": ("transformer", {**HEADS, "in_channels": 4, "out_channels": 8, "sample_size": 8, "patch_size": 2}),
    "UNet2DConditionModel": (
        "unet", {**UNET, "addition_embed_type": "text_time", "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 80},
    ),
    "AutoencoderKL": (
        "vae",
        {"block_out_channels": (16, 16), "norm_num_groups": 4, "latent_channels": 16, "down_block_types": ("DownEncoderBlock2D",) * 2,
         "up_block_types": ("UpDecoderBlock2D",) * 2},
    ),
}  # fmt: skip


def stepped(target: str, **options: str) -> tuple[Any, Any]:
    """The loss and the output of one step on the CPU."""
    workload = load(target, options)
    return Step(workload, seeded_model(workload), Plan(), pick("cpu"))(workload.inputs(1))


@pytest.fixture
def transformers_folder(tmp_path: Path) -> Any:
    """Saves a small configuration of a class; with weights where they are asked for."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    def saved(name: str, weights: bool = False) -> Path:
        config_class, values = TRANSFORMERS[name]
        config = getattr(transformers, config_class)(**values)
        config.architectures = [name]
        if weights:
            getattr(transformers, name)(config).to(torch.bfloat16).save_pretrained(tmp_path)
        else:
            config.save_pretrained(tmp_path)
        return tmp_path

    return saved


@pytest.mark.parametrize("task", ["", "train"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_model_of_transformers_steps_as_its_configuration_says(
    name: str, task: str, transformers_folder: Any
) -> None:
    options = {"batch": "2", "seq": "16", "random-weights": "true", **({"task": task} if task else {})}
    loss, output = stepped(f"hf:{transformers_folder(name)}", **options)
    assert (loss is not None) == (task == "train")
    assert torch.isfinite(output if loss is None else loss).all()


def test_a_decoder_generates_as_many_tokens_as_it_is_told(transformers_folder: Any) -> None:
    folder = transformers_folder("Qwen3ForCausalLM")
    _, output = stepped(f"hf:{folder}", task="generate", seq="8", **{"new-tokens": "3", "random-weights": "true"})
    assert output.shape == (1, 11)


def test_weights_are_those_of_the_folder_in_their_dtype_and_in_float32_to_be_trained(transformers_folder: Any) -> None:
    folder = transformers_folder("Qwen3ForCausalLM", weights=True)
    one, other = (
        next(seeded_model(load(f"hf:{folder}", {"task": task})).parameters()) for task in ("prefill", "train")
    )
    assert (one.dtype, other.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(one.float(), other)


@pytest.mark.parametrize("task", ["infer", "train"])
@pytest.mark.parametrize("name", DIFFUSERS)
def test_a_model_of_a_pipeline_steps_as_its_configuration_says(name: str, task: str, tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    part, values = DIFFUSERS[name]
    getattr(diffusers, name)(**values).save_pretrained(tmp_path / part)
    options = {"task": task, "batch": "2", "latent": "8", "prompt-tokens": "6"}
    if (part, task) == ("vae", "train"):
        with pytest.raises(UsageError, match="only decoding is a workload"):
            load(f"diffusers:{tmp_path}", options)
        return
    for random in ("true", "false"):
        loss, output = stepped(f"diffusers:{tmp_path}", **options, **{"random-weights": random})
        assert torch.isfinite(output if loss is None else loss).all()


@pytest.mark.parametrize("task", ["infer", "train"])
def test_a_model_of_timm_steps(task: str) -> None:
    pytest.importorskip("timm", reason="timm is not installed")
    loss, output = stepped("timm:resnet18", task=task, batch="2", size="64", **{"random-weights": "true"})
    assert output.shape == (2, 1000) if loss is None else torch.isfinite(loss)


# Refused in a sentence


@pytest.mark.parametrize("prefix", FAMILIES)
def test_a_name_is_needed(prefix: str) -> None:
    with pytest.raises(UsageError, match=f"names no model: give one, as in {prefix}"):
        load(prefix)


@pytest.mark.parametrize(
    ("target", "library"), [("hf:x", "transformers"), ("timm:x", "timm"), ("diffusers:x", "diffusers")]
)
def test_where_the_library_is_missing_it_is_said_how_to_get_it(
    target: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(WorkloadError, match=f"pip install {library}"):
        load(target)


def test_what_is_not_there_is_said_with_what_to_do(transformers_folder: Any) -> None:
    folder = transformers_folder("Qwen3ForCausalLM")
    for target, options, said in (
        ("hf:nobody/nothing", {}, "not in the local cache: get it with `hf download nobody/nothing`"),
        (f"hf:{folder}", {}, "has no weights .*--random-weights"),
        (f"hf:{folder}", {"random-weights": "true", "task": "infr"}, "one of prefill, generate, infer, train"),
    ):
        with pytest.raises(UsageError, match=said):
            load(target, options)


# The file that it stands for


@pytest.mark.parametrize("prefix", FAMILIES)
def test_the_file_needs_nothing_of_ours_but_the_workload(prefix: str) -> None:
    text = source(f"{prefix}some/name", {"batch": 2, "task": "train"})
    compile(text, "x.py", "exec")
    assert [line for line in text.splitlines() if "rung" in line and "import" in line] == ["from rung import Workload"]
    assert text.endswith('def workload() -> Workload:\n    return make("some/name", batch=2, task="train")\n')


def test_the_file_makes_the_same_workload(
    tmp_path: Path, transformers_folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path = transformers_folder("Qwen3ForCausalLM"), tmp_path / "mine.py"
    words = ["climb", f"hf:{folder}", "--seq", "8", "--random-weights", "--write-workload", str(path)]
    assert main(words) == 0
    assert f"rung climb {path}:workload" in capsys.readouterr().err
    one, other = load(f"{path}:workload"), load(f"hf:{folder}", {"seq": "8", "random-weights": "true"})
    for a, b in zip(seeded_model(one).parameters(), seeded_model(other).parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.inputs(3)["input_ids"], other.inputs(3)["input_ids"])
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err


def test_only_a_model_by_name_stands_for_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["climb", "tiny-transformer", "--write-workload", str(tmp_path / "x.py")]) == 2
    assert "tiny-transformer is a workload of its own" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_shows_the_options_of_a_family() -> None:
    for prefix, (module, _) in FAMILIES.items():
        known = parameters(f"{prefix}x")
        assert "name" not in known
        assert {"batch", "random_weights"} <= {*known}
        assert importlib.import_module(module).make.__doc__
        assert family(f"{prefix}x") == prefix
