"""rung.apply on inputs whose sizes change: what is compiled, which of it is rewritten, and whether results stay the model's."""

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import rung
from rung.engine.parts import ranks, shapes_of, sizes, tensors_of
from rung.errors import UsageError
from rung.rewrites import RewriteBackend

SIZES = (4, 6, 8, 10, 12)
SLOW_GUARDS = "Guards may run slower on Python"  # torch warns so of Python 3.13.0 alone


def _warnings_are_errors() -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=SLOW_GUARDS)


@dataclass(frozen=True)
class Graph:
    passes: int
    symbolic: bool


FIRST, REWRITTEN, SHARED = Graph(0, False), Graph(2, False), Graph(0, True)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Graph]]:
    """What the backend is given, in order. Rewritten graphs run as they are: the compiler behind them is left out."""
    graphs: list[Graph] = []
    rewritten = RewriteBackend.__call__

    def counted(self: RewriteBackend, gm: Any, inputs: Any) -> Any:
        graphs.append(Graph(len(self.passes), any(isinstance(item, torch.SymInt) for item in inputs)))
        return rewritten(self, gm, inputs)

    monkeypatch.setattr(RewriteBackend, "__call__", counted)
    monkeypatch.setattr(RewriteBackend, "compiled", lambda self, gm, inputs: gm.forward)
    torch._dynamo.reset()
    yield graphs
    torch._dynamo.reset()


class Attention(nn.Module):
    """Attention by hand, for sdpa and fused-qkv."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (linear(x).view(b, t, 2, 8).transpose(1, 2) for linear in (self.q, self.k, self.v))
        scores = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
        return x + self.o((scores @ v).transpose(1, 2).reshape(b, t, d))  # type: ignore[no-any-return]


def infers(rungs: list[str], sizes: tuple[int, ...] = SIZES, model: nn.Module | None = None) -> Any:
    model = model or Attention()
    applied = rung.apply(model, rungs)
    for size in sizes:
        x = torch.randn(size, 5, 16)
        with torch.no_grad():
            torch.testing.assert_close(applied(x), model(x))
        assert not hasattr(x, "_dynamo_weak_dynamic_indices")
    return applied


def trains(rungs: list[str], sizes: tuple[int, ...] = SIZES) -> None:
    model = Attention()
    untouched = copy.deepcopy(model)

    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        return output.square().mean()

    trainer = rung.apply(model, rungs, loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    for size in sizes:
        x = torch.randn(size, 5, 16)
        untouched.zero_grad()
        output = untouched(x)
        loss(output, x).backward()
        torch.testing.assert_close(trainer.step(x)[1], output)
        for ours, theirs in zip(model.parameters(), untouched.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("run", [infers, trains])
def test_the_second_shape_makes_one_graph_for_all_further_shapes(run: Any, compiled: list[Graph]) -> None:
    with warnings.catch_warnings():
        _warnings_are_errors()
        run(["compile"], (*SIZES, *SIZES))
    assert compiled == [FIRST, SHARED]


class Moved(nn.Module):
    """Takes a number beside its tensor, such as a position."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: torch.Tensor, by: int) -> torch.Tensor:
        return self.attention(x) + by  # type: ignore[no-any-return]


@pytest.mark.parametrize("dynamic", [None, False])
def test_a_number_that_changes_is_compiled_for_once_more(dynamic: bool | None, compiled: list[Graph]) -> None:
    model, x = Moved(), torch.randn(4, 5, 16)
    applied = rung.apply(model, ["sdpa", "fused-qkv"], dynamic=dynamic)
    for by in range(2, 12):
        with torch.no_grad():
            torch.testing.assert_close(applied(x, by), model(x, by))
    assert compiled == [REWRITTEN, Graph(2, True)]


@pytest.mark.parametrize("run", [infers, trains])
def test_rewrites_stay_on_the_first_shape_and_are_said_to_be_missing_from_the_shared_graph(
    run: Any, compiled: list[Graph]
) -> None:
    with pytest.warns(
        UserWarning, match=r"second input shape.*without rewrites that need fixed sizes \(sdpa, fused-qkv\)"
    ) as said:
        run(["compile", "sdpa", "fused-qkv"], (*SIZES, *SIZES))
    assert compiled == [REWRITTEN, SHARED]
    assert len([one for one in said if SLOW_GUARDS not in str(one.message)]) == 1


