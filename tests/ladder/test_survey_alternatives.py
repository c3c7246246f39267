"""What the survey finds: a rewrite that another one is before in, and shapes of one size."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rung import Workload
from rung.engine.step import Step
from rung.hardware import pick
from rung.ladder.survey import captured_graphs, described, quick_facts
from rung.plan import Plan
from rung.rewrites import backend, cross_entropy
from rung.rewrites.graph import kernel_ops
from rung.rungs import BY_NAME, Context
from rung.workload import call_model, seeded_model

CLASSES, WIDTH = 20, 8


def inputs(seed):
    return torch.randint(CLASSES, (2, 5), generator=torch.Generator().manual_seed(seed))


def loss(model, tokens):
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


@pytest.fixture
def workload(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(cross_entropy, "LEAST_BYTES", 0)
    return Workload(
        "a small language model",
        lambda: nn.Sequential(nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES)),
        inputs,
        forward=loss,
        mode="train",
        loss=lambda output, batch: output,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def test_both_ways_to_compute_a_loss_are_found(workload, monkeypatch):
    def plain(logits, target, ignored, smoothing):
        return F.cross_entropy(logits, target, ignore_index=ignored, reduction="none"), None

    monkeypatch.setattr(kernel_ops, "obstacle", lambda *tensors: "")
    monkeypatch.setattr(kernel_ops, "operator", lambda name: plain)
    found = captured_graphs(workload, pick("cpu")).matches
    assert found["fused-cross-entropy"] == found["triton-cross-entropy"] == 1


def test_why_the_other_way_is_closed_is_said_once(workload, monkeypatch):
    monkeypatch.setattr(kernel_ops, "obstacle", lambda *tensors: "its kernel runs on a GPU")
    facts = captured_graphs(workload, pick("cpu"))
    assert facts.matches["triton-cross-entropy"] == 0
    said = [reason for reason in facts.skipped if reason.startswith("triton-cross-entropy: ")]
    assert len(said) == 1
    assert said[0].endswith("its kernel runs on a GPU")


class Written(nn.Module):
    """Attention in three dimensions, batch and heads together, as OWL-ViT has it."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        batch, length, _ = x.shape

        def heads(y):
            return y.view(batch, length, 2, WIDTH // 2).transpose(1, 2).reshape(2 * batch, length, WIDTH // 2)

        q, k, v = heads(self.q(x) * (WIDTH // 2) ** -0.5), heads(self.k(x)), heads(self.v(x))
        weights = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
        return torch.bmm(weights, v).view(batch, 2, length, WIDTH // 2).transpose(1, 2).reshape(batch, length, WIDTH)


def raises(*tensors):
    raise RuntimeError("view size is not compatible")


def spoiling(graph):
    """A rewrite whose code cannot run."""
    last = next(iter(reversed(graph.nodes)))
    with graph.inserting_before(last):
        graph.call_function(raises, (last.all_input_nodes[0],))
    return 1, []


@pytest.mark.parametrize("spoilt", [["hoisted-constants"], ["hoisted-constants", "in-place-cache"]])
def test_what_a_rewrite_spoils_is_left_out_and_the_others_are_found(spoilt, monkeypatch):
    torch._dynamo.reset()
    for name in spoilt:
        monkeypatch.setitem(backend._PASS_FUNCTIONS, name, spoiling)
    workload = Workload("attention", Written, lambda seed: torch.randn(3, 24, WIDTH), mode="infer")
    facts = captured_graphs(workload, pick("cpu"))
    said = "what it rewrites raises an error here (RuntimeError: view size is not compatible)"
    assert {reason for reason in facts.skipped if said in reason} >= {f"{name}: {said}" for name in spoilt}
    assert facts.graphs == 1
    if len(spoilt) == 1:  # of several it is not told which of them is to blame
        assert facts.matches["sdpa"] == 1


def test_what_the_workload_raises_is_blamed_on_no_rewrite():
    class Fails(Written):
        def forward(self, x):
            super().forward(x)
            torch._dynamo.graph_break()
            raise ValueError("odd")

    torch._dynamo.reset()
    facts = captured_graphs(Workload("odd", Fails, lambda seed: torch.randn(3, 24, WIDTH), mode="infer"), pick("cpu"))
    assert facts.matches == {}
    assert facts.skipped == ["capture failed: ValueError: odd"]


def test_the_size_of_hand_written_attention_is_told_by_the_graph():
    torch._dynamo.reset()
    workload = Workload("attention", Written, lambda seed: torch.randn(3, 24, WIDTH), mode="infer")
    facts = captured_graphs(workload, pick("cpu"))
    assert facts.matches["sdpa"] == 1
    scores = 3 * 2 * 24 * 24
    assert facts.written_out == {"scores": scores, "flop": 2 * 2 * scores * (WIDTH // 2)}


def test_named_shapes_of_the_measured_size_are_counted(workload):
    device = pick("cpu")
    shaped = [lambda seed, size=size: torch.zeros(size, dtype=torch.long) for size in ((5, 2), (1, 10), (3, 5))]
    named = replace(workload, other_shapes=tuple(shaped))
    model = seeded_model(named)
    assert quick_facts(named, Step(named, model, Plan(), device), device).same_size_shapes == 2
    assert quick_facts(workload, Step(workload, model, Plan(), device), device).same_size_shapes == 0


def test_a_workload_is_described_by_what_a_step_needs_of_it(workload):
    model = seeded_model(workload)
    plain, odd = replace(workload, forward=call_model), replace(workload, output=False)
    assert (described(plain, model).own_forward, described(plain, model).output) == (False, True)
    assert (described(odd, model).own_forward, described(odd, model).output) == (True, False)


@pytest.mark.parametrize("sparse", [True, False])
def test_an_optimizer_of_sparse_gradients_is_not_fused(sparse: bool) -> None:
    """So that no plain mode asks for it, which would end all of them."""
    trained = Workload(
        "bags", lambda: nn.EmbeddingBag(8, 4, sparse=sparse), lambda seed: torch.zeros(2, 3, dtype=torch.long), mode="train",
        loss=lambda output, batch: output.sum(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )  # fmt: skip
    device = pick("cpu")
    facts = quick_facts(trained, Step(trained, seeded_model(trained), Plan(), device), device)
    assert ("sparse gradients" in str(facts.optimizer_not_fused)) is sparse


@pytest.mark.parametrize(
    ("weights", "inputs", "dtype"),
    [
        (torch.bfloat16, torch.float32, "torch.bfloat16"),
        (None, torch.float32, "torch.float32"),
        (None, torch.float16, "torch.float16"),
        (None, torch.int64, "torch.int64"),
    ],
)
def test_a_module_without_weights_computes_in_the_dtype_of_its_inputs(
    weights: torch.dtype | None, inputs: torch.dtype, dtype: str
) -> None:
    """So that a product of two inputs can be run under autocast."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if weights:
                self.weight = nn.Parameter(torch.ones(4, 4, dtype=weights))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    device = pick("cpu")
    workload = Workload("product", Product, lambda seed: torch.ones(4, 4, dtype=inputs))
    facts = quick_facts(workload, Step(workload, Product(), Plan(), device), device)
    assert facts.dtype == dtype
    no = BY_NAME["bf16"].applies(Context(Plan(), "bf16", facts, {}, {}))
    assert (no is None) == (dtype == "torch.float32")
