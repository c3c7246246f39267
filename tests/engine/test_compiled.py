"""What Dynamo does is located in the user's source; blocks are compiled once; copied weights follow their originals."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from known_facts import facts_of
from torch import nn
from torch.utils import _pytree as pytree

import rung
from rung.engine import compiled as compiling
from rung.engine.regions import blocks, kinds
from rung.engine.step import Step
from rung.hardware import pick
from rung.hardware.device import to_device
from rung.ladder.candidate import Candidate
from rung.ladder.survey import captured_graphs, sentence
from rung.plan import Plan
from rung.records import record
from rung.records.climb import OverShapes
from rung.records.record import record_of
from rung.rewrites import RewriteBackend
from rung.rungs import BY_NAME, Context, Evidence, plan_of
from rung.workload import Workload, load, seeded_model

CPU = pick("cpu")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Inductor left out: what is captured is run as it is. Holds one entry for each graph."""
    graphs: list[int] = []

    def stand(self: Any, gm: Any, inputs: Any) -> Any:
        graphs.append(len(inputs))
        self._records[str(len(graphs))] = None
        return gm.forward

    monkeypatch.setattr(RewriteBackend, "__call__", stand)
    monkeypatch.setattr(RewriteBackend, "matches", {})
    monkeypatch.setattr(RewriteBackend, "skipped", [])
    return graphs


class Odd(nn.Module):
    """Breaks the graph in one line, and counts in a way that compiles anew for every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.linear(x)
        if y.sum().item() > 1e9:  # breaks here
            y = y + 1
        return y * self.calls


def random(seed: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))


def test_breaks_and_recompilations_are_found_in_the_users_source_and_explained() -> None:
    found = captured_graphs(Workload("odd", Odd, random), CPU)
    (at,) = found.breaks
    assert "test_compiled.py" in at.where
    assert at.where.endswith("in forward")
    assert at.line.startswith("if y.sum().item() > 1e9:")
    assert "Tensor.item" in at.why
    assert at.hint or "(" not in at.why  # torch 2.6 says no more than what it broke at
    assert sentence(at) == found.graph_breaks[0]
    again = next(r for r in found.recompilations if "calls" in r.why)
    assert "test_compiled.py" in again.where
    # torch 2.6 tells of a second one, where the broken graph goes on, and quotes no source.
    assert again.why.startswith(("self.calls == 0 # self.calls += 1", "L['self'].calls == 0"))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.cells = nn.Linear(8, 8), nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cells(self.linear(x)[:, None])[0]


@pytest.mark.skipif(torch.__version__ < (2, 9), reason="an older torch does not tell what it leaves uncompiled")
def test_a_function_that_stays_uncompiled_as_a_whole_is_told() -> None:
    found = captured_graphs(Workload("recurrent", Recurrent, random), CPU)
    (at,) = found.breaks
    assert at.where.endswith("in forward")
    assert "test_compiled.py" in at.where
    assert at.line.startswith("return self.cells(")
    assert at.why.startswith("the whole function runs uncompiled. ")
    assert "LSTM" in at.why


def test_a_model_that_is_captured_whole_has_neither() -> None:
    found = captured_graphs(Workload("plain", lambda: nn.Linear(8, 8), random), CPU)
    assert (found.graphs, found.breaks, found.recompilations) == (1, [], [])


def tiny(mode: str = "infer") -> Workload:
    return load("tiny-transformer", {"hidden-dim": "32", "num-layers": "5", "num-heads": "4", "seq-len": "8",
                                     "batch-size": "2", "mode": mode})  # fmt: skip


def test_the_blocks_that_repeat_are_found() -> None:
    assert len(blocks(seeded_model(tiny()))) == 5
    layers = [nn.TransformerEncoderLayer(4, 2) for _ in range(3)]
    named = nn.ModuleDict({str(k): layer for k, layer in enumerate(layers)})
    assert blocks(nn.Sequential(nn.Linear(2, 2), named, nn.Linear(2, 2))) == layers
    assert blocks(nn.Linear(2, 2)) == []


def test_a_list_of_torchs_own_layers_has_no_blocks() -> None:
    assert blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU())) == []


def test_blocks_of_every_tower_and_stage_are_found_and_their_kinds_are_counted() -> None:
    def layers(width: int, count: int) -> list[nn.Module]:
        return [nn.TransformerEncoderLayer(width, 2, dim_feedforward=8) for _ in range(count)]

    vision, text = layers(4, 3), layers(8, 2)
    towers = nn.ModuleDict({"vision": nn.ModuleList(vision), "text": nn.Sequential(nn.Linear(8, 8), *text)})
    assert blocks(towers) == [*vision, *text]
    assert kinds(blocks(towers)) == 2
    stages = nn.Sequential(nn.Sequential(*vision), nn.Sequential(*text))
    assert blocks(stages) == [*vision, *text]
    assert blocks(nn.ModuleList(vision[:1])) == []


class Stage(nn.Module):
    """A stage of a convolutional network: blocks of its own width, and what leads to it."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, width)
        self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(width, 2, dim_feedforward=8) for _ in range(count)))


