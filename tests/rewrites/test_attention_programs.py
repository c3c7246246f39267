"""Attention in whatever way it is put together: drawn programs compute the same once rewritten, gradients included."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.rewrites import RewriteBackend

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LOW = -1e9

FIRST = {
    "product": lambda q, k, bias: q @ k.transpose(-1, -2),
    "scaled query": lambda q, k, bias: torch.matmul(q * 0.5, k.mT),
    "einsum": lambda q, k, bias: torch.einsum("...td,...sd->...ts", q, k),
}
MERGED_FIRST = {
    "bmm": lambda q, k, bias: torch.bmm(q, k.transpose(1, 2)),
    "baddbmm of a bias": lambda q, k, bias: torch.baddbmm(bias, q, k.transpose(1, 2), beta=0.5, alpha=0.3),
    "baddbmm of nothing": lambda q, k, bias: torch.baddbmm(torch.zeros_like(bias), q, k.mT, beta=0, alpha=2.0),
}
SCALES = {"none": lambda s: s, "divided": lambda s: s / math.sqrt(8), "in place": lambda s: s.mul_(0.5)}
SOFTMAXES = {
    "method": lambda s: s.softmax(-1),
    "function": lambda s: F.softmax(s, dim=-1),
    "widened": lambda s: F.softmax(s.double(), -1).type_as(s),
}
MASKS = {
    "causal": lambda s, row: s + torch.full(s.shape[-2:], LOW, dtype=s.dtype).triu(1),
    "kept": lambda s, row: s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), LOW),
    "learned": lambda s, row: s + row[: s.shape[-1]],
    "one a head": lambda s, row: s + row[: math.prod(s.shape[:-2])].view(*s.shape[:-2], 1, 1),
}
AFTER = {
    "joined heads": lambda o: o.transpose(1, 2).reshape(o.shape[0], o.shape[2], -1),
    "viewed": lambda o: (o * 1.5).view(o.shape[0], -1, o.shape[-1]),
    "written to": lambda o: F.gelu(o).add_(1),
}


@dataclass(frozen=True)
class Program:
    """form: `plain` [B, H, T, D], `merged` [B * H, T, D], `swapped` [H * B, T, D] or `grouped` [B, Hk, G, T, D]."""

    form: str
    sizes: tuple[int, int, int, int, int]  # batch, key heads, group, queries, keys
    first: str
    scale: str
    masks: tuple[str, ...]
    split: bool  # scores are viewed with batch and heads apart, or heads and groups together
    back: bool  # and as they were before the softmax
    softmax: str
    after: str

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, row: torch.Tensor
    ) -> torch.Tensor:
        b, shared, group, t, s = self.sizes
        heads, merged = shared * group, self.form in ("merged", "swapped")
        if self.form == "grouped":
            q = q.view(b, t, shared, group, 8).permute(0, 2, 3, 1, 4)
            k, v = (x.view(b, s, shared, 1, 8).permute(0, 2, 3, 1, 4) for x in (k, v))
            apart = (b, heads)
        else:
            q = q.view(b, t, heads, 8).transpose(1, 2)
            k, v = (x.view(b, s, shared, 8).transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
            if self.form == "swapped":
                q, k, v = (x.transpose(0, 1) for x in (q, k, v))
            apart = q.shape[:2]
        if merged:
            q, k, v = q.reshape(-1, t, 8), k.reshape(-1, s, 8), v.reshape(-1, s, 8)
        lead = q.shape[:-2]
        first = (MERGED_FIRST if merged else FIRST)[self.first]
        scores = SCALES[self.scale](first(q, k, bias[: math.prod(lead), :t, :s]))
        if self.split:
            scores = scores.reshape(*apart, t, s)
        for mask in self.masks:
            scores = MASKS[mask](scores, row)
        if self.split and self.back:
            scores = scores.view(*lead, t, s)
        out = SOFTMAXES[self.softmax](scores).view(*lead, t, s) @ v
        return AFTER[self.after](out.reshape(*apart, t, 8))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    form = draw(st.sampled_from(["plain", "merged", "swapped", "grouped"]))
    queries = draw(st.integers(3, 4))
    sizes = (*(draw(st.integers(1, most)) for most in (3, 2, 3)), queries, draw(st.sampled_from([queries, 5])))
    first = draw(st.sampled_from(sorted(MERGED_FIRST if form in ("merged", "swapped") else FIRST)))
    return Program(
        form, sizes, first,
        scale=draw(st.sampled_from(["none"] if first.startswith("baddbmm") else sorted(SCALES))),
        masks=tuple(draw(st.lists(st.sampled_from(sorted(MASKS)), max_size=2))),
        split=form != "plain" and draw(st.booleans()),
        back=draw(st.booleans()),
        softmax=draw(st.sampled_from(sorted(SOFTMAXES))),
        after=draw(st.sampled_from(sorted(AFTER))),
    )  # fmt: skip


def inputs(program: Program) -> list[torch.Tensor]:
    b, shared, group, t, s = program.sizes
    draw = torch.Generator().manual_seed(0)
    shapes = ((b, t, shared * group * 8), (b, s, shared * 8), (b, s, shared * 8), (18, 4, 5), (18,))
    return [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(programs())
def test_drawn_attention_computes_the_same_once_rewritten(program: Program) -> None:
    torch._dynamo.reset()
    backend = RewriteBackend(["sdpa"], "eager")
    theirs, ours = inputs(program), inputs(program)
    want, got = program(*theirs), torch.compile(program, backend=backend, dynamic=False)(*ours)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    weights = torch.randn_like(want)
    for loss in (want * weights).sum(), (got * weights).sum():
        loss.backward()
    for mine, right in zip(ours, theirs, strict=True):
        assert (mine.grad is None) == (right.grad is None)
        if right.grad is not None:
            torch.testing.assert_close(mine.grad, right.grad, rtol=1e-8, atol=1e-8)
    assert backend.matches["sdpa"] == 1 or backend.skipped
