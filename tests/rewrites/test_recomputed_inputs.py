"""What a backward pass keeps and what it computes again, in memory that is really kept; and that gradients stay what they were."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from functorch.compile import aot_module, min_cut_rematerialization_partition, nop
from known_facts import facts_of
from torch import nn
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from rung.plan import Plan
from rung.rewrites import RewriteBackend
from rung.rewrites.inductor_passes import recompute
from rung.rungs import BY_NAME, Context, Evidence
from rung.rungs.rung import Proof

TOKENS, DIM, HIDDEN = 64, 32, 96
COUNTS: list[int] = []


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))
        self.gate, self.up = (nn.Linear(DIM, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Dropped(nn.Module):
    """The gradient of `out` is the activation after dropout, as far as the output shows it, times that of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False)
        self.out.weight.data.copy_(torch.eye(DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.dropout(F.gelu(self.into(x)), 0.5))


def sample(requires_grad: bool = False) -> torch.Tensor:
    return torch.randn(TOKENS, DIM, generator=torch.Generator().manual_seed(1), requires_grad=requires_grad)


@contextmanager
def kept() -> Iterator[Callable[[], int]]:
    """Bytes of what autograd keeps meanwhile, each memory once."""
    memory: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(one.nbytes() for one in memory.values())


def trained(model: nn.Module, x: torch.Tensor, again: bool) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """The output, the gradients, and the bytes that the backward pass needed: Inductor's way but for its kernels."""

    def partition(joint: torch.fx.GraphModule, inputs: object, **options: object) -> object:
        if again:
            recompute.copy_saved_parts(joint.graph)
            COUNTS.append(recompute.mark_inputs(joint.graph))
        return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)

    model.zero_grad()
    run = aot_module(model, nop, nop, partition, decompositions=select_decomp_table())
    with kept() as size:
        out = run(x)
        seen = size()
    out.pow(2).sum().backward()
    return out.detach(), [p.grad.clone() for p in model.parameters()], seen


def test_gated_activations_and_normed_values_are_not_kept_and_gradients_are_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Gated(), Gated())
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    out, gradients, before = trained(model, sample(), again=False)
    again, same, after = trained(model, sample(), again=True)
    assert before - after == 4 * TOKENS * (
        2 * HIDDEN + DIM
    )  # the first norm is of the input itself, which is no activation
    torch.testing.assert_close(again, out)
    for one, other in zip(same, gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_a_mask_of_dropout_is_not_drawn_again() -> None:
    torch.manual_seed(0)
    out, gradients, _ = trained(Dropped(), sample(), again=True)
    torch.testing.assert_close(gradients[-1], (2 * out).t() @ out)


class Stream(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(x + self.one(x))  # nothing else needs the sum


def test_what_would_have_to_be_kept_instead_is_not_marked() -> None:
    COUNTS.clear()
    trained(Stream(), sample(), again=True)
    trained(nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM)), sample(), again=True)
    assert COUNTS == [0, 1]


class Attended(nn.Module):
    """Queries and keys are products of their own, the values a part of one; `read`: more than that is read of it."""

    def __init__(self, read: str = "") -> None:
        super().__init__()
        self.joined, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.register_buffer("turn", torch.randn(16, 16, generator=torch.Generator().manual_seed(2)))
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.joined(x.unflatten(0, (4, -1)))
        q, k, v = (part.unflatten(-1, (-1, 16)).transpose(1, 2) for part in whole.split(DIM, -1))
        made = F.scaled_dot_product_attention(q @ self.turn, k @ self.turn, v, is_causal=True)
        more = {"": v, "elsewhere": whole, "values": v.cos()}[self.read]
        return self.out(made.transpose(1, 2).flatten(2)) + (more.sin().sum() if self.read else 0)


class AllAttended(Attended):
    """Queries, keys and values are attended to as they are: what is kept of the product is all of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.joined(x.unflatten(0, (4, -1)))
        q, k, v = (part.unflatten(-1, (-1, 16)).transpose(1, 2) for part in whole.split(DIM, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Unbound(Attended):
    """The values are one of three along a dimension of their own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.joined(x.unflatten(0, (4, -1))).unflatten(-1, (3, -1, 16))
        q, k, v = whole.permute(2, 0, 3, 1, 4).unbind(0)
        made = F.scaled_dot_product_attention(q @ self.turn, k @ self.turn, v, is_causal=True)
        return self.out(made.transpose(1, 2).flatten(2))


def test_parts_that_are_the_whole_together_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    keep = recompute.copy_saved_parts
    monkeypatch.setattr(recompute, "copy_saved_parts", lambda graph: copied.append(keep(graph)))
    trained(AllAttended(), sample(), again=True)
    trained(Attended(), sample(), again=True)
    trained(Unbound(), sample(), again=True)
    assert copied == [0, 1, 1]