def test_the_first_shape_keeps_its_rewritten_graph_after_the_shared_one(compiled: list[Graph]) -> None:
    with pytest.warns(UserWarning, match="second input shape"):
        applied = infers(["compile", "sdpa", "fused-qkv"], (4, 6, 8))
    assert applied._compiled.backend.matches == {"sdpa": 1, "fused-qkv": 1}
    ran = []

    def noted(name: str, backend: Callable[..., Any]) -> Callable[..., Any]:
        def compile_(gm: Any, inputs: Any) -> Callable[..., Any]:
            run = backend(gm, inputs)
            return lambda *arguments: (ran.append(name), run(*arguments))[1]  # type: ignore[func-returns-value]

        return compile_

    for name, graphs in (("first", applied._compiled._graphs), ("shared", applied._compiled._shared)):
        graphs.watched._backend = noted(name, graphs.watched._backend)
    torch._dynamo.reset()
    for size in (4, 6, 4, 8, 4):
        with torch.no_grad():
            applied(torch.randn(size, 5, 16))
    assert ran == ["first", "shared", "first", "shared", "first"]


def test_a_row_alone_is_compiled_apart_and_several_dimensions_may_vary(compiled: list[Graph]) -> None:
    applied = infers(["compile"], (4, 1, 1, 6, 8))
    assert compiled == [FIRST, Graph(0, False), SHARED]
    for shape in ((4, 7, 16), (6, 9, 16), (9, 11, 16)):
        with torch.no_grad():
            applied(torch.randn(shape))
    assert compiled[3:] == [SHARED]


def test_dynamic_false_compiles_each_shape_with_the_whole_recipe(compiled: list[Graph]) -> None:
    applied = rung.apply(Attention(), ["compile", "sdpa", "fused-qkv"], dynamic=False)
    with warnings.catch_warnings(), torch.no_grad():
        _warnings_are_errors()
        for size in SIZES:
            applied(torch.randn(size, 5, 16))
    assert compiled == [REWRITTEN] * 5
    with pytest.raises(UsageError, match="dynamic-shapes"):
        rung.apply(Attention(), "compile", dynamic=True)


@pytest.mark.parametrize("rungs", [["compile-regions"], ["compile", "int8-weights"]])
def test_who_applies_what_has_no_symbolic_form_is_told_before_the_second_shape(
    rungs: list[str], compiled: list[Graph]
) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)))
    with torch.no_grad():
        applied = rung.apply(model, rungs)
        applied(torch.randn(4, 16))
        graphs = len(compiled)
        with pytest.warns(UserWarning, match="compiles anew for each input shape"):
            applied(torch.randn(6, 16))
    assert len(compiled) == 2 * graphs
    assert not any(graph.symbolic for graph in compiled)


