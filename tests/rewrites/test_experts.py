"""Loops over experts that become grouped products, and those that must stay."""

import pytest
import torch
import torch.nn.functional as F
from known_facts import facts_of
from torch import nn

from rung import Workload
from rung.engine.dynamo import data_dependent_sizes
from rung.engine.step import Step
from rung.hardware import pick
from rung.ladder.survey import captured_graphs
from rung.plan import Plan
from rung.rewrites import PASSES, RewriteBackend, grouped_mm
from rung.rungs import BY_NAME, Context
from rung.workload import seeded_model

WIDTH, HIDDEN, EXPERTS = 16, 24, 4
CPU = pick("cpu")


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Gated(nn.Module):
    def __init__(self, hidden=HIDDEN, bias=False):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, hidden, bias=bias), nn.Linear(WIDTH, hidden, bias=bias)
        self.down = nn.Linear(hidden, WIDTH, bias=bias)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class PackedWeights(Gated):
    """Gate and up in one layer."""

    def __init__(self):
        super().__init__()
        self.both, self.gate, self.up = nn.Linear(WIDTH, 2 * HIDDEN), None, None

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(F.gelu(gate) * up)


class Experts(nn.Module):
    def __init__(self, experts=None, router=EXPERTS, favoured=None):
        super().__init__()
        self.router = nn.Linear(WIDTH, router, bias=False)
        self.experts = nn.ModuleList(experts or [Gated() for _ in range(EXPERTS)])
        self.favoured = favoured

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        scores = self.router(flat).float()
        if self.favoured is not None:  # nobody chooses the others
            scores = scores + self.favoured
        weights, chosen = torch.topk(scores.softmax(-1), 2, dim=-1)
        return self.mixed(flat, weights.to(x.dtype), chosen).view_as(x)

    def mixed(self, flat, weights, chosen):
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            out.index_add_(0, token, (expert(flat[token]) * weights[token, rank, None]).to(out.dtype))
        return out


class Masked(Experts):
    """Asks a mask of experts, ranks and tokens, as Mixtral did."""

    def mixed(self, flat, weights, chosen):
        out = torch.zeros(flat.shape, dtype=flat.dtype, device=flat.device)
        mask = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            rank, token = torch.where(mask[number])
            rows = flat[None, token].reshape(-1, WIDTH)
            out.index_add_(0, token, (expert(rows) * weights[token, rank, None]).to(flat.dtype))
        return out


class TokensFirst(Experts):
    """A mask of experts, tokens and ranks; weights that become a column afterwards."""

    def mixed(self, flat, weights, chosen):
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, EXPERTS).permute((2, 0, 1))
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(mask[number])
            out.index_add_(0, token, weights[token, rank].unsqueeze(-1) * expert(flat[token, :]))
        return out


class ExpertsLast(Experts):
    def mixed(self, flat, weights, chosen):
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, EXPERTS)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(mask[..., number])
            out.index_add_(0, token, expert(flat[token]) * weights[token, rank][:, None])
        return out


class Transposed(Experts):
    """Takes ranks for tokens."""

    def mixed(self, flat, weights, chosen):
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            rank, token = torch.where(mask[number])
            out.index_add_(0, rank, expert(flat[rank]) * weights[rank, token % 2, None])
        return out


class Capacity(Experts):
    """Of each expert, a token that comes late is nobody's."""

    def mixed(self, flat, weights, chosen):
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, EXPERTS)
        mask.mul_(mask.cumsum(0) < 5)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(mask[..., number])
            out.index_add_(0, token, expert(flat[token]) * weights[token, rank, None])
        return out


class Counting(Experts):
    """Says how many tokens its last expert has."""

    def mixed(self, flat, weights, chosen):
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            rows = expert(flat[token])
            out.index_add_(0, token, rows * weights[token, rank, None])
        return out + rows.sum()


class Residual(Experts):
    def mixed(self, flat, weights, chosen):
        out = flat.clone()
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            out.index_add_(0, token, expert(flat[token]) * weights[token, rank, None])
        return out


class Dropping(Experts):
    """A second choice of too little weight is nobody."""

    def mixed(self, flat, weights, chosen):
        chosen.masked_fill_(weights < 0.35, -1)
        return super().mixed(flat, weights, chosen)


