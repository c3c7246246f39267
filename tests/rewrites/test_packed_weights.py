"""In inference sibling weights are read as one where they lie: no copy a call, no second copy held, never stale."""

import copy
import gc
import itertools
import sys
import threading
import time

import pytest
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager

from rung.rewrites import RewriteBackend
from rung.rewrites.packed_weights import PackedWeights


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Recorder(RewriteBackend):
    """Keeps how many inputs were added and how many weights are concatenated in the graph; traced: by AOTAutograd."""

    added = concatenated = 0
    traced = False

    def compiled(self, gm, inputs):
        self.added = sum(node.name.startswith("joined") for node in gm.graph.nodes if node.op == "placeholder")
        self.concatenated = sum(node.target is torch.cat for node in gm.graph.nodes)
        return aot_eager(gm, inputs) if self.traced else super().compiled(gm, inputs)


class Model(nn.Module):
    def __init__(self, widths=(8, 4, 4), biases=(True, True, True)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, w, bias=b) for w, b in zip(widths, biases, strict=True))

    def forward(self, x):
        return sum(layer(x).sum(-1) * (spot + 1) for spot, layer in enumerate(self.layers))


X = torch.randn(3, 16)


def compiled(model, traced=False):
    backend = Recorder(["fused-qkv"], "eager")
    backend.traced = traced
    return torch.compile(model, backend=backend, dynamic=False), backend


def together(model):
    weights = [layer.weight for layer in model.layers]
    return all(a.data_ptr() + a.nbytes == b.data_ptr() for a, b in itertools.pairwise(weights))


@pytest.mark.parametrize("traced", [False, True])
def test_inference_reads_the_weights_where_they_lie(traced):
    model = Model()
    keys, objects = list(model.state_dict()), [id(p) for p in model.parameters()]
    values = copy.deepcopy(model.state_dict())
    run, backend = compiled(model, traced)
    with torch.no_grad():
        torch.testing.assert_close(run(X), model(X))
    assert (backend.matches["fused-qkv"], backend.added, backend.concatenated) == (1, 2, 0)
    assert together(model)
    weights = [layer.weight for layer in model.layers]
    storages = [(w.untyped_storage().data_ptr(), w.untyped_storage().nbytes()) for w in weights]
    assert storages == [(w.data_ptr(), w.nbytes) for w in weights]  # whatever saves the model takes none for shared
    assert list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == objects
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


def test_changed_and_moved_weights_are_seen():
    model = Model()
    run, _ = compiled(model)
    with torch.no_grad():
        run(X)
        model.layers[1].weight.mul_(2)
        torch.testing.assert_close(run(X), model(X))
        model.double().float()  # every weight in memory of its own again
        assert not together(model)
        torch.testing.assert_close(run(X), model(X))
        assert together(model)
        model.load_state_dict({k: 3 * v for k, v in model.state_dict().items()}, assign=True)
        torch.testing.assert_close(run(X), model(X))


def test_undone_every_weight_has_its_own_memory_and_its_values():
    model = Model()
    run, backend = compiled(model)
    with torch.no_grad():
        want = run(X)
    values = copy.deepcopy(model.state_dict())
    backend.undo()
    assert not together(model)
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(run(X), want)


def test_after_inference_mode_the_model_still_trains():
    model = Model()
    run, _ = compiled(model)
    with torch.inference_mode():
        run(X)
    assert together(model)
    model(X).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with torch.inference_mode():
        torch.testing.assert_close(run(X), model(X))


@pytest.mark.parametrize("calls", [torch.inference_mode, torch.no_grad])
def test_a_model_that_was_made_in_inference_mode_has_its_weights_joined(calls):
    with torch.inference_mode():
        model, other = Model(), Model()
    run, backend = compiled(model)
    with calls():
        torch.testing.assert_close(run(X), model(X))
        assert together(model)
    with torch.inference_mode():
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(run(X), other(X))
    backend.undo()
    assert not together(model)
    with calls():
        torch.testing.assert_close(run(X), other(X))


def test_threads_that_run_two_layers_of_the_same_code_each_read_their_own_weights():
    joined, wrong = PackedWeights([0, 1]), []
    layers = [[torch.randn(4, 4), torch.randn(4, 4)] for _ in range(2)]

    def call(weights):
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            if joined(weights).data_ptr() != weights[0].data_ptr():
                wrong.append(weights)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call, args=(layers[k % 2],)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_a_saved_and_a_copied_model_are_whole(tmp_path):
    model = Model()
    run, _ = compiled(model)
    with torch.no_grad():
        run(X)
        torch.save(model.state_dict(), tmp_path / "weights.pt")
        other = Model()
        other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
        torch.testing.assert_close(other(X), model(X))
        torch.testing.assert_close(copy.deepcopy(model)(X), model(X))


def test_weights_that_need_a_gradient_are_concatenated_in_the_graph():
    model = Model()
    run, backend = compiled(model)
    run(X).sum().backward()
    assert (backend.added, backend.concatenated) == (0, 2)
    assert not together(model)
    assert all(layer.weight.grad is not None for layer in model.layers)


def test_frozen_weights_are_joined_in_training_too():
    model = Model().requires_grad_(False)
    run, backend = compiled(model)
    x = X.clone().requires_grad_()
    run(x).sum().backward()
    want = X.clone().requires_grad_()
    model(want).sum().backward()
    torch.testing.assert_close(x.grad, want.grad)
    assert backend.added == 2


