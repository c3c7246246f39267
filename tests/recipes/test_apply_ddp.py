"""A recipe of a job of ranks, applied where the user wraps the model: what DistributedDataParallel was not told is said."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import rung
from rung.engine.parallel import in_parallel
from rung.engine.step import Step
from rung.errors import UsageError
from rung.hardware.device import cpu
from rung.hardware.ranks import Ranks
from rung.recipes import store
from rung.recipes.fingerprint import describe_model, structure_hash
from rung.recipes.recipe import Recipe
from rung.rungs import plan_of

DDP = torch.nn.parallel.DistributedDataParallel


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """A job of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(8, 4)


def trained(wrapped: torch.nn.Module, recipe: Recipe) -> "rung.recipes.applied.Applied":
    return rung.apply(
        wrapped,
        recipe,
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
    )


def test_what_it_was_given_is_in_effect_and_trains() -> None:
    recipe = Recipe(("fused-optimizer", "ddp-buckets-8", "ddp-gradient-views"))
    wrapped = DDP(model(), **recipe.ddp)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied = trained(wrapped, recipe)
    before = wrapped.module.weight.detach().clone()
    applied.step(torch.randn(2, 8))
    assert not torch.equal(before, wrapped.module.weight)
    assert not applied.pending


@pytest.mark.parametrize(
    ("rung_", "says"),
    [
        ("ddp-buckets-8", r"DistributedDataParallel\(model, bucket_cap_mb=8\)"),
        ("bf16-gradients", "register_comm_hook"),
        ("fsdp-keep-gathered", "reshard_after_forward=False"),
        ("fsdp-bf16-weights", "param_dtype=torch.bfloat16"),
        ("fsdp-prefetch", "set_modules_to_forward_prefetch"),
        ("ddp-compiled-backward", "python_reducer"),
        ("ddp-symmetric-memory", "sum_in_symmetric_memory"),
        ("async-tensor-parallel", "enable_for_products"),
        ("rank-cores", "rung.hardware.affinity.bind"),
    ],
)
@pytest.mark.parametrize("wrap", [DDP, lambda made: made], ids=["wrapped", "bare"])
def test_what_it_was_not_given_is_said(rung_: str, says: str, wrap: type[torch.nn.Module]) -> None:
    with pytest.warns(UserWarning, match=f"{rung_} is not in effect: .*{says}"):
        applied = trained(wrap(model()), Recipe((rung_,)))
    assert applied.pending == (rung_,)


def convolutions() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))


def squares(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def gradients(model: torch.nn.Module, called: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Of a model's weights, after the last of three calls: DistributedDataParallel makes its buckets anew after the first."""
    for seed in range(3):
        model.zero_grad()
        squares(called(images(seed)), images(seed)).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def images(seed: int) -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_weights_in_buckets_of_the_usual_layout_stay_in_it() -> None:
    """Their gradients would be read in the wrong order, without a word."""
    made = convolutions()
    with pytest.warns(UserWarning, match=r"channels-last is not in effect: .*call model.to\(memory_format="):
        applied = rung.apply(DDP(made, find_unused_parameters=True), "channels-last")
    assert applied.pending == ("channels-last",)
    torch.testing.assert_close(gradients(made, applied), gradients(usual := convolutions(), usual))


def test_weights_that_lay_channels_last_before_they_came_into_buckets_are_taken() -> None:
    made = convolutions().to(memory_format=torch.channels_last)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied = rung.apply(DDP(made, find_unused_parameters=True), "channels-last")
    assert not applied.pending
    torch.testing.assert_close(gradients(made, applied), gradients(usual := convolutions(), usual))


def test_a_rank_of_a_job_lays_weights_out_before_they_come_into_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    def still(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0)

    workload = rung.Workload("convolutions", convolutions, images, loss=squares, optimizer=still)
    plan = plan_of(["channels-last"])
    monkeypatch.setattr(Ranks, "here", replace(Ranks.here, world=2))
    made = convolutions()
    step = Step(workload, made, plan, cpu(), called=in_parallel(workload, made, cpu(), plan))
    step(images(2))  # the first, in buckets that are not made anew yet
    torch.testing.assert_close([p.grad for p in made.parameters()], gradients(usual := convolutions(), usual))
    assert step.applied()["channels_last"] == 2


def test_the_hook_of_the_user_is_known() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    wrapped = DDP(model())
    wrapped._comm_hooks.append((bf16_compress_hook, None))  # as register_comm_hook does, which takes it on a GPU alone
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(wrapped, Recipe(("bf16-gradients",)))


def test_another_number_of_ranks_is_said() -> None:
    with pytest.warns(UserWarning, match="ranks '4', and this is '1'"):
        trained(model(), Recipe(("fused-optimizer",), made_on={"ranks": "4"}))


def test_a_wrapped_model_is_the_model_that_was_climbed() -> None:
    bare = model()
    assert describe_model(DDP(bare)) == describe_model(bare)
    assert structure_hash(DDP(bare)) == structure_hash(bare)


def test_a_recipe_of_ranks_is_kept_beside_that_of_one_process() -> None:
    here = {"mode": "train", "device": "a chip", "torch": "2.13.0"}
    made_on = {**{k: v for k, v in here.items() if k != "mode"}, "structure": "ranked"}
    one = Recipe(("bf16",), mode="train", numerics="bf16", made_on=made_on, status="verified")
    four = Recipe(("compile",), mode="train", numerics="bf16", made_on={**made_on, "ranks": "4"}, status="verified")
    for recipe in (one, four):
        store.keep(recipe)
    here["model"] = "Linear"
    assert store.find("ranked", here)[1].rungs == one.rungs
    assert store.find("ranked", {**here, "ranks": "1"})[1].rungs == one.rungs
    assert store.find("ranked", {**here, "ranks": "4"})[1].rungs == four.rungs
    with pytest.raises(UsageError):
        store.find("ranked", {**here, "ranks": "2"})
