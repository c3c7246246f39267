"""Gradients of parts written where they are joined: which joins, the numbers, and how many kernels write them."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from known_facts import facts_of
from torch._inductor import metrics
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from rung.plan import Plan
from rung.rewrites import RewriteBackend
from rung.rewrites.inductor_passes.fused_dgrad import join, place
from rung.rungs import BY_NAME, Context, Evidence
from rung.rungs.rung import Counters

into = torch.ops.rung.join.default


def gated(a, b, w):
    return (torch.cat([a * b.sigmoid(), a.cos() * b], -1) @ w,)


def of_a_flattened_batch(a, b, w):
    whole = torch.cat([(a * b).view(3, 2, 4), (a + b).view(3, 2, 4)], 2).view(6, 8)
    return whole @ w, whole.t() @ a


def of_nothing_common(a, b, w):
    return (torch.cat([a.cos(), b.sin()], -1) @ w,)


def of_unequal_parts(a, b, w):
    return (torch.cat([a * b, (a * b)[:, :2]], -1) @ w[:6],)


def of_rows_common_alone(a, b, w):
    return (torch.cat([a.cos() * w[0, :4], b.sin() * w[0, :4]], -1) @ w,)


def read_by_others(a, b, w):
    return (torch.cat([a * b, a + b], -1).sin() @ w,)


def not_computed(a, b, w):
    return (torch.cat([a, a], -1) @ w,)


CASES = {gated: 1, of_a_flattened_batch: 1, of_nothing_common: 0, of_unequal_parts: 0, of_rows_common_alone: 0,
         read_by_others: 0, not_computed: 0}  # fmt: skip


def sample() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=draw) for shape in ((6, 4), (6, 4), (8, 5))]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_joins_for_products_of_parts_from_common_inputs_are_made_in_place(function) -> None:
    with FakeTensorMode() as mode:
        made = make_fx(function)(*[mode.from_tensor(t) for t in sample()])
    assert place(made.graph) == CASES[function] == len(made.graph.find_nodes(op="call_function", target=into))
    made.graph.lint()
    made.recompile()
    for got, want in zip(made(*sample()), function(*sample()), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_the_operation_says_what_it_gives_before_it_runs() -> None:
    a, b, _ = sample()
    torch.library.opcheck(join, ([a, b], 1))
    torch.library.opcheck(join, ([a, b, a], 0))


def feed_forward(x: torch.Tensor, whole: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, whole).chunk(2, -1)
    return F.linear(F.silu(gate) * up, down)


@pytest.mark.parametrize("more", [[], ["recompute"], ["foreach-weight-casts", "float32-gradients"]], ids=str)
def test_inductor_computes_all_parts_of_a_gradient_in_one_kernel(more, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    leaves = [torch.randn(*shape, requires_grad=True) for shape in ((6, 8), (32, 8), (8, 16))]
    counts: list[int] = []
    monkeypatch.setattr("rung.rewrites.inductor_passes.fused_dgrad.place", lambda graph: counts.append(place(graph)))

    def gradients(run) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(run(*leaves).sum(), leaves)

    want = gradients(feed_forward)
    backend = RewriteBackend(
        [], inductor_options={"force_disable_caches": True}, inductor_passes=["fused-dgrad", *more]
    )
    compiled = torch.compile(feed_forward, backend=backend)
    metrics.reset()
    for got, right in zip(gradients(compiled), want, strict=True):
        torch.testing.assert_close(got, right)
    assert counts == [0, 1]
    assert metrics.generated_kernel_count == 2  # one forward, one backward


def test_it_applies_where_a_compiled_step_trains_on_a_gpu_and_parts_are_read() -> None:
    rung = BY_NAME["fused-dgrad"]
    facts = {"gpu": True, "mode": "train", "captured": {"split": 0}}
    here = Context(Plan(compile=True, passes=("fused-gate-up",)), "bf16", facts_of(facts), {}, {})
    assert rung.applies(here) is None
    assert rung.applies(replace(here, plan=Plan(compile=True), facts=facts_of(facts, captured={"split": 4}))) is None
    for change, says in (({"gpu": False}, "for GPUs"), ({"mode": "infer"}, "for training")):
        assert says in str(rung.applies(replace(here, facts=facts_of(facts, **change))))
    assert rung.applies(replace(here, plan=Plan(compile=True, passes=("fused-qkv", "triton-rope")))) is None
    unrotated = Plan(compile=True, passes=("fused-qkv",))
    for plan, says in ((Plan(passes=("fused-gate-up",)), "torch.compile"), (unrotated, "read in parts")):
        assert says in str(rung.applies(replace(here, plan=plan)))


def test_it_shows_by_the_kernels_that_chose_and_are_gone() -> None:
    rung, said = BY_NAME["fused-dgrad"], {"pass fused-dgrad": True}
    before = Counters(300, 300, 90, {"triton_poi_fused_cat_mul_silu_silu_backward_view_3": 12})
    after = Counters(300, 300, 90, {"triton_poi_fused_mul_silu_silu_backward_view_3": 12})
    assert rung.proof(Evidence(before, after, said)).shown is True
    assert rung.proof(Evidence(before, before, said)).shown is False
    assert rung.proof(Evidence(after, after, said)).shown is False
