"""The residual stream in bfloat16: which sums are taken so, what still computes in float32, and what is left alone."""

import copy
from dataclasses import replace

import pytest
import torch
from known_facts import facts_of
from torch import nn

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.rewrites import RewriteBackend, residual_dtype
from rung.rewrites import backend as backend_module
from rung.rungs import BY_NAME, Context
from rung.verify import verify as verifying
from rung.workload import seeded_model
from rung.workload.tiny_transformer import make

CPU = pick("cpu")
X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
SLOPE = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.first, self.second = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 16)


class PreNorm(Layer):
    def forward(self, x):
        x = x + self.first(self.norm(x))
        return self.norm(x + self.second(self.norm(x)))


class PostNorm(Layer):
    def forward(self, x):
        x = self.norm(self.first(x) + x)
        return self.norm(x + self.second(x))


class InPlace(Layer):
    def forward(self, x):
        x = x * 1.5
        x += self.first(x)
        x += self.second(x)
        return self.norm(x)


class Scaled(Layer):
    def forward(self, x):
        return torch.add(x, self.first(self.norm(x)), alpha=0.5)


class Recorder(RewriteBackend):
    """Keeps the dtypes of the sums of the graph that it has rewritten, as it runs."""

    def compiled(self, gm, inputs):
        self.sums = []

        def run(*arguments):
            noted = self.sums

            class Note(torch.fx.Interpreter):
                def run_node(self, n):
                    out = super().run_node(n)
                    if getattr(n.target, "__name__", "") in ("add", "iadd"):
                        noted.append(out.dtype)
                    return out

            return Note(gm).run(*arguments)

        return run


def ran(model, x=X, amp=True):
    """Outputs and gradients of a model under autocast, as it is and rewritten; the backend."""
    torch._dynamo.reset()
    backend, found = Recorder(["bf16-stream"], "eager"), []
    other = copy.deepcopy(model)
    for one, run in ((model, model), (other, torch.compile(other, backend=backend, dynamic=False))):
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            out = run(given)
        (out.float() * SLOPE).sum().backward()
        found.append([out.detach(), given.grad, *(p.grad for p in one.parameters() if p.grad is not None)])
    return found[0], found[1], backend


@pytest.mark.parametrize("model", [PreNorm, PostNorm, InPlace], ids=lambda m: m.__name__)
def test_sums_with_a_branch_are_taken_in_bfloat16(model):
    want, got, backend = ran(model())
    assert backend.rewritten == {"bf16-stream": 2}
    assert backend.sums == [torch.bfloat16] * 2
    assert (backend.before["wide_sum"], backend.after["wide_sum"]) == (2, 0)
    for mine, theirs in zip(want, got, strict=True):
        assert theirs.dtype == mine.dtype
        assert float((theirs - mine).norm() / mine.norm()) < 0.02


def test_a_result_that_leaves_the_graph_keeps_its_dtype_and_the_factor_of_an_addition_stays():
    want, got, backend = ran(Scaled())
    assert backend.rewritten == {"bf16-stream": 1}
    assert got[0].dtype == want[0].dtype == torch.float32
    torch.testing.assert_close(got[0], want[0], rtol=0.01, atol=0.02)


def test_without_autocast_nothing_is_rewritten_and_the_survey_counts_the_sums():
    want, got, backend = ran(PreNorm(), amp=False)
    assert backend.rewritten == {}
    assert torch.equal(got[0], want[0])
    assert backend.before["sum"] == 2


def overwritten(model, x):
    x = x * 1.5
    y = x + model.first(x)
    y.mul_(2.0)
    return y + x


def read_through_the_old_name(model, x):
    x = x * 1.5
    old = x.view(-1, 16)
    x += model.first(x)
    return old * 2.0


def changes_its_input(model, x):
    x += model.first(x)
    return x * 2.0


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (overwritten, "written in place"),
        (read_through_the_old_name, "read through the tensor"),
        (changes_its_input, "changes an input"),
    ],
    ids=lambda f: getattr(f, "__name__", None),
)
def test_sums_that_are_written_to_are_left_alone(function, says):
    torch._dynamo.reset()
    model, backend = PreNorm(), RewriteBackend(["bf16-stream"], "eager")
    run = torch.compile(function, backend=backend, dynamic=False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        mine, theirs = X.clone(), X.clone()
        torch.testing.assert_close(run(model, theirs), function(model, mine))
        assert torch.equal(mine, theirs)
    assert backend.rewritten == {}
    assert any(says in reason for reason in backend.skipped)


def workload(layers=2):
    made = make(hidden_dim=32, num_layers=layers, seq_len=8, batch_size=2, num_heads=2)
    # AdamW's first steps follow a gradient's sign, which is chance where one of few elements is nearly zero.
    return replace(made, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def test_a_transformer_with_the_stream_in_bfloat16_is_verified_gradients_and_steps_included():
    found = verifying.verify(workload(), Plan(bf16=True, passes=("bf16-stream",)), CPU).record()
    assert found.passed, found.failures
    assert found.precisions == ["exact", "bf16"]
    assert found.worst.what


def test_a_residual_that_is_lost_is_refused(monkeypatch):
    def wrong(graph):
        count, skipped = residual_dtype.narrow_residuals(graph)
        for last in graph.find_nodes(op="call_function", target=torch.add)[-1:]:
            last.args = (last.args[1], last.args[1])
        return count, skipped

    monkeypatch.setitem(backend_module._PASS_FUNCTIONS, "bf16-stream", wrong)
    monkeypatch.setattr(verifying, "SEEDS", (12, 13))
    found = verifying.verify(workload(1), Plan(bf16=True, passes=("bf16-stream",)), CPU, precisions=["bf16"]).record()
    assert not found.passed
    assert found.failures


def test_it_works_with_the_other_passes():
    made = workload(2)
    step = Step(made, seeded_model(made), Plan(bf16=True, passes=("bf16-stream", "sdpa", "fused-qkv")), CPU)
    loss, _ = step(made.inputs(1))
    assert torch.isfinite(loss)
    assert step.applied()["matches"]["bf16-stream"] == 4
    assert all(torch.isfinite(p.grad).all() for p in step.model.parameters())


def test_it_follows_from_autocast():
    rung, facts = BY_NAME["bf16-stream"], {"gpu": True, "mode": "train", "captured": {"sum": 4}, "amp": None}
    assert "bf16" in str(rung.applies(Context(Plan(), "tf32", facts_of(facts), {}, {})))
    assert "autocast" in str(rung.applies(Context(Plan(), "bf16", facts_of(facts), {}, {})))
    assert rung.applies(Context(Plan(bf16=True), "bf16", facts_of(facts), {}, {})) is None
    assert "no sum" in str(rung.applies(Context(Plan(bf16=True), "bf16", facts_of(facts, captured={}), {}, {})))
    assert rung.change(Plan(bf16=True)).passes == ("bf16-stream",)
