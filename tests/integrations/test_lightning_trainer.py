"""A recipe and a profile in the real Trainer of Lightning, on a tiny attention layer."""

from pathlib import Path
from typing import Any

import pytest
import torch

L = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from rung.errors import UsageError  # noqa: E402
from rung.integrations.lightning import ProfileCallback, RecipeCallback, WatchCallback  # noqa: E402
from rung.watching.files import samples  # noqa: E402

REWRITE = ("fused-qkv",)
ROWS = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 10 * 4 * 16).sin().view(10, 4, 16), torch.arange(10) % 16)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Without biases: that of k has a gradient of rounding errors alone, and AdamW makes whole steps of them.
        self.q, self.k, self.v = (torch.nn.Linear(16, 16, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1) @ self.v(x)).mean(1)


class Module(L.LightningModule):
    """Three batches an epoch, the last of them smaller; with a validation after each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = Attention()
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", self.loss(batch))

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(ROWS, 4)

    val_dataloader = train_dataloader


class Whole(Module):
    """Its layers are its own, and its step calls it as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(x))

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])


class Parts(Whole):
    """Its step calls its parts, and never the whole."""

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.forward(batch[0]), batch[1])


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    how = {
        "max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
        "default_root_dir": folder, "log_every_n_steps": 1,
    }  # fmt: skip
    return L.Trainer(callbacks=list(callbacks), **(how | options))


def fitted(folder: Path, *callbacks: Any, module: Any = Module, ckpt: Path | None = None, **options: Any) -> Any:
    made = module()
    trainer(folder, *callbacks, **options).fit(made, ckpt_path=ckpt)
    return made


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}], ids=str)
def test_losses_and_weights_are_those_without_the_recipe(options: dict[str, Any], tmp_path: Path) -> None:
    recipe = RecipeCallback(REWRITE)
    made, plain = fitted(tmp_path / "a", recipe, **options), fitted(tmp_path / "b", **options)
    assert recipe._trains.calls == len(made.losses) == 6
    assert recipe.applied._compiled.applied()["matches"]["fused-qkv"] > 0
    close = 1e-2 if "precision" in options else 1e-4
    torch.testing.assert_close(made.losses, plain.losses, rtol=close, atol=close)
    torch.testing.assert_close(made.state_dict(), plain.state_dict(), rtol=close, atol=close)


@pytest.mark.parametrize("begun_with", [True, False])
def test_a_run_resumes_from_a_checkpoint_with_or_without_the_recipe(begun_with: bool, tmp_path: Path) -> None:
    once, other = ([RecipeCallback(REWRITE)], []) if begun_with else ([], [RecipeCallback(REWRITE)])
    fitted(tmp_path, *once, max_epochs=1)
    (saved,) = (tmp_path / "checkpoints").glob("*.ckpt")
    assert list(torch.load(saved, weights_only=True)["state_dict"]) == list(Module().state_dict())
    resumed = fitted(tmp_path / "resumed", *other, ckpt=saved)
    plain = fitted(tmp_path / "plain")
    torch.testing.assert_close(resumed.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)


def test_the_module_is_its_only_child_or_itself_or_the_one_named(tmp_path: Path) -> None:
    for module, name, kind in ((Module, None, Attention), (Whole, None, Whole), (Whole, "net", Attention)):
        recipe = RecipeCallback(REWRITE, name)
        fitted(tmp_path / str(name) / module.__name__, recipe, module=module, max_steps=2)
        assert type(recipe.applied.model) is kind
        assert recipe._trains.calls == 2
    with pytest.raises(UsageError, match=r"has no module 'nets': .* such as 'net', 'head'"):
        fitted(tmp_path / "x", RecipeCallback(REWRITE, "nets"), module=Whole)
    with pytest.warns(UserWarning, match="did not call Parts itself"):
        fitted(tmp_path / "y", RecipeCallback(REWRITE), module=Parts, max_steps=2)


def test_lightnings_business_is_left_out_and_said(tmp_path: Path) -> None:
    for recorded, why in (
        ("capture", "Lightning clips gradients"),
        ("reduce-overhead", "sums the gradients of several"),
    ):
        recipe = RecipeCallback((*REWRITE, recorded, "fused-optimizer"))
        with pytest.warns(UserWarning, match=why):
            fitted(tmp_path / recorded, recipe, max_steps=1, accumulate_grad_batches=2)
        assert set(recipe.left_out) == {recorded, "fused-optimizer"}
        assert "configure_optimizers" in recipe.left_out["fused-optimizer"]


def test_what_a_recipe_cannot_stand_beside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Lightning runs the model in float16"):
        fitted(tmp_path, RecipeCallback((*REWRITE, "bf16")), precision="16-true")

    class FSDPStrategy:
        pass

    asked = type("Asked", (), {"strategy": FSDPStrategy()})()
    with pytest.raises(UsageError, match="does not work with FSDPStrategy"):
        RecipeCallback(REWRITE).on_train_start(asked, Module())


def test_a_training_that_raises_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    class Breaks(L.Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise ConnectionError("the disk is gone")

    recipe, made = RecipeCallback(REWRITE), Module()
    with pytest.raises(ConnectionError):
        trainer(tmp_path, recipe, Breaks()).fit(made)
    assert recipe._trains.calls == 1
    made.train().net(ROWS[:2][0])
    assert recipe._trains.calls == 1


def test_batches_are_profiled_and_analyzed_beside_a_recipe(tmp_path: Path) -> None:
    profile = ProfileCallback(2, 3, out=tmp_path / "profile")
    fitted(tmp_path, RecipeCallback(REWRITE), profile)
    assert sorted(path.name for path in profile.folder.iterdir()) == ["analysis.html", "analysis.txt", "trace.json.gz"]
    assert "2 steps" in (profile.folder / "analysis.txt").read_text()


def test_a_training_is_watched_also_where_it_raises(tmp_path: Path) -> None:
    class Breaks(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            if trainer.global_step == 2:
                raise ConnectionError("the disk is gone")

    watch = WatchCallback(folder=tmp_path / "watch")
    with pytest.raises(ConnectionError):
        trainer(tmp_path, watch, Breaks()).fit(Module())
    (lines,) = samples(watch.folder)
    assert (lines[-1].step, lines[-1].ended, lines[-1].exchange_ns) == (2, True, None)
