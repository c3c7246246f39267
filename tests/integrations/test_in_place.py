"""A recipe on a model in place: which calls run under it, what the object shows of it, and which rungs a loop leaves out."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch

from rung.errors import UsageError
from rung.hardware.device import cpu
from rung.integrations.in_place import Loop, TrainsInPlace
from rung.recipes import store
from rung.recipes.fingerprint import structure_hash
from rung.recipes.recipe import Recipe


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1) @ self.v(x)


def loop(model: torch.nn.Module, *, fused: bool = False, accumulates: bool = False, float16: bool = False) -> Loop:
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    return Loop("the loop", [optimizer], accumulates, float16, "ask for fused steps")


def trained(model: torch.nn.Module, recipe: Any = ("fused-qkv",), **how: bool) -> TrainsInPlace:
    return TrainsInPlace(model, recipe, loop(model, **how))


def test_calls_that_train_run_under_the_recipe_and_no_others() -> None:
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(2, 4, 16)
    expected = model(x)
    expected.sum().backward()
    gradient = model.q.weight.grad.clone()
    model.zero_grad()
    bound = trained(model)
    with torch.no_grad():
        model(x)
    model.eval()(x)
    assert bound.calls == 0
    output = model.train()(x)
    output.sum().backward()
    assert bound.calls == 1
    assert bound.applied._compiled.applied()["matches"]["fused-qkv"] > 0
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(model.q.weight.grad, gradient)
    bound.undo()
    model(x)
    assert bound.calls == 1


def test_the_object_and_copies_of_it_show_nothing_of_the_recipe() -> None:
    model = Attention()
    before = list(model.state_dict())
    bound = trained(model)
    x = torch.randn(1, 4, 16)
    model(x)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied) is Attention
        torch.testing.assert_close(copied(x), model(x))
    assert bound.calls == 3
    assert list(model.state_dict()) == before
    assert "forward" not in vars(model)


def test_a_call_that_raises_leaves_the_recipe_in_effect() -> None:
    model = Attention()
    bound = trained(model)
    with pytest.raises(Exception, match=r"(?i)shape|size|mat1"):
        model(torch.randn(1, 4, 5))
    model(torch.randn(1, 4, 16))
    assert bound.calls == 2


def test_rungs_that_are_the_loops_business_are_left_out_and_said() -> None:
    with pytest.warns(UserWarning, match="is not in effect") as seen:
        bound = trained(Attention(), ("fused-qkv", "capture", "fused-optimizer", "channels-last"))
    assert set(bound.left_out) == {"capture", "fused-optimizer", "channels-last"}
    told = [str(one.message) for one in seen]
    assert sorted(told) == sorted(bound.left_out.values())
    assert "ask for fused steps" in bound.left_out["fused-optimizer"]
    assert repr(bound.applied) == "Attention under fused-qkv"


def test_nothing_is_said_of_fused_steps_where_the_loop_has_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(Attention(), ("fused-qkv", "fused-optimizer"), fused=True).left_out == {}


def test_replays_are_left_out_where_gradients_are_summed_up() -> None:
    assert trained(Attention(), ("reduce-overhead",)).left_out == {}
    with pytest.warns(UserWarning, match="overwrites the gradients"):
        assert list(trained(Attention(), ("reduce-overhead",), accumulates=True).left_out) == ["reduce-overhead"]


def test_a_recipe_for_inference_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="made for mode 'infer', and this is 'train'"):
        trained(Attention(), Recipe(("fused-qkv",), mode="infer"))


def test_auto_is_the_recipe_for_training() -> None:
    model = Attention()
    here = {"device": cpu().name, "torch": str(torch.__version__), "structure": structure_hash(model)}
    for mode, rung in (("train", "fused-qkv"), ("infer", "sdpa")):
        store.keep(Recipe((rung,), mode=mode, numerics="exact", status="verified", made_on=here))
    assert repr(trained(model, "auto").applied) == "Attention under fused-qkv"


def test_evaluation_runs_blocks_that_are_compiled_in_training_as_they_are() -> None:
    blocks = torch.nn.Sequential(Attention(), Attention())
    bound = trained(blocks, ("compile-regions",))
    assert all(vars(block)["_compiled_call_impl"] for block in blocks)
    seen = []
    blocks[0].register_forward_hook(lambda block, args, output: seen.append(vars(block)["_compiled_call_impl"]))
    blocks.eval()(torch.ones(1, 4, 16))
    assert seen == [None]
    bound.undo()
    assert not any("_compiled_call_impl" in vars(block) for block in blocks)


def test_variables_that_the_process_lacks_are_said() -> None:
    recipe = Recipe(("hipblaslt",), variables={"TORCH_BLAS_PREFER_HIPBLASLT": "1"})
    with pytest.warns(UserWarning, match="start the process with TORCH_BLAS_PREFER_HIPBLASLT=1"):
        assert list(trained(Attention(), recipe).left_out) == ["hipblaslt"]


def test_what_cannot_be_meant_together_is_refused() -> None:
    with pytest.raises(UsageError, match="in float16, but the recipe's bf16 runs it in bfloat16"):
        trained(Attention(), ("bf16",), float16=True)
    compiled = Attention()
    compiled.compile()
    with pytest.raises(UsageError, match="Attention is already compiled"):
        trained(compiled)
    bound = Attention()
    trained(bound)
    with pytest.raises(UsageError, match="already compiled"):
        trained(bound)


def test_a_loop_that_never_calls_the_model_is_warned_of_once() -> None:
    model = Attention()
    bound = trained(model)
    model.q(torch.randn(1, 16))
    with pytest.warns(UserWarning, match="did not call Attention itself"):
        bound.after_a_step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound.after_a_step()


def test_what_is_warned_of_ends_no_training_where_python_makes_errors_of_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, other = Attention(), Attention()
    recipe = Recipe(("compile", "fused-qkv", "fused-gate-up", "capture", "fp8-linears"), mode="infer")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound = trained(model, recipe)
        for rows in (4, 6, 5):  # other shapes are warned of
            assert model(torch.randn(1, rows, 16)).shape == (1, rows, 16)
        trained(other).after_a_step()  # which never called the model
    assert bound.calls == 3
    for said in (
        "made for mode 'infer'",
        "capture is not",
        "fp8-linears is not",
        "fused-gate-up",
        "did not call Attention",
        "a second input shape",
    ):
        assert said in caplog.text
