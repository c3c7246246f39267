"""Linear layers routed to aiter: those that its tables know and no others, with the same results."""

import copy
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aiter_standin import row, write_aiter
from known_facts import facts_of
from torch import nn

from rung.hardware import aiter
from rung.hardware.device import cpu
from rung.plan import Plan
from rung.records.record import plain
from rung.rewrites import PASSES, RewriteBackend, routed
from rung.rungs import BY_NAME, Context
from rung.rungs.aiter import BEST

MI300X = replace(cpu(), kind="cuda", vendor="amd", arch="gfx942", units=304)


class Block(nn.Module):
    """q, k and v of widths 64, 32, 32 (joined: 128), then a projection with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, n, bias=False) for n in (64, 32, 32))
        self.out = nn.Linear(64, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.out(q.relu() + torch.cat((k, v), -1).tanh())


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs the stand-in with these rows; gives its module, in which calls are counted."""

    def forget() -> None:
        aiter.tuned.cache_clear()
        for name in [n for n in sys.modules if n.partition(".")[0] == "aiter"]:
            del sys.modules[name]

    def made(rows: list[str]) -> Any:
        forget()
        write_aiter(tmp_path, rows)
        return importlib.import_module("aiter.tuned_gemm")

    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(aiter.TABLES, raising=False)
    monkeypatch.setattr(routed, "pick", lambda name: MI300X)
    yield made
    forget()


ALL = [row(10, 64, 64, "asm"), row(10, 128, 64, "hipblaslt"), row(10, 48, 64, "asm", bias=True)]


def test_what_is_tuned_goes_to_aiter_and_the_rest_stays(tables: Any) -> None:
    module = tables(ALL)
    model, x = Block().bfloat16(), torch.randn(2, 5, 64).bfloat16()
    backend = RewriteBackend(["aiter-gemm"], "eager")
    run = torch.compile(copy.deepcopy(model), backend=backend, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=0, atol=0)
    assert module.calls == [((10, 64), 64, "asm"), ((10, 64), 48, "asm")]
    assert backend.matches == {"aiter-gemm": 2}
    assert backend.before["gemm"] == backend.after["gemm"] == 4
    assert backend.before["layer_flop"] == backend.after["layer_flop"]
    (left,) = backend.skipped  # k and v stand on one line
    assert "self.k(x)" in left
    assert left.endswith("10 x 64 x 32: it has no row")


def test_joined_projections_are_looked_up_at_their_joined_width(tables: Any) -> None:
    module = tables(ALL)
    model, x = Block().bfloat16(), torch.randn(2, 5, 64).bfloat16()
    backend = RewriteBackend(PASSES, "eager")
    run = torch.compile(copy.deepcopy(model), backend=backend, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=2e-2, atol=2e-2)
    assert [call[1:] for call in module.calls] == [(128, "hipblaslt"), (48, "asm")]
    # The tuner is offered the layers as they were and as the other rewrites leave them.
    assert {p.n: count for p, count in backend.products.items()} == {64: (1, 0), 32: (2, 0), 128: (0, 1), 48: (1, 1)}


def test_compiled_weights_are_not_written_and_a_change_of_them_is_seen(tables: Any) -> None:
    tables(ALL)
    model, x = Block().bfloat16(), torch.randn(2, 5, 64).bfloat16()
    run = torch.compile(model, backend=RewriteBackend(["aiter-gemm"], "inductor"), dynamic=False)
    versions = [p._version for p in model.parameters()]
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), model(x), rtol=2e-2, atol=2e-2)
        assert versions == [p._version for p in model.parameters()]
        model.q.weight.mul_(2)
        torch.testing.assert_close(run(x), model(x), rtol=2e-2, atol=2e-2)


def test_under_autocast_the_product_is_the_one_in_bfloat16(tables: Any) -> None:
    module = tables(ALL)
    model, x = Block(), torch.randn(2, 5, 64)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    with torch.no_grad():
        run = torch.compile(forward, backend=RewriteBackend(["aiter-gemm"], "eager"), dynamic=False)
        torch.testing.assert_close(run(x), forward(x), rtol=0, atol=0)
    assert len(module.calls) == 2


