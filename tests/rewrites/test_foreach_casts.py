"""Casts of weights that one operation makes together: which, of what, and that the numbers are the same."""

from dataclasses import replace

import pytest
import torch
from known_facts import facts_of
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from rung.plan import Plan
from rung.rewrites import RewriteBackend
from rung.rewrites.inductor_passes.foreach_casts import ForeachWeightCasts, cast_together, gather
from rung.rungs import BY_NAME, Context, Evidence
from rung.rungs.rung import Counters

prims = torch.ops.prims
together = torch.ops.rung.cast_together.default


def half(x: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return prims.convert_element_type.default(x, dtype)


def plain(x, a, b, c):
    return half(x.sin()) @ half(a).t(), half(x.sin()) @ half(b).t()


def joined(x, a, b, c):
    return (half(x.sin()) @ half(torch.cat([a, b])).t() @ half(c),)


def handed_out_too(x, a, b, c):
    w = half(a).t()
    return half(x.sin()) @ w, half(x.sin()) @ half(b).t(), w.t()


def one_only(x, a, b, c):
    return (half(x.sin()) @ half(a).t(),)


def joined_the_other_way(x, a, b, c):
    return half(x.sin()).repeat(1, 2) @ half(torch.cat([a, a], 1)).t(), half(x.sin()) @ half(a).t()


def read_by_others(x, a, b, c):
    return half(x.sin()) @ half(a).t(), half(b).cos(), half(c) + 1


def strided(x, a, b, c):
    return half(x.sin()) @ half(a.t()), half(x.sin()) @ half(b.t())


def of_both_kinds(x, a, b, c):
    pair = half(x.sin(), torch.float16)
    return (*plain(x, a, b, c), pair @ half(a, torch.float16).t(), pair @ half(b, torch.float16).t())


CASES = {plain: 2, joined: 2, handed_out_too: 2, one_only: 0, joined_the_other_way: 0, read_by_others: 0, strided: 0,
         of_both_kinds: 4}  # fmt: skip


def sample() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=draw) for shape in ((5, 8), (6, 8), (4, 8), (10, 3))]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_casts_of_whole_inputs_for_products_are_made_together(function) -> None:
    with FakeTensorMode() as mode:
        made = make_fx(function)(*[mode.from_tensor(t) for t in sample()])
    assert gather(made.graph) == CASES[function]
    made.graph.lint()
    made.recompile()
    for node in made.graph.find_nodes(op="call_function", target=together):
        assert [t.shape for t in node.meta["val"]] == [user.meta["val"].shape for user in node.users]
    for got, want in zip(made(*sample()), function(*sample()), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_the_operation_says_what_it_gives_before_it_runs() -> None:
    torch.library.opcheck(cast_together, (sample()[1:3], [2], torch.bfloat16))
    torch.library.opcheck(cast_together, (sample(), [1, 2, 1], torch.float16))


def test_it_applies_where_autocast_casts_float32_weights_in_compiled_steps_on_a_gpu() -> None:
    rung = BY_NAME["foreach-weight-casts"]
    facts = {"gpu": True, "mode": "train", "amp": None, "dtype": "torch.float32"}
    here = Context(Plan(bf16=True, compile=True), "bf16", facts_of(facts), {}, {})
    assert rung.applies(here) is None
    assert rung.applies(replace(here, plan=Plan(compile=True), facts=facts_of(facts, amp="torch.bfloat16"))) is None
    for change, says in (({"gpu": False}, "GPU"), ({"dtype": "torch.bfloat16"}, "not cast")):
        assert says in str(rung.applies(replace(here, facts=facts_of(facts, **change))))
    eight_bits = Plan(bf16=True, compile=True, linears="int8")
    for plan, says in ((Plan(compile=True), "autocast"), (Plan(bf16=True), "torch.compile"), (eight_bits, "not cast")):
        assert says in str(rung.applies(replace(here, plan=plan)))
    copies = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<...>>"
    )
    before, after = Counters(300, 300, 90, {}), Counters(310, 310, 90, {copies: 10})
    assert rung.proof(Evidence(before, after, {"pass foreach-weight-casts": True})).shown is True
    assert rung.proof(Evidence(before, before, {"pass foreach-weight-casts": True})).shown is False


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).relu())


def test_inductor_trains_with_it_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x, counts = Model(), torch.randn(3, 8), []

    def stepped(run) -> list[torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = run(x)
        out.float().pow(2).sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    monkeypatch.setattr(
        "rung.rewrites.inductor_passes.foreach_casts.gather", lambda graph: counts.append(gather(graph))
    )
    want = stepped(model)
    backend = RewriteBackend(
        [], inductor_options={"force_disable_caches": True}, inductor_passes=["foreach-weight-casts"]
    )
    for got, right in zip(stepped(torch.compile(model, backend=backend)), want, strict=True):
        torch.testing.assert_close(got, right, rtol=0.02, atol=0.02)
    assert counts == [3, 0]  # the batch is an input that a product reads, too
    assert ForeachWeightCasts().uuid() == ForeachWeightCasts().uuid()
