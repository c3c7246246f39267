"""Gradients of queries and keys, rotated back into the place where they are joined: which joins, the numbers, and a whole step."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from rung.rewrites import RewriteBackend
from rung.rewrites.graph import kernel_ops
from rung.rewrites.inductor_passes import rotated_joins
from rung.workload.tiny_transformer import Attention

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, HEADS, GROUPS, TOKENS, DIM = 2, 4, 2, 3, 8
WIDTH = (HEADS + 2 * GROUPS) * DIM


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def back(x, tables, interleaved=True, backward=True):
    return kernel_ops.operator("rope")(x, *tables, interleaved, backward)


def flat(x):
    return x.transpose(1, 2).reshape(BATCH, TOKENS, -1)


def of_an_attention(q, k, v, tables, w):
    return (torch.cat([flat(back(q, tables)), flat(back(k, tables)), flat(v)], -1) @ w,)


def of_flattened_rows(q, k, v, tables, w):
    whole = torch.cat([flat(t).view(BATCH * TOKENS, -1) for t in (back(q, tables), back(k, tables), v)], 1)
    return whole @ w, whole.t() @ whole


def halves_with_tables_of_their_own(q, k, v, tables, w):
    other = [t.cos() for t in tables]
    return (torch.cat([flat(v), flat(back(k, other, False)), flat(back(q, tables, False))], -1) @ w,)


def with_a_value_without_heads(q, k, v, tables, w):
    parts = [flat(back(q, tables)), flat(back(k, tables)), v.sum(1)]
    return (torch.cat(parts, -1) @ w[: (HEADS + GROUPS + 1) * DIM],)


def of_one_that_is_rotated_for_it_alone(q, k, v, tables, w):
    q, k = back(q, tables), back(k, tables)
    return torch.cat([flat(q), flat(k), flat(v)], -1) @ w, q


def of_rotations_that_others_read(q, k, v, tables, w):
    q, k = flat(back(q, tables)), back(k, tables)
    return torch.cat([q, flat(k), flat(v)], -1) @ w, q, k


def of_what_is_computed_from_rotations(q, k, v, tables, w):
    return (torch.cat([flat(back(q, tables) * 2), flat(back(k, tables).sin()), flat(v)], -1) @ w,)


def of_heads_over_tokens(q, k, v, tables, w):
    parts = [back(t, tables).reshape(BATCH, TOKENS, -1) for t in (q, k)]
    return (torch.cat([*parts, flat(v)], -1) @ w,)


def of_rows_in_another_order(q, k, v, tables, w):
    return (torch.cat([flat(t).transpose(0, 1) for t in (back(q, tables), back(k, tables), v)], -1) @ w,)


def of_every_head_by_itself(q, k, v, tables, w):
    return (torch.cat([t.transpose(1, 2) for t in (back(k, tables), v)], -1) @ w[: 2 * DIM],)


def one_after_the_other(q, k, v, tables, w):
    return (torch.cat([flat(back(k, tables)), flat(v)], 1) @ w[: GROUPS * DIM],)


def rotated_there_and_back(q, k, v, tables, w):
    return (torch.cat([flat(back(q, tables)), flat(back(k, tables, backward=False)), flat(v)], -1) @ w,)


def of_two_dtypes(q, k, v, tables, w):
    return (torch.cat([flat(back(q, tables)), flat(back(k.bfloat16(), tables)), flat(v)], -1) @ w,)


def for_no_product(q, k, v, tables, w):
    return (torch.cat([flat(back(q, tables)), flat(back(k, tables)), flat(v)], -1).sin() @ w,)


def of_nothing_rotated(q, k, v, tables, w):
    return (torch.cat([flat(q), flat(k), flat(v)], -1) @ w,)


# Which parts are rotated into their places; none where the join is left as it is.
CASES = {
    of_an_attention: [0, 1], of_flattened_rows: [0, 1], halves_with_tables_of_their_own: [1, 2],
    with_a_value_without_heads: [0, 1], of_one_that_is_rotated_for_it_alone: [1],
    of_rotations_that_others_read: None, of_what_is_computed_from_rotations: None, of_heads_over_tokens: None,
    of_rows_in_another_order: None, of_every_head_by_itself: None, one_after_the_other: None, rotated_there_and_back: None, of_two_dtypes: None, for_no_product: None,
    of_nothing_rotated: None,
}  # fmt: skip


def sample(inside: bool = False):
    """Query, key and value as [batch, heads, tokens, d], heads inside tokens or not; tables; a weight."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(BATCH, heads, TOKENS, DIM, generator=draw) for heads in (HEADS, GROUPS, GROUPS))
    if inside:
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    tables = [torch.randn(1, TOKENS, DIM // 2, generator=draw) for _ in range(2)]
    return q, k, v, tables, torch.randn(WIDTH, 5, generator=draw)


@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter is for machines without a GPU")
@pytest.mark.parametrize("inside", [False, True], ids=["tokens inside heads", "heads inside tokens"])
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_parts_that_are_rotated_for_a_join_are_rotated_into_their_places(function, inside: bool) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = torch.utils._pytree.tree_map(mode.from_tensor, sample(inside))
        made = make_fx(function)(*fakes)
    rotated = CASES[function]
    assert rotated_joins.place_rotated(made.graph) == (rotated is not None)
    joins = made.graph.find_nodes(op="call_function", target=torch.ops.rung.rotate_into_join.default)
    assert [node.args[1] for node in joins] == ([] if rotated is None else [rotated])
    if joins:
        left = made.graph.find_nodes(op="call_function", target=torch.ops.rung.rope.default)
        assert len(left) == 2 - len(rotated)
        assert not made.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    made.graph.lint()
    made.recompile()
    for got, want in zip(made(*sample(inside)), function(*sample(inside)), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("rotated", [[0, 1], [2], []], ids=str)
def test_the_operation_says_what_it_gives_before_it_runs(rotated: list[int]) -> None:
    q, k, v, (cos, sin), _ = torch.utils._pytree.tree_map(lambda t: t.to(DEVICE), sample())
    apart = k.transpose(-1, -2).contiguous().transpose(-1, -2)  # what a head holds does not lie side by side
    tables = [cos] * len(rotated), [sin.mT.contiguous().mT] * len(rotated)
    given = ([q, apart, v.transpose(1, 2).contiguous().transpose(1, 2)], rotated, *tables, True, True)
    operator = kernel_ops.operator("rotate_into_join")
    torch.library.opcheck(operator, given)
    whole = [flat(back(t, (cos, sin)) if n in rotated else t) for n, t in enumerate((q, k, v))]
    torch.testing.assert_close(operator(*given), torch.cat(whole, -1), rtol=0, atol=0)


def test_a_compiled_step_has_the_gradients_of_the_model_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Attention(HEADS * DIM, HEADS).to(DEVICE)
    x = torch.randn(BATCH, TOKENS, HEADS * DIM, device=DEVICE, requires_grad=True)
    leaves, counts, place = [x, *model.parameters()], [], rotated_joins.place_rotated
    monkeypatch.setattr(rotated_joins, "place_rotated", lambda graph: counts.append(place(graph)))
    want = torch.autograd.grad(model(x).square().sum(), leaves)
    passes, uncached = ["fused-qkv", "sdpa", "triton-rope"], {"force_disable_caches": True}
    backend = RewriteBackend(passes, inductor_options=uncached, inductor_passes=["fused-dgrad"])
    compiled = torch.compile(model, backend=backend, dynamic=False)
    for got, right in zip(torch.autograd.grad(compiled(x).square().sum(), leaves), want, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)
    assert counts == [0, 1]


def test_rotations_are_found_where_the_graph_holds_the_kernel_itself() -> None:
    """As it is traced for a GPU, away from the interpreter: of the four launches, the two forward are left."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = str(Path(__file__).with_name("traced_attention.py"))
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["before"] == {"triton_kernel_wrapper_functional": 4, "aten.cat.default": 1}
    assert found["after"] == {"triton_kernel_wrapper_functional": 2, "rung.rotate_into_join.default": 1}
    assert found["interleaved, backward"] == [True, True]
    assert found["rotated"] == [0, 1]
