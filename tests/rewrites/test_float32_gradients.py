"""Gradients that a product of half precision writes in float32: the graphs of Inductor, as on a GPU, without one."""

from dataclasses import replace

import pytest
import torch
from known_facts import facts_of
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx import Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

from rung.engine.dynamo import products_widen
from rung.hardware import pick
from rung.ladder.survey import widening
from rung.plan import Plan
from rung.rewrites import RewriteBackend
from rung.rewrites.inductor_passes.float32_gradients import Float32Gradients, widen_products
from rung.rungs import BY_NAME, Context, Evidence
from rung.rungs.rung import Counters

aten, prims = torch.ops.aten, torch.ops.prims
pytestmark = pytest.mark.skipif(not products_widen(), reason="this torch has no product that widens")


def widened(x: torch.Tensor) -> torch.Tensor:
    return prims.convert_element_type.default(x, torch.float32)


def plain(g: torch.Tensor, x: torch.Tensor):
    return (widened(g.t() @ x),)


def through_views(g: torch.Tensor, x: torch.Tensor):
    return (widened((x.t() @ g).t().reshape(2, 3, 4)),)


def in_parts(g: torch.Tensor, x: torch.Tensor):
    grad = widened(g.t() @ x)
    return (*grad.split([2, 1, 3]), grad.narrow(0, 1, 2))


def read_inside(g: torch.Tensor, x: torch.Tensor):
    return (widened(g.t() @ x) + 1.0,)


def read_twice(g: torch.Tensor, x: torch.Tensor):
    grad = g.t() @ x
    return widened(grad), grad


CASES = {plain: 1, through_views: 1, in_parts: 1, read_inside: 0, read_twice: 0}


def traced(function, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.fx.GraphModule:
    with FakeTensorMode():
        given = (torch.empty(5, 6, dtype=dtype, device=device), torch.empty(5, 4, dtype=dtype, device=device))
        made = make_fx(function)(*given)
    for node in made.graph.nodes:
        node.meta.setdefault("val", None)
    return made


class OnCpu(Interpreter):
    """A CPU has no such product: one of float32 copies is the same, as half precision is summed in float32."""

    def call_function(self, target, args, kwargs):
        if target is aten.mm.dtype:
            return args[0].float() @ args[1].float()
        return super().call_function(target, args, kwargs)


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_a_product_whose_result_only_leaves_writes_float32(function) -> None:
    made = traced(function, "cuda:0")
    count = widen_products(made.graph)
    made.graph.lint()
    made.recompile()
    assert count == CASES[function]
    assert len(made.graph.find_nodes(op="call_function", target=aten.mm.dtype)) == count
    for node in made.graph.find_nodes(op="call_function", target=aten.mm.dtype):
        assert node.meta["val"].dtype == torch.float32
    given = [torch.randn(5, width, generator=torch.Generator().manual_seed(width)).bfloat16() for width in (6, 4)]
    for got, want in zip(OnCpu(made).run(*given), function(*given), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.bfloat16), ("cuda:0", torch.float64)])
def test_other_devices_and_precisions_are_left_alone(device: str, dtype: torch.dtype) -> None:
    assert widen_products(traced(plain, device, dtype).graph) == 0


def test_inductor_runs_the_pass_and_a_cpu_trains_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    seen = []
    monkeypatch.setattr(
        "rung.rewrites.inductor_passes.float32_gradients.widen_products", lambda graph: seen.append(graph)
    )
    model, x = nn.Linear(4, 4, bias=False), torch.randn(3, 4)
    run = torch.compile(
        model,
        backend=RewriteBackend(
            [], inductor_options={"force_disable_caches": True}, inductor_passes=["float32-gradients"]
        ),
    )
    run(x).sum().backward()
    assert len(seen) == 2
    assert Float32Gradients().uuid() == Float32Gradients().uuid()


def test_it_applies_where_autocast_trains_float32_weights_compiled_on_a_gpu() -> None:
    rung = BY_NAME["float32-gradients"]
    facts = {"gpu": True, "mode": "train", "amp": None, "dtype": "torch.float32", "products_widen": True}
    here = Context(Plan(bf16=True, compile=True), "bf16", facts_of(facts), {}, {})
    assert rung.applies(here) is None
    for change, says in (({"gpu": False}, "GPUs"), ({"mode": "infer"}, "inference"), ({"products_widen": False}, "torch's"),
                         ({"dtype": "torch.bfloat16"}, "not widened")):  # fmt: skip
        assert says in str(rung.applies(replace(here, facts=facts_of(facts, **change))))
    assert "autocast" in str(rung.applies(replace(here, plan=Plan(compile=True))))
    assert "torch.compile" in str(rung.applies(replace(here, plan=Plan(bf16=True))))
    assert rung.change(here.plan).inductor_passes == ("float32-gradients",)
    before, after = Counters(300, 300, 90, {}), Counters(220, 220, 90, {})
    assert rung.proof(Evidence(before, after, {"pass float32-gradients": True})).shown is True
    assert rung.proof(Evidence(before, before, {"pass float32-gradients": True})).shown is False


def test_the_survey_asks_the_device_for_such_a_product() -> None:
    assert widening(pick("cpu")) is False  # a CPU has none, whatever Inductor takes
