"""What people hang on a model: tied weights, hooks, parametrizations, adapters, weights that are not plain tensors.

Each either survives the rewrites, with its values and gradients, or is left alone with a reason.
"""

import copy
import gc
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import rung
from rung.rewrites import PASSES, RewriteBackend, chunked, cross_entropy


@pytest.fixture(autouse=True)
def _fresh_dynamo(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(chunked, "LEAST_ROWS", 4)
    monkeypatch.setattr(cross_entropy, "LEAST_BYTES", 0)


WIDTH, HEADS = 16, 2
TOKENS = torch.randint(20, (2, 5))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mask = torch.full((x.shape[1],) * 2, float("-inf")).triu(1)
        probabilities = (q @ k.mT / (WIDTH / HEADS) ** 0.5 + mask).softmax(-1)
        return x + self.o((probabilities @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.attention = Attention()
        self.gate, self.up = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.down = nn.Linear(24, WIDTH)
        self.head = nn.Linear(WIDTH, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.attention(self.embed(tokens))
        x = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def same(model, other=None):
    """Trains and infers, rewritten and not: one's loss and gradients are the other's. Returns what was rewritten."""
    other = other or copy.deepcopy(model)
    keys, backend = list(model.state_dict()), RewriteBackend(PASSES, "eager")
    run = torch.compile(other, backend=backend, dynamic=False)
    want, got = model(TOKENS), run(TOKENS)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    want.backward()
    got.backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(run(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-6)
        for parameter in (*model.parameters(), *other.parameters()):
            parameter.mul_(1.1)
        torch.testing.assert_close(run(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-6)
    assert list(other.state_dict()) == keys
    return backend


ALL = {
    "sdpa": 1,
    "short-attention": 1,
    "flex-for-sdpa": 1,
    "narrow-logits": 1,
    "fused-cross-entropy": 1,
    "fused-qkv": 1,
    "fused-gate-up": 1,
}


def test_tied_weights_stay_tied_and_get_the_sum_of_their_gradients():
    model = Model()
    other = copy.deepcopy(model)
    assert same(model, other).rewritten == ALL
    assert other.head.weight is other.embed.weight


def test_one_weight_used_as_two_siblings_is_read_twice():
    model = Model()
    model.attention.k.weight = model.attention.q.weight
    # It cannot lie in two places, so in inference what joins them is kept.
    assert same(model).rewritten == {**ALL, "folded-weights": 1}


def test_hooks_run_and_what_they_change_counts():
    model, seen = Model(), []
    model.attention.k.register_forward_hook(lambda module, args, result: result * 2)
    model.attention.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model.up.register_full_backward_hook(lambda module, given, got: seen.append(got[0].shape) and None)
    assert same(model).rewritten["fused-qkv"] == 1
    assert seen


def test_a_parametrized_weight_keeps_its_own_product():
    model = Model()
    nn.utils.parametrizations.weight_norm(model.attention.q)
    backend = same(model)
    # k and v are still siblings; in inference the weight is normalized once.
    assert backend.rewritten == {**ALL, "folded-weights": 1}
    assert backend.before["gemm"] - backend.after["gemm"] == 2 + 1 + 1 + 1  # attention, k and v, gate and up, the loss


def test_adapters_of_peft_train_and_the_weights_under_them_stay_frozen():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = Model()
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False, lora_dropout=0.0)
    )
    backend = same(adapted)
    # q, k and v under the adapters are frozen and joined; so are both adapters' first halves, which are trained.
    assert backend.rewritten["fused-qkv"] == 2
    assert adapted.base_model.model.attention.k.weight.grad is None


def test_an_adapter_merged_into_joined_weights_is_seen():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    adapted = peft.get_peft_model(Model(), peft.LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False))
    adapted.eval()
    run = torch.compile(adapted, backend=RewriteBackend(PASSES, "eager"), dynamic=False)
    with torch.no_grad():
        want = run(TOKENS)
        adapted.merge_adapter()
        torch.testing.assert_close(run(TOKENS), want, rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_plain_tensors_are_left_alone_with_a_reason():
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(
                nn.Parameter(two_tensor(torch.randn(4, WIDTH), torch.randn(4, WIDTH))) for _ in range(3)
            )

        def forward(self, x):
            return sum(F.linear(x, weight).sum(-1) for weight in self.weights)

    backend, model, x = RewriteBackend(PASSES, "eager"), Wrapped(), torch.randn(2, WIDTH)
    with torch.no_grad():
        got, want = torch.compile(model, backend=backend, dynamic=False)(x), model(x)
    torch.testing.assert_close(got.a, want.a)
    assert backend.rewritten == {}
    assert "its weight is a TwoTensor, not a plain tensor" in backend.skipped[0]


def for_adapters(rungs):
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)).eval()
    return model, torch.randn(8, 32), rung.apply(model, rungs)


def with_an_adapter(peft, model):
    config = peft.LoraConfig(r=4, target_modules=["0", "2"], init_lora_weights=False)
    return peft.get_peft_model(model, config).eval()


@pytest.mark.parametrize("rungs", [["int8-weights"], ["bf16", "bf16-weights"]], ids=" ".join)
def test_weights_that_are_copied_follow_an_adapter_that_is_merged(rungs):
    """It writes to them through `.data`, which raises no counter."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model, x, applied = for_adapters(rungs)
    with torch.no_grad():
        applied(x)
        adapted = with_an_adapter(peft, model)
        right = model(x)
        for done in ("merge_adapter", "unmerge_adapter", "merge_adapter", "unmerge_adapter", "merge_and_unload"):
            getattr(adapted, done)()
            torch.testing.assert_close(model(x), right, rtol=1e-4, atol=1e-4)
            assert float((applied(x) - right).norm() / right.norm()) < 0.05, done


@pytest.mark.parametrize("rungs", [["int8-weights"], ["bf16", "bf16-weights"]], ids=" ".join)
def test_an_adapter_that_is_merged_in_the_place_of_another_of_its_name_is_seen(rungs):
    """As a server does that exchanges adapters: no call comes between."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model, x, applied = for_adapters(rungs)
    with torch.no_grad():
        adapted = with_an_adapter(peft, model)
        adapted.merge_adapter()
        applied(x)
        adapted.unmerge_adapter()
        other = {name: 3 * tensor for name, tensor in peft.get_peft_model_state_dict(adapted).items()}
        peft.set_peft_model_state_dict(adapted, other)
        adapted.merge_adapter()
        right = model(x)
        assert float((applied(x) - right).norm() / right.norm()) < 0.05


class Adapted(nn.Module):
    """As a layer of peft: it says which adapters it has merged, through `.data`, into the weight under it."""

    def __init__(self):
        super().__init__()
        self.base_layer, self.adapters, self.merged_adapters = nn.Linear(32, 32), nn.ParameterDict(), []
        self.requires_grad_(False)

    def forward(self, x):
        return self.base_layer(x)

    def put(self, sign):
        self.base_layer.weight.data += sign * self.adapters["default"].data
        self.merged_adapters = ["default"] if sign > 0 else []


def test_an_adapter_that_is_made_anew_under_its_name_is_seen():
    model, x = Adapted().eval(), torch.randn(8, 32)
    applied = rung.apply(model, ["bf16", "bf16-weights"])
    with torch.no_grad():
        for k in range(4):
            if k:
                model.put(-1)
                del model.adapters["default"]
            model.adapters["default"] = nn.Parameter(torch.full((32, 32), float(k)), requires_grad=False)
            model.put(1)
            right = model(x)
            assert float((applied(x) - right).norm() / right.norm()) < 0.05


@pytest.mark.parametrize("passes", [[], ["hoisted-constants"], ["sdpa", "narrow-logits"]])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_parameters_of_torchs_own_attention_can_be_swapped_too(passes, checkpointed):
    """It is written out before any pass runs."""
    model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).requires_grad_(checkpointed)

    def run(x):
        return checkpoint(attend, x, use_reentrant=False) if checkpointed else attend(x)

    def attend(x):
        return model(x, x, x, need_weights=False)[0]

    x = torch.randn(2, 5, WIDTH)
    torch.compile(run, backend=RewriteBackend(passes, "eager"), dynamic=False)(x)
    for _ in range(3):
        gc.collect()
    for parameter in list(model.parameters()):
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().clone(), requires_grad=checkpointed))