class Normed(Gated):
    """Looks at all rows of an expert at once."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


def batch(seed, rows=3):
    return torch.randn(rows, 5, WIDTH, generator=torch.Generator().manual_seed(seed))


def check(model, passes=("grouped-experts",), tolerance=1e-5, x=None):
    model = model.eval()
    x = batch(1) if x is None else x
    backend = RewriteBackend(passes, "eager")
    with torch.no_grad(), data_dependent_sizes():
        want = model(x)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        got = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)(x)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name])
    return backend


@pytest.mark.parametrize(
    "model",
    [
        Experts,
        lambda: Experts([Gated(bias=True) for _ in range(EXPERTS)]),
        lambda: Experts([PackedWeights() for _ in range(EXPERTS)]),
        lambda: Experts(favoured=torch.tensor([9.0, -9.0, 9.0, -9.0])),
        Masked,
        lambda: Masked(favoured=torch.tensor([9.0, -9.0, 9.0, -9.0])),
        TokensFirst,
        ExpertsLast,
    ],
    ids=[
        "gated", "with biases", "gate and up in one", "experts without a token", "a mask", "a mask, and experts without a token",
        "a mask of tokens and ranks", "a mask with experts last",
    ],
)  # fmt: skip
def test_a_loop_over_experts_becomes_grouped_products(model):
    backend = check(model())
    assert backend.rewritten == {"grouped-experts": 1}
    assert backend.skipped == []


def test_no_other_pass_keeps_a_loop_from_being_found():
    assert check(Experts(), tuple(PASSES)).rewritten == {"grouped-experts": 1}


def test_rows_are_sorted_by_expert():
    x, chosen = torch.arange(10.0).view(5, 2), torch.tensor([[2, 0], [0, 2], [2, 1], [0, 1], [2, 0]])
    rows, ends, owner, places = grouped_mm.sort_rows(x, chosen, 4)
    assert ends.tolist() == [4, 6, 10, 10]
    assert owner.tolist() == sorted(chosen.flatten().tolist())
    assert torch.equal(rows[places], x.repeat_interleave(2, 0))
    assert torch.equal(owner[places], chosen.flatten())


def test_the_grouped_kernel_computes_what_the_loop_does(monkeypatch):
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no grouped product")
    asked = []
    monkeypatch.setattr(grouped_mm, "one_kernel", lambda rows, weights: asked.append(rows.dtype) or True)
    experts = [Gated(bias=True) for _ in range(EXPERTS)]
    check(Experts(experts).bfloat16(), tolerance=2e-2, x=batch(1).bfloat16())
    assert asked == [torch.bfloat16] * 3


def different():
    return Experts([Gated(), Gated(), Gated(), Gated(HIDDEN + 8)])


def swapped():
    experts = [Gated() for _ in range(EXPERTS)]
    experts[1].forward = lambda x, e=experts[1]: e.down(e.gate(x) * F.silu(e.up(x)))
    return Experts(experts)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (different, "not alike"),
        (swapped, "not alike"),
        (lambda: Experts(router=EXPERTS + 2), "outside of the loop"),
        (Counting, "is used elsewhere"),
        (Residual, "does not start as zeros"),
        (Dropping, "is written to"),
        (Capacity, "is written to"),
        (lambda: Experts([Normed() for _ in range(EXPERTS)]), "more than linear layers"),
    ],
    ids=["different", "activations swapped", "more choices", "counting", "residual", "dropping", "capacity", "normed"],
)
def test_a_loop_that_must_stay_says_why(model, why):
    backend = check(model())
    assert backend.rewritten == {}
    assert why in backend.skipped[0]


def test_a_loop_that_takes_ranks_for_tokens_is_no_such_loop():
    assert check(Transposed()).rewritten == {}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Experts(), Experts()

    def forward(self, x):
        return self.second(x + self.first(x))


MODEL = Workload("experts", Model, batch)


def test_the_whole_step_is_one_graph_and_its_weights_can_be_given_back():
    model = seeded_model(MODEL).eval()
    right = Step(MODEL, model, Plan(), CPU)(batch(2))[1]
    step = Step(MODEL, model, BY_NAME["grouped-experts"].change(Plan()), CPU)
    torch.testing.assert_close(step(batch(2))[1], right, rtol=1e-5, atol=1e-5)
    assert step.applied()["matches"] == {"grouped-experts": 2}
    assert step.applied()["graph_breaks"] == 0

    def pieces() -> int:
        places = {p.data_ptr(): p.data_ptr() + p.nbytes for p in model.first.experts.parameters()}
        return len(places.keys() - set(places.values()))

    assert pieces() == 3
    assert step.backend
    step.backend.undo()
    assert pieces() == 3 * EXPERTS


def test_the_survey_finds_it_behind_the_breaks():
    found = captured_graphs(MODEL, CPU)
    assert found.breaks
    assert found.matches["grouped-experts"] == 2


FACTS = {"mode": "infer", "gpu": True, "arch": "sm90", "dtype": "torch.bfloat16", "matches": {"grouped-experts": 1}, "skipped": []}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, None),
        ({"arch": "gfx942"}, "gfx942"),
        ({"dtype": "torch.float32"}, "bfloat16"),
        ({"mode": "train"}, "for inference"),
        ({"matches": {}}, "no loop over experts"),
    ],
    ids=["here", "another chip", "float32", "training", "no experts"],
)
def test_where_the_rung_applies(facts, why):
    found = BY_NAME["grouped-experts"].applies(Context(Plan(), "exact", facts_of(FACTS, **facts), {}, {}))
    assert (found is None) if why is None else (why in found.why)