@pytest.mark.parametrize("read", ["", "elsewhere", "values"])
def test_values_do_not_keep_the_product_alive_that_they_are_a_part_of(read: str) -> None:
    torch.manual_seed(0)
    model = Attended(read)
    x = sample()
    out, gradients, before = trained(model, x, again=False)
    again, same, after = trained(model, x, again=True)
    input_of_out = 4 * TOKENS * DIM  # laid out as the product wants it, from what attention gives, which is kept
    assert before - after - input_of_out == (0 if read == "elsewhere" else 4 * TOKENS * 2 * DIM)
    torch.testing.assert_close(again, out)
    for one, other in zip(same, gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_many_paths_through_elementwise_operations_take_no_time() -> None:
    graph = torch.fx.Graph()
    aten = torch.ops.aten
    weight, gradient = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    at = whole = graph.call_function(aten.mm.default, (weight, weight))
    part = graph.call_function(aten.slice.Tensor, (whole, 1, 0, 2))
    made = graph.call_function(aten._scaled_dot_product_flash_attention_for_cpu.default, (part, part, part))
    for _ in range(60):
        at = graph.call_function(
            aten.add.Tensor, tuple(graph.call_function(f, (at,)) for f in (aten.sin.default, aten.cos.default))
        )
    last = graph.call_function(aten.mm.default, (at, weight))
    late = graph.call_function(aten.mm.default, (gradient, part))
    graph.output((made, last, late))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(8, 8)
    part.meta["val"] = torch.empty(8, 8)[:, :2]
    assert recompute.copy_saved_parts(graph) == 1
    graph.lint()


class Counted(Gated):
    """Adds what it then changes, as statistics that move are: the backward pass would read the changed value."""

    moved: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moved", torch.full((HIDDEN,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(F.silu(self.gate(x)) * self.up(x) + self.moved)
        self.moved.mul_(0.5)
        return y


def test_what_is_computed_of_a_buffer_that_is_written_is_kept() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Counted()
    model(sample()).pow(2).sum().backward()
    want = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model.moved.fill_(2.0)
    backend = RewriteBackend([], inductor_options={"force_disable_caches": True}, inductor_passes=["recompute"])
    torch.compile(model, backend=backend)(sample()).pow(2).sum().backward()
    for grad, right in zip([p.grad for p in model.parameters() if p.grad is not None], want, strict=True):
        torch.testing.assert_close(grad, right, rtol=1e-4, atol=1e-4)


def test_inductor_runs_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    seen = []
    monkeypatch.setattr(recompute, "mark_inputs", lambda graph: seen.append(graph))
    model = nn.Linear(4, 4, bias=False)
    run = torch.compile(
        model,
        backend=RewriteBackend([], inductor_options={"force_disable_caches": True}, inductor_passes=["recompute"]),
    )
    run(torch.randn(3, 4)).sum().backward()
    assert len(seen) == 1
    assert recompute.Recompute().uuid() == recompute.Recompute().uuid()


def test_the_users_own_checkpoints_hold() -> None:
    graph = torch.fx.Graph()
    x, g = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    made = graph.call_function(torch.ops.aten.relu.default, (graph.call_function(torch.ops.aten.mm.default, (x, x)),))
    late = graph.call_function(torch.ops.aten.mul.Tensor, (g, made.args[0]))
    graph.output((made, graph.call_function(torch.ops.aten.mm.default, (made, late))))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, 4)
    made.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    assert recompute.mark_inputs(graph) == 1
    assert made.meta["recompute"] is CheckpointPolicy.MUST_SAVE

    torch.manual_seed(0)
    block = Gated()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.last = block, Gated()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.block, x, use_reentrant=False))

    _, plain, before = trained(Outer(), sample(True), again=False)
    _, marked, after = trained(Outer(), sample(True), again=True)
    assert after <= before
    for one, other in zip(plain, marked, strict=True):
        assert one.isfinite().all()
        assert other.isfinite().all()


def test_it_is_for_compiled_training_on_a_gpu_and_shows_in_the_peak() -> None:
    rung = BY_NAME["recompute"]
    facts = {"gpu": True, "mode": "train"}
    here = Context(Plan(compile=True), "exact", facts_of(facts), {}, {})
    assert rung.applies(here) is None
    for other in (Context(Plan(), "exact", facts_of(facts), {}, {}), Context(Plan(compile=True), "exact", facts_of(facts, gpu=False), {}, {}),
                  Context(Plan(compile=True), "exact", facts_of(facts, mode="infer"), {}, {})):  # fmt: skip
        assert rung.applies(other)
    assert rung.change(Plan()).inductor_passes == ("recompute",)

    def proof(best: int, candidate: int) -> Proof:
        memory = {"best": {"allocated": best}, "candidate": {"allocated": candidate}}
        return rung.proof(Evidence(None, None, {"pass recompute": True}, memory=memory))

    assert proof(6 * 2**30, 5 * 2**30).shown is True
    assert proof(6 * 2**30, 5 * 2**30).says.endswith("6.00 -> 5.00 GiB at the peak")
    assert proof(1, 1).shown is False
    assert rung.predict(Context(Plan(), "exact", facts_of(facts), {"pointwise": 1.0}, {})).high == 1.0