def test_a_model_that_fixes_its_sizes_goes_back_to_rewritten_graphs(compiled: list[Graph]) -> None:
    class Listed(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + len([0] * x.shape[0])

    with pytest.warns(UserWarning, match="second input shape"):
        infers(["compile", "sdpa", "fused-qkv"], (4, 6, 8, 10, 8), Listed())
    assert compiled == [REWRITTEN, Graph(0, False), REWRITTEN, REWRITTEN]


def test_sizes_that_differ_between_training_and_inference_have_a_first_graph_each(compiled: list[Graph]) -> None:
    model = Attention()
    applied = rung.apply(model, ["compile", "sdpa", "fused-qkv"])
    with warnings.catch_warnings():
        _warnings_are_errors()
        applied(torch.randn(4, 5, 16))
        model.eval()
        with torch.no_grad():
            applied(torch.randn(6, 5, 16))
    assert compiled == [REWRITTEN, REWRITTEN]


def test_what_is_compiled_anew_for_another_reason_is_rewritten_again(compiled: list[Graph]) -> None:
    """Dynamo compares sizes of all that it compiled of one function, and takes those that differ for variables."""
    model = Attention()
    applied = rung.apply(model, ["compile", "sdpa", "fused-qkv"])
    x, y = torch.randn(4, 5, 16), torch.randn(6, 5, 16)

    def both() -> None:
        model.train()
        torch.testing.assert_close(applied(x), model(x))
        model.eval()
        with torch.no_grad():
            torch.testing.assert_close(applied(y), model(y))

    both()
    model.o.register_forward_hook(lambda module, arguments, output: output + 1)
    both()
    both()
    assert compiled[-1] == REWRITTEN
    both()
    assert compiled[-2:] == [REWRITTEN, REWRITTEN]
    graphs = len(compiled)
    both()
    assert len(compiled) == graphs


@dataclass
class Batch:
    x: torch.Tensor
    more: list[Any]


def test_shapes_are_seen_wherever_a_batch_holds_its_tensors() -> None:
    batch = {"a": Batch(torch.zeros(2, 3), [torch.zeros(4), 5, "six"]), "b": (torch.tensor(1.0), None)}
    assert sizes(shapes_of(batch)) == [(2, 3), (4,), ()]
    assert [tensor.shape for tensor in tensors_of(batch)] == sizes(shapes_of(batch))
    wider = {"a": Batch(torch.zeros(2, 9), [torch.zeros(4), 5, "six"]), "b": (torch.tensor(1.0), None)}
    assert shapes_of(batch) != shapes_of(wider)
    assert ranks(shapes_of(batch)) == ranks(shapes_of(wider))
    assert hash(shapes_of(batch)) is not None


def test_calls_after_the_first_leave_dynamos_settings_and_the_parameters_alone(
    compiled: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Attention()
    applied = rung.apply(model, ["compile", "bf16"])
    with torch.no_grad():
        right = applied(torch.ones(4, 5, 16))

        def forbidden(*arguments: Any, **named: Any) -> Any:
            raise AssertionError("looked at in every call")

        monkeypatch.setattr("rung.recipes.applied.expect_changes", forbidden)
        monkeypatch.setattr("rung.engine.compiled.fixed_sizes", forbidden)
        monkeypatch.setattr(model, "named_parameters", forbidden)
        torch.testing.assert_close(applied(torch.ones(4, 5, 16)), right)


def test_settings_of_dynamo_that_were_put_back_are_made_again_for_a_new_shape(compiled: list[Graph]) -> None:
    with torch._dynamo.config.patch(cache_size_limit=8), torch.no_grad():
        with torch._dynamo.config.patch(cache_size_limit=8):
            applied = rung.apply(Attention(), ["compile"])
        assert torch._dynamo.config.cache_size_limit == 8
        applied(torch.ones(4, 5, 16))
        assert torch._dynamo.config.cache_size_limit == 64


def test_outputs_are_cast_to_the_dtype_of_a_layer_that_was_put_in_the_place_of_another() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(16, 16)))
    applied = rung.apply(model, "bf16")
    assert applied(torch.ones(4, 16)).dtype == torch.float32
    model[0] = nn.Linear(16, 16).double()
    assert applied._weights.look() == torch.float64
    model[0] = nn.Identity()
    assert applied._weights.look() == torch.float32


@pytest.mark.parametrize("rungs", [["compile"], ["compile", "dynamic-shapes"]])
def test_what_was_a_further_shape_compiles_elsewhere_afterwards(rungs: list[str], compiled: list[Graph]) -> None:
    """Dynamo's marks on the tensor would fail whatever compiles for it next: evaluation after training, say, or another model."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    applied, batches = rung.apply(model, rungs), [torch.randn(64, 8), torch.randn(10, 8)]
    for batch in batches:
        applied(batch).sum().backward()
    applied.eval()
    other = torch.compile(nn.Linear(8, 8), backend="eager")
    with torch.no_grad():
        for batch in reversed(batches):
            torch.testing.assert_close(applied(batch), model(batch))
            assert other(batch).shape == batch.shape
    assert not [name for batch in batches for name in vars(batch)]
