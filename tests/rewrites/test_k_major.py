"""Factors of gradients, turned: which products, which of the two factors, and that nothing else changes."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from known_facts import facts_of
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from rung.plan import Plan
from rung.rewrites import RewriteBackend
from rung.rewrites.inductor_passes.k_major import LONGEST, ROWS, WIDEST, KMajorWgrad, turn_factors
from rung.rungs import BY_NAME, Context, Evidence
from rung.rungs.rung import Counters

aten = torch.ops.aten
has_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
TOKENS = 5


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no GPU, tests/conftest.py has defined the kernels for Triton's interpreter."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def gradient(g: torch.Tensor, x: torch.Tensor):
    return (g.t() @ x,)


def transposed(g: torch.Tensor, x: torch.Tensor):
    return ((x.t() @ g).t(),)


def of_two(g: torch.Tensor, x: torch.Tensor):
    return g.t() @ x, (g * 2).t() @ x


def in_order(g: torch.Tensor, x: torch.Tensor):
    return (x.t().contiguous() @ g,)


def traced(function, out: int, into: int, dtype: torch.dtype = torch.float32) -> torch.fx.GraphModule:
    with FakeTensorMode():
        return make_fx(function)(torch.empty(TOKENS, out, dtype=dtype), torch.empty(TOKENS, into, dtype=dtype))


def copies(made: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return made.graph.find_nodes(op="call_function", target=torch.ops.rung.k_major.default)


@has_triton
@pytest.mark.parametrize(
    ("function", "out", "into", "products", "turned"),
    [
        (gradient, WIDEST, 16, 1, ["x_1"]),
        (gradient, 16, WIDEST, 1, ["t"]),
        (transposed, 16, WIDEST, 1, ["g_1"]),
        (of_two, WIDEST, 16, 2, ["x_1"]),
        (gradient, WIDEST - 1, 16, 0, []),
        (in_order, WIDEST, 16, 0, []),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_the_smaller_factor_is_turned_where_neither_is_in_order(function, out, into, products, turned) -> None:
    made = traced(function, out, into)
    assert turn_factors(made.graph) == products
    made.graph.lint()
    made.recompile()
    assert [node.args[0].name for node in copies(made)] == turned
    assert all(node.next.target is aten.mm.default for node in copies(made))
    for product in made.graph.find_nodes(op="call_function", target=aten.mm.default)[:products]:
        left, right = (factor.meta["val"].stride() for factor in product.args)
        assert (left[1] == 1) != (right[0] == 1)
    given = torch.randn(TOKENS, out), torch.randn(TOKENS, into)
    for got, want in zip(made(*given), function(*given), strict=True):
        torch.testing.assert_close(got, want)


@has_triton
@pytest.mark.parametrize(
    ("rows", "summed", "products"), [(ROWS, 16, 1), (ROWS - 1, 16, 0), (ROWS, LONGEST + 1, 0)], ids=str
)
def test_a_weight_is_turned_for_the_gradient_of_its_input_where_there_are_many_rows(rows, summed, products) -> None:
    with FakeTensorMode():
        made = make_fx(torch.mm)(torch.empty(rows, summed), torch.empty(summed, 3))
    assert turn_factors(made.graph) == products
    _, weight = made.graph.find_nodes(op="placeholder")
    assert [node.args for node in copies(made)] == [(weight, 0)] * products
    with FakeTensorMode():
        forward = make_fx(lambda x, w: x @ w.t())(torch.empty(rows, summed), torch.empty(3, summed))
    assert turn_factors(forward.graph) == 0


@has_triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_products_in_other_formats_take_either_order(dtype: torch.dtype) -> None:
    assert turn_factors(traced(gradient, WIDEST, 16, dtype).graph) == 0


def test_without_triton_nothing_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.kernels.available", lambda: False)
    assert turn_factors(traced(gradient, WIDEST, 16).graph) == 0


@has_triton
def test_a_compiled_step_has_the_gradients_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    counts: list[int] = []
    monkeypatch.setattr(
        "rung.rewrites.inductor_passes.k_major.turn_factors", lambda graph: counts.append(turn_factors(graph))
    )
    model, x = nn.Sequential(nn.Linear(16, WIDEST, bias=False), nn.SiLU(), nn.Linear(WIDEST, 16)), torch.randn(3, 4, 16)

    def gradients(run) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(run(x).square().sum(), tuple(model.parameters()))

    uncached = {"force_disable_caches": True}
    compiled = torch.compile(
        lambda x: model(x), backend=RewriteBackend([], inductor_options=uncached, inductor_passes=["k-major-wgrad"])
    )
    for got, want in zip(gradients(compiled), gradients(model), strict=True):
        torch.testing.assert_close(got, want)
    assert counts == [0, 2]
    assert KMajorWgrad().uuid() == KMajorWgrad().uuid()


@has_triton
def test_compiled_code_from_a_cache_finds_the_operator(tmp_path: Path) -> None:
    """No pass runs then, and what the code calls has to be there all the same."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    done = subprocess.run([sys.executable, "-c", STEPS], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (first, gradient), (again, same) = (line.split() for line in done.stdout.splitlines())
    assert (first, again) == ("1", "0")
    assert same == gradient


# Two processes that have loaded torch, and none of what the other did.
STEPS = f"""
import os
import torch, torch._inductor.compile_fx
from rung.rewrites import RewriteBackend
from rung.rewrites.inductor_passes import k_major

def step():
    seen, turn = [], k_major.turn_factors
    k_major.turn_factors = lambda graph: seen.append(turn(graph))
    torch.manual_seed(0)
    model, x = torch.nn.Linear(16, {WIDEST}, bias=False), torch.ones(3, 16)
    backend = RewriteBackend([], inductor_passes=["k-major-wgrad"])
    torch.compile(model, backend=backend, dynamic=False)(x).square().sum().backward()
    print(sum(seen), float(model.weight.grad.sum()), flush=True)

for _ in range(2):
    if os.fork() == 0:
        step()
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_it_applies_where_a_compiled_step_trains_in_tf32_on_hopper() -> None:
    rung = BY_NAME["k-major-wgrad"]
    facts = {
        "gpu": True, "mode": "train", "amp": None, "dtype": "torch.float32", "arch": "sm90", "matmul_precision": "highest",
    }  # fmt: skip
    here = Context(Plan(tf32=True, compile=True), "tf32", facts_of(facts), {}, {})
    assert rung.applies(here) is None
    own = {**facts, "matmul_precision": "high"}
    assert rung.applies(replace(here, plan=Plan(compile=True), facts=facts_of(own))) is None
    for change, says in (({"mode": "infer"}, "for training"), ({"arch": "gfx942"}, "sm90"), ({"amp": "torch.bfloat16"}, "16 bits"),
                         ({"dtype": "torch.bfloat16"}, "16 bits")):  # fmt: skip
        assert says in str(rung.applies(replace(here, facts=facts_of(facts, **change))))
    for plan, says in ((Plan(compile=True), "TF32"), (Plan(tf32=True), "torch.compile"), (Plan(tf32=True, bf16=True, compile=True), "16 bits")):  # fmt: skip
        assert says in str(rung.applies(replace(here, plan=plan)))
    assert rung.change(here.plan).inductor_passes == ("k-major-wgrad",)


def test_it_shows_by_the_copies() -> None:
    rung, said = BY_NAME["k-major-wgrad"], {"pass k-major-wgrad": True}
    before, after = Counters(300, 300, 90, {}), Counters(324, 324, 90, {"k_major_copy": 24.0})
    assert rung.proof(Evidence(before, after, said)).shown is True
    assert rung.proof(Evidence(before, before, said)).shown is False