def test_of_stages_that_differ_the_blocks_are_taken_and_of_equal_ones_the_stages() -> None:
    differ = nn.Sequential(Stage(4, 2), Stage(8, 3))
    assert blocks(differ) == [*differ[0].blocks, *differ[1].blocks]
    equal = nn.Sequential(Stage(4, 2), Stage(4, 2))
    assert blocks(equal) == list(equal)


def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """As transformers wraps a layer's forward."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


class Told(nn.Module):
    """A block that is told something, which its forward reads, and numbered, which it does not."""

    def __init__(self, told: Any, number: int) -> None:
        super().__init__()
        self.linear, self.number = nn.Linear(4, 4), number
        self.name, self.spread = f"block {number}", 0.02 / (number + 1)  # which no forward reads
        if isinstance(told, torch.Tensor):
            self.register_buffer("told", told)
        else:
            self.told = told

    @wrapped
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.told, torch.Tensor):
            return self.linear(x) + self.told
        if isinstance(self.told, tuple):
            return self.linear(x.roll(self.told))
        if isinstance(self.told, str):
            return self.linear(x).relu() if self.told == "sliding" else self.linear(x)
        return self.linear(x) * (self.told or 1.0)


@pytest.mark.parametrize(
    ("told", "different"),
    [
        ((None, None, None, None), 1),
        ((0.0, 0.1, 0.2, 0.3), 4),  # how likely a block is dropped in timm's and DeiT's trainings
        (((0,), (2,), (0,), (2,)), 2),  # by how much Swin shifts a window
        (("full", "sliding", "sliding", "full"), 2),
        ((None, torch.ones(4), None, torch.zeros(4)), 2),
    ],
    ids=["nothing", "a share", "a shift", "a word", "a table"],
)
def test_a_block_is_of_another_kind_where_it_is_compiled_anew(told: tuple[Any, ...], different: int) -> None:
    model, graphs = nn.Sequential(*(Told(value, k) for k, value in enumerate(told))), []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    assert kinds(list(model)) == different
    assert len(blocks(model)) == (0 if different == len(told) else len(told))
    for block in model:
        block.compile(backend=backend, dynamic=False)
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert len(graphs) == different


def test_one_block_is_compiled_for_all_and_undone(uncompiled: list[int]) -> None:
    w = tiny()
    model = seeded_model(w)
    keys, batch = list(model.state_dict()), w.inputs(1)
    right = Step(w, model, Plan(), CPU)(batch)[1]
    step = Step(w, model, Plan(regions=True), CPU)
    torch.testing.assert_close(step(batch)[1], right)
    assert len(uncompiled) == 1
    assert step.applied()["regions"] == 5
    assert list(model.state_dict()) == keys
    step._forward.undo()
    assert all(block._compiled_call_impl is None for block in blocks(model))


def test_weights_that_change_are_read_by_what_was_compiled(uncompiled: list[int]) -> None:
    w = tiny()
    model = seeded_model(w)
    plain = Step(w, model, Plan(compile=True), CPU)
    plain(w.inputs(1))
    with torch.no_grad():
        model.embedding.weight.mul_(2)
    plain(w.inputs(1))
    assert len(uncompiled) == 1


@pytest.mark.parametrize("form", [lambda y, n: (y, n), lambda y, n: {"y": y, "n": n}])
@pytest.mark.parametrize("number", [int, float])
def test_numbers_that_an_output_holds_are_no_reason_to_compile_anew(
    form: Any, number: Any, uncompiled: list[int]
) -> None:
    if torch.__version__ < (2, 13):
        pytest.skip("this torch compiles for the value of every number")

    def forward(model: Any, x: torch.Tensor) -> Any:
        y = model(x)
        return form(y, number(x.sum()))  # breaks the graph

    w = Workload(
        "counts",
        lambda: nn.Linear(8, 8),
        random,
        forward,
        loss=lambda output, x: pytree.tree_leaves(output)[0].square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    step = Step(w, seeded_model(w), Plan(compile=True), CPU)
    graphs = []
    for seed in range(6):
        batch = random(seed) * 10
        assert pytree.tree_leaves(step(batch)[1])[1] == number(batch.sum())
        graphs.append(len(uncompiled))
    assert graphs[1:] == graphs[:1] * 5


def test_weights_are_no_constants_and_changes_of_every_kind_show() -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).eval(), torch.randn(4, 16)
    applied = rung.apply(model, ["bf16", "compile"])

    def right() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float()

    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: model[0].weight.mul_(3),
            lambda: model[2].weight.data.mul_(-2),
            lambda: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}),
            lambda: model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()}, assign=True),
        ):
            change()
            torch.testing.assert_close(applied(x), right(), rtol=2e-2, atol=2e-2)


def with_shapes() -> Workload:
    """Five shapes; rows and columns differ in all, so that no two sizes are equal by chance."""

    def inputs(rows: int, columns: int) -> Any:
        return lambda seed: torch.randn(rows, columns, 8, generator=torch.Generator().manual_seed(seed))

    others = tuple(inputs(*shape) for shape in ((3, 5), (6, 4), (9, 2), (1, 7)))
    return Workload("shapes", lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU()), inputs(4, 6), other_shapes=others)


def test_one_graph_serves_all_shapes_where_their_sizes_are_left_open(uncompiled: list[int]) -> None:
    w = with_shapes()
    for plan, graphs in (
        (Plan(compile=True), 5),
        (Plan(compile=True, dynamic=True), 2),
    ):  # one row is compiled for apart
        uncompiled.clear()
        torch._dynamo.reset()
        model = seeded_model(w)
        step = Step(w, model, plan, CPU)
        for make in (w.inputs, *w.other_shapes):
            for seed in (1, 2):
                torch.testing.assert_close(step(make(seed))[1], model(make(seed)))
        assert len(uncompiled) == graphs
    uncompiled.clear()
    torch._dynamo.reset()
    applied = rung.apply(seeded_model(w), ["compile", "dynamic-shapes"])
    for make in (w.inputs, *w.other_shapes):
        with torch.no_grad():
            applied(make(1))
    applied.undo()
    assert len(uncompiled) == 2


def test_a_worker_counts_the_graphs_of_all_shapes(uncompiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.ladder.loaded.load", lambda target, options: with_shapes())
    seen = {}
    for rungs in (["compile"], ["compile", "dynamic-shapes"]):
        torch._dynamo.reset()
        worker = Candidate()
        worker.open("", {}, rungs, "cpu")
        seen[len(rungs)] = record_of(OverShapes, worker.over_shapes())
    assert [(s.shapes, s.graphs) for s in seen.values()] == [(5, 5), (5, 2)]
    sides = {"best": seen[1], "candidate": seen[2]}
    proof = BY_NAME["dynamic-shapes"].proof
    assert proof(Evidence(None, None, {}, sides)).shown is True
    assert proof(Evidence(None, None, {}, {**sides, "candidate": seen[1]})).shown is False


def test_open_sizes_are_for_inputs_that_vary_and_graphs_that_nobody_rewrites() -> None:
    facts = {"gpu": False, "mode": "infer", "matches": {"sdpa": 1}, "skipped": []}

    def says(plan: Plan, **more: Any) -> str:
        return str(BY_NAME["dynamic-shapes"].applies(Context(plan, "exact", facts_of(facts, **more), {}, {})))

    assert says(Plan(compile=True), named_shapes=2) == "None"
    vary = captured_graphs(Workload("rows", lambda: nn.Linear(8, 8), lambda seed: torch.randn(4 + seed, 8)), CPU)
    assert says(Plan(compile=True), **record.plain(vary)) == "None"
    assert "do not vary" in says(
        Plan(compile=True), named_shapes=1, recompilations=[{"where": "", "why": "calls == 1"}]
    )
    assert "not in effect" in says(Plan(), named_shapes=2)
    assert "need to know its sizes: sdpa" in says(Plan(compile=True, passes=("sdpa",)), named_shapes=2)
    open_ = Context(Plan(compile=True, dynamic=True), "exact", facts_of(facts), {}, {})
    assert "dynamic-shapes leaves them open" in str(BY_NAME["sdpa"].applies(open_))
    assert "dynamic-shapes" in BY_NAME["compile-regions"].replaces


def test_settings_reach_the_compiler(uncompiled: list[int]) -> None:
    step = Step(tiny(), seeded_model(tiny()), Plan(compile=True, inductor=(("combo_kernels", True),)), CPU)
    step(tiny().inputs(0))
    assert step.applied()["inductor combo_kernels"] is True
    assert step.applied()["compiled_graphs"] == 1


class Scores(nn.Module):
    """A sum in 16 bits before a softmax in float32: Inductor makes one kernel of both, which rounds neither the sum nor what it is of."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(8 * torch.randn(64, 64)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ self.left).bfloat16() + (x @ self.right).bfloat16()
        return torch.softmax(scores.float(), -1)