def test_another_graph_reads_the_weights_where_the_first_one_laid_them():
    model = Model((8, 1, 4))  # DLPack forgets the strides of one row
    strides = [p.stride() for p in model.parameters()]
    (run, _), (other, backend) = compiled(model), compiled(model)
    with torch.no_grad():
        run(X)
        places = [p.data_ptr() for p in model.parameters()]
        torch.testing.assert_close(other(X), model(X))
        run(X)
    assert [p.data_ptr() for p in model.parameters()] == places
    assert [p.stride() for p in model.parameters()] == strides
    assert backend.copied == 0


def test_weights_that_one_graph_reads_as_one_are_not_moved_for_another():
    """A recorded graph of the first would go on reading the memory that they had."""
    q, k, v = (torch.randn(4, 4) for _ in range(3))
    some, all_three = PackedWeights([0, 1]), PackedWeights([0, 1, 2])
    first = some([k, v])
    places = [t.data_ptr() for t in (k, v)]
    assert torch.equal(all_three([q, k, v]), torch.cat([q, k, v]))
    assert all_three.copied
    assert [t.data_ptr() for t in (k, v)] == places
    k.mul_(2)
    assert torch.equal(first, torch.cat([k, v]))


def test_the_memory_of_weights_that_are_gone_is_let_go():
    joined = PackedWeights([0, 1])
    layers = [[torch.randn(4, 4), torch.randn(4, 4)] for _ in range(3)]
    views = [joined(weights) for weights in layers]
    assert len(joined._packed) == 3
    del layers[1:], views
    gc.collect()
    assert len(joined._packed) == 1


def test_weights_outlive_the_graph_that_laid_them_together():
    model = Model()
    run, backend = compiled(model)
    values = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        run(X)
    del run, backend
    torch._dynamo.reset()
    gc.collect()
    others = [torch.randn(16, 16) for _ in range(64)]  # in whatever memory was given back
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert others


def test_missing_biases_are_filled_in_the_graph():
    run, backend = compiled(model := Model(biases=(True, False, True)))
    with torch.no_grad():
        torch.testing.assert_close(run(X), model(X))
    assert (backend.added, backend.concatenated) == (1, 1)


def shared_storage(model):
    flat = torch.randn(16 * 16)
    for layer, part in zip(model.layers, flat.split([128, 64, 64]), strict=True):
        layer.weight.data = part.view(-1, 16)
    model.layers[0].weight.data, model.layers[2].weight.data = flat[:128].view(8, 16), flat[-64:].view(4, 16)
    model.flat = flat  # as a sharding library holds it


def swapped(model):
    model.layers[2].weight = model.layers[1].weight


@pytest.mark.parametrize(("change", "joined"), [(shared_storage, True), (swapped, False)])
def test_weights_that_may_not_move_are_left_where_they_are(change, joined):
    model = Model(biases=(False,) * 3)
    change(model)
    places = [layer.weight.data_ptr() for layer in model.layers]
    run, backend = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(X), model(X))
    assert [layer.weight.data_ptr() for layer in model.layers] == places
    assert bool(backend.added) is joined


def kept(model):
    return model.state_dict()


def of_one_data(model):
    return setattr(model.layers[1].weight, "data", model.layers[2].weight.data)


def shared_by_processes(model):
    model.share_memory()


@pytest.mark.parametrize("hold", [kept, of_one_data, shared_by_processes], ids=lambda hold: hold.__name__)
def test_memory_that_somebody_else_holds_goes_on_being_theirs(hold):
    model = Model(biases=(False,) * 3)
    held = hold(model)
    places = [layer.weight.data_ptr() for layer in model.layers]
    run, backend = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(X), model(X))
        assert [layer.weight.data_ptr() for layer in model.layers] == places
        assert backend.copied == 1
        (held or model.state_dict())["layers.2.weight"].mul_(2)
        torch.testing.assert_close(run(X), model(X))
        if held:
            held.clear()
            run(X)
            assert together(model)
            assert backend.copied == 0


def test_where_torch_cannot_tell_who_holds_memory_it_is_left_to_them(monkeypatch):
    """Builds for CPUs of torch 2.6 and 2.7 do not count."""
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    model = Model()
    run, _ = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(X), model(X))
    assert not together(model)


def test_layers_that_share_compiled_code_each_find_their_own_weights():
    blocks = [Model(), Model()]
    backend = Recorder(["fused-qkv"], "eager")
    for block in blocks:
        block.compile(backend=backend, dynamic=False)
    with torch.no_grad():
        for _ in range(2):
            for block in blocks:
                torch.testing.assert_close(block(X), block.forward(X))
    assert all(together(block) for block in blocks)


def test_matrix_products_with_transposed_weights_are_siblings_too():
    weights = nn.ParameterList(nn.Parameter(torch.randn(n, 16)) for n in (8, 4))

    def fn(x):
        return (x @ weights[0].T).sum(-1) - torch.matmul(x, weights[1].t()).sum(-1)

    run, backend = compiled(fn)
    torch.testing.assert_close(run(X), fn(X))
    assert backend.matches == {"fused-qkv": 1}