def test_training_full_precision_and_weights_made_in_the_graph_are_left_alone(tables: Any) -> None:
    module = tables(ALL)
    x = torch.randn(2, 5, 64)
    run = torch.compile(Block().bfloat16(), backend=RewriteBackend(["aiter-gemm"], "eager"), dynamic=False)
    run(x.bfloat16()).sum().backward()
    widened = torch.randint(-9, 9, (64, 64), dtype=torch.int8)
    for other, given in ((Block(), x), (lambda x: x @ widened.to(x.dtype).T, x.bfloat16())):
        with torch.no_grad():
            torch.compile(other, backend=RewriteBackend(["aiter-gemm"], "eager"), dynamic=False)(given)
    assert module.calls == []


def context(facts: dict[str, Any] | None, **others: Any) -> Context:
    known = {"gpu": True, "dtype": "torch.bfloat16", **({} if facts is None else {"aiter": facts}), **others}
    return Context(Plan(), "bf16", facts_of(known), {"gemm": 80.0, "copy": 20.0}, {})


def facts(tuned: list[Any], left: list[Any], missing: str = "") -> dict[str, Any]:
    return {"missing": missing, "chip": "gfx942 with 304 compute units", "tuned": tuned, "left": left}


def test_the_rung_is_a_no_op_where_nothing_is_tuned_and_says_how_to_tune() -> None:
    rung = BY_NAME["aiter-gemm"]
    left = [[[10, 64, 64, False], "it has no row"], [[9, 64, 64, False], "it has no row"],
            [[10, 48, 64, True], "its row names flydsl, but aiter falls back to torch"]]  # fmt: skip
    no = rung.applies(context({**facts([], left), "command": "python3 gemm_tuner.py --input_file u.csv"}))
    assert no is not None
    assert no.verdict == "no-op"
    assert "any of the 3 shapes" in no.why
    assert "2: it has no row, 1: its row names flydsl, but aiter falls back to torch" in no.why
    assert "python3 gemm_tuner.py --input_file u.csv" in no.why
    some = facts([[[10, 64, 64, False], "asm"]], left)
    assert rung.applies(context(some)) is None
    for bad, word in [
        (context(some, mode="train"), "inference"),
        (context(some, dtype="torch.float32"), "bfloat16"),
        (context(some, gpu=False), "GPUs"),
        (context(facts([], [], "the module aiter is not installed")), "not installed"),
        (context(None), "could not be captured"),
    ]:
        assert word in str(rung.applies(bad))


def test_the_gain_that_is_predicted_is_of_the_tuned_products_alone() -> None:
    rung = BY_NAME["aiter-gemm"]
    half = facts([[[10, 64, 64, False], "asm"]], [[[10, 64, 64, True], "it has no row"]])
    whole = facts([[[10, 64, 64, False], "asm"]], [])
    assert 1 < rung.predict(context(half)).high < rung.predict(context(whole)).high


def test_every_layer_counts_and_one_that_is_joined_counts_once(tables: Any) -> None:
    """Many layers of a tuned shape beside one that is larger, as a model's head is."""
    tables([row(10, 64, 64, "asm")])
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)), nn.Linear(64, 384, bias=False)).bfloat16()
    backend = RewriteBackend(["aiter-gemm"], "eager")
    with torch.no_grad():
        torch.compile(model, backend=backend, dynamic=False)(torch.randn(2, 5, 64).bfloat16())
    found = aiter.looked_up(MI300X, backend.products)
    assert found.tuned
    assert found.left
    assert [(shape.sizes[1], shape.layers) for shape in (*found.tuned, *found.left)] == [(64, (6, 6)), (384, (1, 1))]
    best = 80 * (1 - 0.5 * (1 - BEST)) + 20  # half of the arithmetic is in the tuned ones
    assert BY_NAME["aiter-gemm"].predict(context(plain(found))).high == pytest.approx(100 / best)

    apart, together = [[10, 32, 64, False], "asm", [2, 0]], [[10, 64, 64, False], "it has no row", [0, 1]]
    other = [[10, 64, 64, True], "it has no row", [1, 1]]
    known = facts([apart], [together, other])
    assert BY_NAME["aiter-gemm"].predict(context(known)).high == pytest.approx(100 / best)
    assert BY_NAME["aiter-gemm"].predict(replace(context(known), plan=Plan(passes=("fused-qkv",)))).high == 1