@pytest.mark.parametrize("passes", [[], ["sdpa"]])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_parameters_can_be_swapped_after_a_graph_was_rewritten(passes, checkpointed):
    """As `module.to()` does with `torch.__future__.set_swap_module_params_on_conversion`."""
    model = Attention().requires_grad_(checkpointed)

    def run(x):
        return checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)

    backend = RewriteBackend(passes, "eager")
    compiled = torch.compile(run, backend=backend, dynamic=False)
    x = torch.randn(2, 5, WIDTH)
    compiled(x)
    assert backend.rewritten == dict.fromkeys(passes, 1)
    for _ in range(3):  # of cycles, one after the other
        gc.collect()
    other = nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=checkpointed)
    torch.utils.swap_tensors(model.q.weight, other)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)


@pytest.mark.parametrize("how", [{"use_reentrant": True}, {"use_reentrant": False}, {"context_fn": "recompute"}])
def test_dropout_in_a_checkpointed_region_has_one_mask(how):
    """What is recomputed for the backward reads the numbers that the forward drew."""
    if how.get("context_fn"):
        contexts = partial(
            create_selective_checkpoint_contexts, lambda *args, **kwargs: CheckpointPolicy.MUST_RECOMPUTE
        )
        how = {"use_reentrant": False, "context_fn": contexts}
    x, model = (
        torch.randn(2, 5, WIDTH, requires_grad=True),
        nn.Sequential(Attention(), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)),
    )

    def gradient(run):
        torch.manual_seed(3)
        return torch.autograd.grad(run(x).square().sum(), x)[0]

    backend = RewriteBackend(["fused-qkv", "sdpa"], "eager")
    compiled = torch.compile(lambda x: checkpoint(model, x, **how), backend=backend, dynamic=False)
    torch.testing.assert_close(gradient(compiled), gradient(model))
    assert backend.rewritten["sdpa"] == 1


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: F.gelu(self.a(y)), self.b, (x,))


@pytest.mark.parametrize("passes", [(), PASSES])
def test_both_branches_of_a_cond_are_there(passes):
    """Inputs of its branches share with Dynamo's own graph what these say of themselves."""
    model = Branching()
    run = torch.compile(model, backend=RewriteBackend(passes, "eager"), dynamic=False)
    for sign in (1, -1):
        x = sign * torch.ones(3, WIDTH)
        torch.testing.assert_close(run(x), model(x))
