"""rung.apply on a model of one's own: what goes in, and what comes out."""

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import rung
from rung.engine import process_wide
from rung.engine.compiled import BLOCK_CALLS
from rung.engine.dynamo import HOOKS_UNSEEN, SHAPES
from rung.errors import InputError, UsageError
from rung.hardware.device import cpu
from rung.recipes.recipe import Recipe
from rung.rewrites import RewriteBackend
from rung.workload import Workload


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Nothing is compiled yet, and no recipe of another test holds Dynamo's settings."""
    torch._dynamo.reset()
    if process_wide.CHANGES._holders:
        gc.collect()
    yield
    torch._dynamo.reset()


class Two(nn.Module):
    """Two outputs in a dict: one that autocast changes, one that is no number at all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"y": self.linear(x), "index": torch.arange(3), "name": "two"}


@pytest.mark.parametrize("rungs", [["bf16"], ["bf16", "sdpa"]])
def test_under_bf16_the_outputs_keep_their_dtype_and_their_gradients(rungs: list[str]) -> None:
    model, x = Two(), torch.randn(4, 8, requires_grad=True)
    output = rung.apply(model, rungs)(x)
    assert output["y"].dtype == torch.float32
    assert output["index"].dtype == torch.int64
    assert output["name"] == "two"
    # It did run in bfloat16: every value is one of bfloat16's.
    torch.testing.assert_close(output["y"], output["y"].bfloat16().float(), rtol=0, atol=0)
    output["y"].square().sum().backward()
    assert x.grad is not None
    assert model.linear.weight.grad is not None
    assert model.linear.weight.grad.dtype == torch.float32


def test_a_derivative_in_forward_mode_is_that_of_the_model() -> None:
    """Code that Inductor makes of pointwise operations leaves it out, and says nothing."""
    x = torch.randn(3, 8)
    compiled = rung.apply(nn.Sigmoid(), ["compile"])
    compiled(x)
    with torch.no_grad(), forward_ad.dual_level():
        slope = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
    assert slope is not None
    torch.testing.assert_close(slope, x.sigmoid() * (1 - x.sigmoid()))


def linear_step(loss: Any = None) -> Any:
    """What a step of a linear layer gives under autocast. loss: of training."""
    optimizer = (lambda parameters: torch.optim.SGD(parameters, lr=0.1)) if loss else None
    applied = rung.apply(
        nn.Linear(8, 8), "bf16", loss=loss, optimizer=optimizer, forward=lambda model, batch: model(batch)
    )
    return applied.step(torch.randn(4, 8))


def test_under_bf16_the_output_of_a_step_in_inference_keeps_its_dtype() -> None:
    output = linear_step()
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, output.bfloat16().float(), rtol=0, atol=0)


def test_under_bf16_the_output_of_a_training_step_is_what_autocast_makes_of_it() -> None:
    """The climb measured it so: a cast of logits would take time that nobody measured."""
    assert linear_step(lambda output, batch: output.float().square().mean())[1].dtype == torch.bfloat16


@pytest.mark.parametrize("rungs", [[], ["bf16", "sdpa"]])
def test_a_step_without_a_loss_is_the_forward_that_was_given(rungs: list[str]) -> None:
    model, x = Two(), torch.randn(4, 8)
    applied = rung.apply(model, rungs, forward=lambda model, batch: model(batch["given"])["y"].sum(-1) + batch["more"])
    output = applied.step({"given": x, "more": 3.0})
    torch.testing.assert_close(output, model(x)["y"].sum(-1) + 3.0, rtol=0.05, atol=0.05)
    assert not output.requires_grad
    assert applied(x)["y"].shape == (4, 8)


def test_a_model_that_is_bfloat16_itself_stays_so() -> None:
    model = nn.Linear(8, 8).bfloat16()
    assert rung.apply(model, "bf16")(torch.randn(4, 8).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("rungs", [["bf16"], ["bf16", "fused-qkv"]], ids=lambda rungs: rungs[-1])
def test_a_model_that_is_given_another_dtype_afterwards_has_its_outputs_in_that(rungs: list[str]) -> None:
    model = Two()
    applied = rung.apply(model, rungs)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float32):
        model.to(dtype)
        assert applied(torch.randn(4, 8, dtype=dtype))["y"].dtype == dtype


def test_every_shape_is_compiled_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    original = RewriteBackend.__call__
    monkeypatch.setattr(RewriteBackend, "__call__", lambda *a: compiled.append(1) or original(*a))
    with torch._dynamo.config.patch(cache_size_limit=8):
        applied = rung.apply(nn.Linear(8, 8), "sdpa")
        for batch in range(2, 14):
            applied(torch.randn(batch, 8))
        assert len(compiled) == 12
        applied.undo()
        assert torch._dynamo.config.cache_size_limit == 8


def test_another_thread_has_every_shape_compiled_and_runs_hooks_that_come_later() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    applied = rung.apply(model, "fused-qkv")

    def call() -> int:
        for batch in range(2, 14):
            applied(torch.randn(batch, 8))
        graphs = applied._compiled.backend.graphs  # type: ignore[union-attr]
        model[0].register_forward_hook(lambda module, arguments, output: output + 1)
        torch.testing.assert_close(applied(torch.ones(2, 8)), model(torch.ones(2, 8)))
        return graphs

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call).result() == 12


@pytest.mark.parametrize("recipe", [None, b"x", 5, ["compile", None], [b"compile"]])
def test_what_is_no_recipe_is_refused_in_one_sentence(recipe: Any) -> None:
    with pytest.raises(UsageError, match=r"rung\.apply takes"):
        rung.apply(nn.Linear(8, 8), recipe)


def test_what_is_no_model_is_refused_in_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"got a function: give the torch\.nn\.Module itself"):
        rung.apply(lambda: nn.Linear(2, 2), ["sdpa"])  # type: ignore[arg-type]


def test_one_rung_may_be_given_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert rung.apply(nn.Linear(8, 8), "fused-optimizer").pending == ("fused-optimizer",)
    (tmp_path / "fused-optimizer").write_text("schema = 1\nrungs = []\n")  # a file of that name goes first
    assert rung.apply(nn.Linear(8, 8), "fused-optimizer").pending == ()


@pytest.fixture
def newer_api() -> Iterator[None]:
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has one API only")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("newer_api")
def test_a_precision_set_by_the_newer_api_is_no_obstacle() -> None:
    x, model = torch.randn(4, 8), nn.Linear(8, 8)
    torch.testing.assert_close(rung.apply(model, [])(x), model(x))


def test_a_workloads_model_is_made_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("rung.recipes.apply.pick", lambda wanted: asked.append(wanted) or cpu())
    workload = Workload("plain", lambda: nn.Linear(8, 8), lambda seed: torch.randn(4, 8))
    assert next(rung.apply(workload, [], device="cpu").model.parameters()).device.type == "cpu"
    assert asked == ["cpu"]
    with pytest.raises(UsageError, match="a model stays where it is"):
        rung.apply(nn.Linear(8, 8), [], device="cpu")


@pytest.mark.parametrize("name", ["capture", "model-sdpa", "static-cache", "fp8-linears", "pdl"])
def test_what_is_impossible_here_is_warned_of_and_the_rest_is_applied(name: str) -> None:
    model, x = Two(), torch.randn(4, 8)
    with pytest.warns(UserWarning, match=f"^{name} is not in effect: "):
        applied = rung.apply(model, ["bf16", name])
    assert applied.pending == (name,)
    assert not torch.equal(applied(x)["y"], model(x)["y"])


def test_eight_bits_without_a_layer_that_can_take_them_are_warned_of() -> None:
    with pytest.warns(
        UserWarning, match=r"^int8-weights is not in effect: Linear has no linear layer that it can take"
    ):
        assert rung.apply(nn.Linear(8, 8), ["int8-weights"]).pending == ("int8-weights",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rung.apply(nn.Linear(16, 16), ["int8-weights"]).pending == ()


def test_a_setting_that_this_torch_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.engine.dynamo.inductor_settings", lambda names: {})
    with pytest.warns(UserWarning, match=r"no setting combo_kernels"):
        assert rung.apply(Two(), ["combo-kernels"]).pending == ("combo-kernels",)


@pytest.mark.parametrize(
    ("name", "why"), [("fused-optimizer", "RMSprop has no fused form"), ("capture", "a CPU has no graphs")]
)
def test_a_rung_that_the_optimizer_cannot_have_is_left_out(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rung.recipes.apply.pick", lambda *wanted: cpu())
    with pytest.warns(UserWarning, match=f"^{name} is not in effect: {why}"):
        applied = rung.apply(
            nn.Linear(8, 8),
            [name],
            loss=lambda output, batch: output.square().mean(),
            optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.1),
        )
    assert applied.pending == (name,)
    assert torch.isfinite(applied.step(torch.randn(4, 8))[0])
    workload = Workload(
        "plain", lambda: nn.Linear(8, 8), lambda seed: torch.randn(4, 8), loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.1),
    )  # fmt: skip
    with pytest.warns(UserWarning, match=f"^{name} is not in effect: {why}"):
        assert rung.apply(workload, [name]).pending == (name,)


def test_what_of_a_model_is_read_and_switched_is_the_models() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    applied = rung.apply(model, [])
    assert applied.eval() is applied
    assert (applied.training, model[1].training) == (False, False)
    assert applied.train().training
    assert [*applied.parameters()] == [*model.parameters()]
    assert applied.state_dict().keys() == model.state_dict().keys()
    with pytest.raises(AttributeError, match=r"has no 'generate'; `\.model` is the model itself"):
        applied.generate()
    assert not hasattr(applied, "forward")
    assert repr(applied) == "Sequential under an empty recipe"
    with pytest.raises(UsageError, match="got SGD as optimizer=: give a function that makes it"):
        rung.apply(model, [], loss=lambda output, batch: output.sum(), optimizer=torch.optim.SGD(model.parameters()))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda way: way.__name__)
def test_what_runs_its_own_model_is_not_copied(way: Callable[[Any], Any]) -> None:
    """A deep copy held a model of its own, whose weights could change, and ran the first."""
    applied = rung.apply(Two(), ["sdpa"])
    with pytest.raises(UsageError, match=r"cannot be copied or pickled: copy or save `\.model`"):
        way(applied)


def test_a_rung_whose_variable_the_process_lacks_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="^expandable-segments is not in effect: start the process with PYTORCH_"):
        assert rung.apply(nn.Linear(8, 8), ["expandable-segments"]).pending == ("expandable-segments",)


def test_what_a_step_has_bound_to_the_model_is_undone_too() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).relu()

    model = nn.Sequential(*(Block() for _ in range(3)))
    before = [dict(vars(block)) for block in model]
    made = rung.apply(model, ["compile-regions"], loss=lambda y, x: y.sum(), optimizer=torch.optim.AdamW)
    assert all(block._compiled_call_impl is not None for block in model)
    made.undo()
    assert [vars(block) for block in model] == before


def test_several_recipes_of_one_model_are_undone_in_any_order() -> None:
    """Also where one of them is gone, and was never undone."""
    model = Blocks()
    before = [dict(vars(block)) for block in model.blocks]
    rung.apply(model, "compile-regions")
    gc.collect()
    first, second = (rung.apply(model, "compile-regions") for _ in range(2))
    compiled = [block._compiled_call_impl for block in model.blocks]
    first.undo()
    assert [block._compiled_call_impl for block in model.blocks] == compiled
    second.undo()
    assert [vars(block) for block in model.blocks] == before


def test_what_the_user_compiled_after_a_recipe_was_dropped_is_what_was_there_before() -> None:
    model = Blocks()
    rung.apply(model, "compile-regions")
    gc.collect()
    for block in model.blocks:
        block.compile()
    compiled = [block._compiled_call_impl for block in model.blocks]
    rung.apply(model, "compile-regions").undo()
    assert [block._compiled_call_impl for block in model.blocks] == compiled


def test_a_model_with_blocks_under_a_recipe_is_copied_and_saved_as_it_is(tmp_path: Path) -> None:
    model, x = Blocks(), torch.randn(2, 4, 16)
    applied = rung.apply(model, "compile-regions")
    torch.save(model, tmp_path / "model.pt")
    copies = [copy.copy(model.blocks[0]), copy.deepcopy(model.blocks[0])]
    copies.append(torch.load(tmp_path / "model.pt", weights_only=False).blocks[0])
    for copied in copies:
        BLOCK_CALLS.put(copied, lambda x: "its own", model)
        assert copied(x) == "its own"
    applied.undo()
    for copied in copies:
        BLOCK_CALLS.take(copied, model)
        torch.testing.assert_close(copied(x), model.blocks[0](x))


def test_regions_of_a_model_without_repeated_blocks_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="^compile-regions found no list of equal blocks"):
        rung.apply(Two(), ["compile-regions"])(torch.randn(4, 8))


class Siblings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q(x) + self.k(x) * self.v(x)


def test_weights_that_must_be_copied_at_every_call_are_warned_of() -> None:
    model = Siblings()
    kept, applied = model.state_dict(), rung.apply(model, ["fused-qkv"])
    with torch.no_grad(), pytest.warns(UserWarning, match="^weights that are multiplied as one are copied together"):
        applied(torch.randn(4, 8))
    assert kept["q.weight"].data_ptr() == model.q.weight.data_ptr()


def test_a_rewrite_that_finds_nothing_is_warned_of_once() -> None:
    applied, x = rung.apply(Two(), ["sdpa", "hoisted-constants"]), torch.randn(4, 8)
    with pytest.warns(UserWarning, match="^sdpa rewrote nothing"):
        applied(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied(x)


@pytest.mark.parametrize("trains", [False, True])
def test_a_model_that_nobody_holds_any_more_is_freed(trains: bool) -> None:
    loss = (lambda output, batch: output.square().mean()) if trains else None
    optimizer = (lambda parameters: torch.optim.SGD(parameters, lr=0.1)) if trains else None
    model = nn.Linear(8, 8)
    weight = weakref.ref(model.weight)
    applied = rung.apply(model, "sdpa", loss=loss, optimizer=optimizer)
    applied(torch.randn(4, 8))
    applied.step(torch.randn(4, 8))
    del model, applied
    gc.collect()
    assert weight() is None


def test_blocks_that_their_owner_had_compiled_are_freed_under_a_recipe_that_was_dropped() -> None:
    model = Blocks()
    weights = [weakref.ref(block.q.weight) for block in model.blocks]
    for block in model.blocks:
        block.compile()
    rung.apply(model, "compile-regions")
    del model, block
    gc.collect()
    assert [weight() for weight in weights] == [None, None]


@pytest.mark.filterwarnings("ignore:sdpa rewrote nothing")
def test_a_recipe_is_in_effect_on_as_many_models_as_one_likes() -> None:
    """Dynamo counts what it compiles by code object, and leaves a function uncompiled beyond a limit."""
    x = torch.randn(4, 8)
    models = [rung.apply(nn.Linear(8, 8), "sdpa") for _ in range(SHAPES + 4)]
    for model in models:
        model(x)
    assert [model._compiled.backend.graphs for model in models] == [1] * len(models)  # type: ignore[union-attr]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (linear(x).view(b, t, 2, 8).transpose(1, 2) for linear in (self.q, self.k, self.v))
        scores = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
        return x + (scores @ v).transpose(1, 2).reshape(b, t, d)  # type: ignore[no-any-return]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_rewrites_of_blocks_in_a_training_step_are_not_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RewriteBackend, "compiled", lambda self, gm, inputs: gm.forward)
    trainer = rung.apply(
        Blocks(),
        ["compile-regions", "sdpa"],
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.step(torch.randn(2, 4, 16))
    assert not [one for one in said if "rewrote nothing" in str(one.message)]


def test_a_folder_that_is_called_like_a_rung_is_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNG_DATA", str(tmp_path))
    for name in ("sdpa", "auto"):
        (tmp_path / name).mkdir()
    assert repr(rung.apply(Two(), "sdpa")) == "Two under sdpa"
    with pytest.raises(UsageError, match="no verified recipe"):
        rung.apply(Two(), "auto")


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("spda", "did you mean sdpa"),
        (["spda"], "did you mean sdpa"),
        (["sdpa", "sdpa"], "named 2 times"),
        (["int8-weights", "fp8-linears"], "cannot be in effect together"),
        (Recipe(("int8-weights", "fp8-linears")), "cannot be in effect together"),
        (Recipe(("bf16",), numerics="exact"), "needs 'bf16'"),
    ],
    ids=str,
)
def test_rungs_that_cannot_be_meant_are_refused_as_in_a_file(recipe: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rung.apply(Two(), recipe)


@pytest.mark.parametrize("name", ["folder/spda", "spda.toml"])
def test_a_file_that_is_not_there_is_said_so(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} could not be read: [^\\n]*$"):
        rung.apply(Two(), name)


def test_what_is_set_on_it_has_to_be_set_on_the_model() -> None:
    applied = rung.apply(Two(), "bf16")
    for name, value in (("linear", nn.Identity()), ("training", False)):
        with pytest.raises(AttributeError, match=r"set it on `\.model`"):
            setattr(applied, name, value)
    with pytest.raises(AttributeError, match=r"call rung\.apply on the other one"):
        applied.model = Two()
    assert applied.eval().training is False
    assert applied.train().training is True


@pytest.mark.parametrize("taken_up", [False, True])
def test_a_layer_that_is_unfrozen_later_and_not_stepped_is_warned_of_once(
    taken_up: bool, recwarn: pytest.WarningsRecorder
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    model[0].requires_grad_(False)
    train = rung.apply(
        model,
        [],
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda given: torch.optim.SGD(given, lr=0.1),
    )
    x = torch.randn(4, 8)
    train.step(x)
    model[0].requires_grad_(True)
    if taken_up:
        assert train.optimizer is not None
        train.optimizer.add_param_group({"params": list(model[0].parameters())})
    before = model[0].weight.detach().clone()
    for _ in range(3):
        train.step(x)
    assert torch.equal(before, model[0].weight) is not taken_up
    assert [str(w.message)[:25] for w in recwarn.list] == ([] if taken_up else ["2 parameters get gradient"])


@pytest.mark.parametrize("when", [0, 1, 5])
def test_weights_that_are_exchanged_later_and_not_stepped_are_warned_of_once(
    when: int, recwarn: pytest.WarningsRecorder
) -> None:
    model = nn.Linear(8, 4)
    train = rung.apply(
        model,
        [],
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda given: torch.optim.SGD(given, lr=0.1),
    )
    for k in range(16):
        if k == when:
            assert not recwarn.list
            model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
        train.step(torch.randn(4, 8))
    assert [str(w.message)[:25] for w in recwarn.list] == ["2 parameters get gradient"]


def test_one_of_two_models_that_is_undone_leaves_dynamos_settings_to_the_other() -> None:
    config = torch._dynamo.config
    with config.patch({HOOKS_UNSEEN: True, "cache_size_limit": 8}), torch.no_grad():
        models, x = [Blocks(), Blocks()], torch.randn(2, 4, 16)
        first, second = (rung.apply(model, "sdpa") for model in models)
        second(x)
        first.undo()
        for linear in (models[1].blocks[1].k, models[1].blocks[0].q):
            linear.register_forward_hook(lambda module, args, output: output + 1)
            torch.testing.assert_close(second(x), models[1](x))
        second(torch.randn(3, 4, 16))
        assert config.cache_size_limit == SHAPES
        second.undo()
        assert getattr(config, HOOKS_UNSEEN)
        assert config.cache_size_limit == 8


@pytest.mark.parametrize("calls", [False, True])
def test_a_recipe_that_nobody_has_any_more_holds_no_setting(calls: bool) -> None:
    config = torch._dynamo.config
    with config.patch({HOOKS_UNSEEN: True, "cache_size_limit": 8}), torch.no_grad():
        kept, dropped = (rung.apply(Blocks(), "sdpa") for _ in range(2))
        if calls:
            dropped(torch.randn(2, 4, 16))
        del dropped
        gc.collect()
        assert config.cache_size_limit == SHAPES
        kept.undo()
        assert config.cache_size_limit == 8
        dropped = rung.apply(Blocks(), "sdpa")
        dropped.undo()
        del dropped, kept
        gc.collect()
        assert config.cache_size_limit == 8
        last = rung.apply(Blocks(), "sdpa")
        last(torch.randn(2, 4, 16))
        del last
        gc.collect()
        assert config.cache_size_limit == 8
        assert getattr(config, HOOKS_UNSEEN)


def test_blocks_that_stay_compiled_keep_dynamos_limits_as_long_as_there_is_the_model() -> None:
    config = torch._dynamo.config
    with config.patch({HOOKS_UNSEEN: True, "cache_size_limit": 8}), torch.no_grad():
        model = Blocks()
        rung.apply(model, "compile-regions")
        gc.collect()
        assert config.cache_size_limit == SHAPES
        del model
        gc.collect()
        assert config.cache_size_limit == 8


def test_a_setting_of_dynamos_that_the_user_changes_under_a_recipe_stays() -> None:
    config = torch._dynamo.config
    with config.patch({HOOKS_UNSEEN: True, "cache_size_limit": 164}):
        applied = rung.apply(Blocks(), "sdpa")
        config.cache_size_limit = 5000
        applied.undo()
        assert config.cache_size_limit == 5000
        assert getattr(config, HOOKS_UNSEEN)