# Inductor has this rounding for CPUs since torch 2.13.
rounds = pytest.mark.skipif(
    not torch.cuda.is_available() and torch.torch_version.TorchVersion(torch.__version__) < (2, 13),
    reason="eager's rounding needs a GPU, or torch 2.13",
)


@rounds
def test_eager_rounding_trains_with_the_numbers_of_the_uncompiled_model() -> None:
    device = pick()
    workload = Workload(
        "scores", Scores, lambda seed: torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: (output * batch).sum(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip

    def gradient(*rungs: str) -> torch.Tensor:
        torch._dynamo.reset()
        step = Step(workload, seeded_model(workload).to(device.torch_name), plan_of(rungs), device)
        step(to_device(workload.inputs(1), device))
        grad = next(step.model.parameters()).grad
        assert grad is not None
        return grad.clone()

    eager, compiled, rounded = gradient(), gradient("compile"), gradient("compile", "eager-rounding")
    size = eager.abs().max()
    assert (rounded - eager).abs().max() < 1e-4 * size
    assert (compiled - eager).abs().max() > 1e-2 * size


def test_regions_stand_in_for_a_compilation_that_takes_long_or_fails() -> None:
    rung_ = BY_NAME["compile-regions"]
    facts = {"gpu": True, "mode": "train", "blocks": 24}

    def applies(plan: Plan, first: float, failed: tuple[str, ...] = (), **more: int) -> bool:
        return rung_.applies(Context(plan, "exact", facts_of(facts, **more), {}, {}, first, failed)) is None

    assert applies(Plan(compile=True), 90.0)
    assert not applies(Plan(compile=True), 20.0)
    assert not applies(Plan(compile=True), 90.0, blocks=3)
    assert not applies(Plan(), 90.0)
    assert applies(Plan(), 1.0, failed=("compile",))
    assert not applies(Plan(compile=True), 90.0, kinds_of_blocks=13)


def test_a_recipe_is_applied_in_less_than_a_second() -> None:
    import time

    model = seeded_model(tiny())
    spent = []
    for _ in range(3):
        began = time.process_time()
        rung.apply(model, ["compile", "coordinate-descent", "sdpa", "fused-qkv"])
        spent.append(time.process_time() - began)
    assert min(spent) < 1


def test_the_module_that_uses_private_names_finds_them_in_this_torch() -> None:
    assert hasattr(torch._logging, "set_logs")
    assert callable(torch._dynamo.eval_frame.remove_from_cache)
    assert compiling.skipped_replays() == 0
