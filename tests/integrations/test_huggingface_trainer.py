"""A recipe and a profile in the real Trainer of Hugging Face transformers, on a tiny Llama."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="Hugging Face transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")

from rung.errors import UsageError  # noqa: E402
from rung.integrations.huggingface import ProfileCallback, RecipeCallback, WatchCallback  # noqa: E402
from rung.watching.files import samples  # noqa: E402

REWRITE = ("fused-qkv",)
ROWS = [{"input_ids": torch.arange(k, k + 8) % 32, "labels": torch.arange(k, k + 8) % 32} for k in range(10)]


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config)


def trainer(folder: Path, *callbacks: Any, kind: Any = transformers.Trainer, model: Any = None, **options: Any) -> Any:
    """Of three steps, the last of them smaller, with an evaluation and a checkpoint after each second."""
    how = {
        "per_device_train_batch_size": 4, "num_train_epochs": 1, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2,
        "save_steps": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2,
    }  # fmt: skip
    args = transformers.TrainingArguments(str(folder), **(how | options))
    model = model or llama()
    return kind(model, args, train_dataset=ROWS, eval_dataset=ROWS[:3], callbacks=list(callbacks))


def losses(made: Any) -> list[float]:
    return [row.get("loss", row.get("eval_loss")) for row in made.state.log_history if {"loss", "eval_loss"} & set(row)]


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    return transformers.LlamaForCausalLM.from_pretrained(folder).state_dict()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = trainer(tmp_path_factory.mktemp("plain"))
    made.train()
    return made


def test_losses_weights_and_checkpoints_are_those_without_the_recipe(plain: Any, tmp_path: Path) -> None:
    recipe = RecipeCallback(REWRITE)
    made = trainer(tmp_path, recipe)
    made.train()
    assert recipe._trains.calls == 3
    assert recipe.applied._compiled.applied()["matches"]["fused-qkv"] > 0
    assert recipe.left_out == {}
    torch.testing.assert_close(losses(made), losses(plain), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made.model.state_dict(), plain.model.state_dict(), rtol=1e-4, atol=1e-5)
    mine, theirs = tmp_path / "checkpoint-2", Path(plain.args.output_dir) / "checkpoint-2"
    assert sorted(path.name for path in mine.iterdir()) == sorted(path.name for path in theirs.iterdir())
    assert (mine / "config.json").read_text() == (theirs / "config.json").read_text()
    torch.testing.assert_close(checkpoint(mine), checkpoint(theirs), rtol=1e-4, atol=1e-5)
    made.model(**{key: value[None] for key, value in ROWS[0].items()})
    assert recipe._trains.calls == 3, "after the training the model runs as it is"


@pytest.mark.parametrize("begun_with", [True, False])
def test_a_run_resumes_from_a_checkpoint_with_or_without_the_recipe(
    begun_with: bool, plain: Any, tmp_path: Path
) -> None:
    begun = trainer(tmp_path, *([RecipeCallback(REWRITE)] if begun_with else []))
    begun.train()
    resumed = trainer(tmp_path, *([] if begun_with else [RecipeCallback(REWRITE)]))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    torch.testing.assert_close(resumed.model.state_dict(), plain.model.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 2}, {"bf16": True}], ids=str)
def test_what_the_arguments_ask_for_holds_under_the_recipe(options: dict[str, Any], tmp_path: Path) -> None:
    recipe = RecipeCallback(REWRITE)
    made, other = trainer(tmp_path / "a", recipe, **options), trainer(tmp_path / "b", **options)
    made.train()
    other.train()
    assert recipe._trains.calls == 3
    close = 1e-2 if "bf16" in options else 1e-4
    torch.testing.assert_close(losses(made), losses(other), rtol=close, atol=close)


def test_a_copy_of_the_model_taken_in_training_is_a_model(tmp_path: Path) -> None:
    class Copies(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.copied = copy.deepcopy(kwargs["model"])

    copies, recipe = Copies(), RecipeCallback(REWRITE)
    trainer(tmp_path, recipe, copies).train()
    copies.copied(**{key: value[None] for key, value in ROWS[0].items()})
    assert recipe._trains.calls == 3


def test_the_trainers_business_is_left_out_and_said(tmp_path: Path) -> None:
    recipe = RecipeCallback((*REWRITE, "capture", "fused-optimizer"))
    with pytest.warns(UserWarning, match="the Trainer clips gradients"):
        trainer(tmp_path, recipe, optim="adamw_torch", max_steps=1).train()
    assert set(recipe.left_out) == {"capture", "fused-optimizer"}
    assert 'optim="adamw_torch_fused"' in recipe.left_out["fused-optimizer"]


def test_fused_steps_of_the_trainers_own_are_as_good(tmp_path: Path) -> None:
    recipe = RecipeCallback((*REWRITE, "fused-optimizer"))
    trainer(tmp_path, recipe, optim="adamw_torch_fused", max_steps=1).train()
    assert recipe.left_out == {}


def test_arguments_that_a_recipe_cannot_stand_beside_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="torch_compile=True"):
        trainer(tmp_path, RecipeCallback(REWRITE), torch_compile=True).train()
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True)
    for name, value, words in (("_n_gpu", 2, "2 GPUs"), ("fsdp", True, "FSDP"), ("deepspeed", {"a": 1}, "DeepSpeed")):
        asked = copy.copy(args)
        setattr(asked, name, value)
        with pytest.raises(UsageError, match=words):
            RecipeCallback(REWRITE).on_train_begin(asked, None, None)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UsageError, match="does not work with FSDP"):
        RecipeCallback(REWRITE).on_train_begin(args, None, None)


def test_a_loss_that_passes_the_model_by_is_warned_of(tmp_path: Path) -> None:
    class Mine(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return model.model(inputs["input_ids"]).last_hidden_state.square().mean()

    with pytest.warns(UserWarning, match="did not call LlamaForCausalLM itself"):
        trainer(tmp_path, RecipeCallback(REWRITE), kind=Mine, max_steps=2, eval_strategy="no").train()


def test_a_training_that_was_broken_off_can_be_begun_again(tmp_path: Path) -> None:
    class Breaks(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not hasattr(self, "broken"):
                self.broken = True
                raise ConnectionError("the disk is gone")

    recipe = RecipeCallback(REWRITE)
    made = trainer(tmp_path, recipe, Breaks())
    with pytest.raises(ConnectionError):
        made.train()
    made.train()
    assert recipe._trains.calls == 3


def test_steps_are_profiled_and_analyzed_beside_a_recipe(tmp_path: Path) -> None:
    profile = ProfileCallback(2, 3, out=tmp_path / "profile")
    trainer(tmp_path / "run", RecipeCallback(REWRITE), profile).train()
    assert sorted(path.name for path in profile.folder.iterdir()) == ["analysis.html", "analysis.txt", "trace.json.gz"]
    assert "2 steps" in (profile.folder / "analysis.txt").read_text()


def test_a_profile_that_fails_stops_no_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = trainer(tmp_path / "run", ProfileCallback(2, 3, out=tmp_path / "file"))
        made.train()
    assert made.state.global_step == 3
    assert sum("goes on without its profile" in str(one.message) for one in seen) == 1


def test_a_training_is_watched_and_gradients_that_nobody_averages_have_no_exchange(plain: Any, tmp_path: Path) -> None:
    watch = WatchCallback(folder=tmp_path / "watch")
    made = trainer(tmp_path / "run", watch)
    made.train()
    torch.testing.assert_close(made.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)
    (lines,) = samples(watch.folder)
    assert (lines[-1].step, lines[-1].ended, lines[-1].exchange_ns) == (3, True, None)
