"""What a recorded graph takes as given of a model, and which calls are replayed when it changes."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import rung
from rung.engine import cuda_graph, dynamo, process_wide
from rung.engine.compiled import Renewed
from rung.engine.cuda_graph import MOST_SHAPES, PROOFS, WARM_CALLS, GraphedStep
from rung.engine.guards import MOST, ModelGuards


class Gated(nn.Module):
    """A model with all that may change between two calls. A scripted part is read anew each time, and so is all beside it."""

    def __init__(self, scripted: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.register_buffer("shift", torch.zeros(4))
        self.gate, self.active, self.table, self.nested = True, ["a"], {"a": 1}, [[1]]
        self.scale, self.extra, self.act = 1.0, torch.ones(1), torch.relu
        self.scripted = torch.jit.script(nn.Dropout(0.5)) if scripted else nn.Dropout(0.5)
        self.register_buffer("edges", torch.eye(4).to_sparse(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * (2 if self.gate else 1) + self.shift


CHANGES: dict[str, Callable[[Gated], Any]] = {
    "train or eval": lambda m: m.train(not m.training),
    "one module alone": lambda m: m.layers[1].train(not m.training),
    "an attribute": lambda m: setattr(m, "gate", False),
    "a new attribute": lambda m: setattr(m, "disabled", True),
    "an attribute that is gone": lambda m: delattr(m, "table"),
    "a list in place": lambda m: m.active.append("b"),
    "a table in place": lambda m: m.table.update(a=2),
    "another module": lambda m: m.layers.__setitem__(1, nn.ReLU()),
    "one module more": lambda m: m.layers.append(nn.ReLU()),
    "what gets a gradient": lambda m: m.layers[0].weight.requires_grad_(False),
    "a parameter's hook": lambda m: m.layers[0].weight.register_hook(lambda gradient: gradient * 2),
    "a parameter's hook behind its gradient": lambda m: m.layers[0].weight.register_post_accumulate_grad_hook(print),
    "a number that becomes an array": lambda m: setattr(m, "scale", np.ones(3)),
    "a tensor that is none any more": lambda m: setattr(m, "extra", None),
    "a function": lambda m: setattr(m, "act", torch.sigmoid),
    "a list in a list": lambda m: m.nested[0].append(2),
    "another class": lambda m: setattr(m, "__class__", type("Other", (Gated,), {})),
    "a scripted part": lambda m: m.scripted.train(not m.training),
    "one buffer more": lambda m: m.layers[0].register_buffer("more", torch.ones(4)),
    "the order of modules": lambda m: m._modules.update(layers=m._modules.pop("layers")),
    "a table of hooks": lambda m: setattr(m.layers[0], "_forward_hooks", {0: lambda *a: None}),
    "a hook": lambda m: m.layers[0].register_forward_hook(lambda *a: None),
    "a hook before backward": lambda m: m.register_full_backward_pre_hook(lambda *a: None),
}
MOVES: dict[str, Callable[[Gated], Any]] = {
    "weights assigned": lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
    "another dtype": lambda m: m.to(torch.float64),
    "a weight turned where it lies": lambda m: setattr(m.layers[0].weight, "data", m.layers[0].weight.data.t()),
    "a part of a buffer": lambda m: setattr(m.shift, "data", m.shift.data[:1]),
    "the data of a weight": lambda m: setattr(m.layers[0].weight, "data", torch.ones(4, 4)),
    "a buffer": lambda m: setattr(m, "shift", torch.ones(4)),
    "an attribute": lambda m: setattr(m, "extra", torch.full_like(m.extra, 2)),
}


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_another_state_and_the_first_is_known_again(change: str, scripted: bool) -> None:
    model = Gated(scripted)
    seen = ModelGuards(model)
    assert [seen.check(), seen.check()] == [(0, False)] * 2
    CHANGES[change](model)
    moved = change in ("one buffer more", "a tensor that is none any more")
    assert [seen.check(), seen.check()] == [(0 if moved else 1, moved), (0 if moved else 1, False)]


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize("move", MOVES)
def test_tensors_that_moved_are_told_once(move: str, scripted: bool) -> None:
    model = Gated(scripted)
    seen = ModelGuards(model)
    MOVES[move](model)
    assert [seen.check(), seen.check()] == [(0, True), (0, False)]


def test_a_tensor_that_the_forward_itself_sets_is_no_change() -> None:
    model = Gated()
    seen = ModelGuards(model)
    model.extra = torch.zeros(3)
    seen.accept()
    assert seen.check() == (0, False)


def test_values_that_change_where_they_lie_are_no_change() -> None:
    model = Gated()
    seen = ModelGuards(model)
    with torch.no_grad():
        model.layers[0].weight.mul_(2)
    model.load_state_dict({k: torch.ones_like(v) for k, v in model.state_dict().items()})
    assert seen.check() == (0, False)


@given(st.lists(st.sampled_from(["train", "eval", "gate", "list"]), max_size=12))
def test_equal_models_are_in_one_state_and_others_are_not(steps: list[str]) -> None:
    model = Gated(scripted=False)
    seen, numbers = ModelGuards(model), {}
    for step in steps:
        if step == "gate":
            model.gate = not model.gate
        elif step == "list":
            model.active[:] = ["b"] if model.active == ["a"] else ["a"]
        else:
            model.train(step == "train")
        number, moved = seen.check()
        assert not moved
        key = model.training, model.gate, tuple(model.active)
        assert numbers.setdefault(key, number) == number
    assert len(set(numbers.values())) == len(numbers)


def test_a_number_that_becomes_an_equal_tensor_is_looked_at_as_a_tensor() -> None:
    model = Gated(scripted=False)
    seen = ModelGuards(model)
    for _ in range(2):
        model.scale = torch.tensor(1.0)
        assert seen.check() == (0, True)


def test_a_list_that_becomes_plain_again_is_read_again() -> None:
    model = Gated(scripted=False)
    seen = ModelGuards(model)
    model.active = [torch.nn]  # nothing that is compared by what it holds
    first = seen.check()[0]
    model.active = ["a"]
    assert seen.check()[0] == 0 != first
    model.active.append("b")
    assert seen.check()[0] not in (0, first)


def test_a_model_that_nobody_changed_is_not_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Gated(scripted=False)
    seen = ModelGuards(model)
    monkeypatch.setattr(seen, "_read", lambda: pytest.fail("it was read anew"))
    assert seen.check() == (0, False)
    torch.zeros(1, requires_grad=True).register_hook(print)  # a hook, and not of this model
    assert seen.check() == (0, False)


def test_a_model_that_is_switched_back_and_forth_is_not_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Gated(scripted=False)
    seen = ModelGuards(model)
    for training in (False, True):
        model.train(training)
        seen.check()
    monkeypatch.setattr(seen, "_read", lambda: pytest.fail("it was read anew"))
    for training in (False, True, False):
        model.train(training)
        assert seen.check() == (int(not training), False)


@pytest.mark.skipif(dynamo.tensor_guards([torch.zeros(1)]) is None, reason="this torch has no check of tensors in C++")
def test_weights_that_are_tied_are_looked_at_by_torchs_own_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds two tensors that are one for changed; then all would be read in Python, before every replay."""
    model = Gated(scripted=False)
    model.layers.append(nn.Linear(4, 4))
    model.layers[2].weight = model.layers[0].weight
    seen = ModelGuards(model)
    with monkeypatch.context() as patched:
        patched.setattr(dynamo, "tensor_guards", lambda tensors: pytest.fail("it was made anew"))
        assert seen.check() == (0, False)
    model.layers[2].weight = nn.Parameter(model.layers[0].weight.detach().clone())
    assert seen.check()[1]


def test_what_only_saving_and_loading_reads_is_no_change() -> None:
    model = Gated(scripted=False)
    seen = ModelGuards(model)
    model.register_state_dict_post_hook(lambda *a: None)
    model.register_buffer("extra_table", torch.zeros(1), persistent=False)
    del model.extra_table
    assert seen.check() == (0, False)


@pytest.mark.parametrize("told", ["dict_versions", "tensor_guards"])
def test_without_what_torch_tells_in_c_all_is_compared(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, told, lambda objects: None)
    model = Gated(scripted=False)
    seen = ModelGuards(model)
    with monkeypatch.context() as patched:
        patched.setattr(seen, "_read", lambda: pytest.fail("it was read anew"))
        assert seen.check() == (0, False)
    for changed in (lambda: model.eval(), lambda: model.layers[0].weight.requires_grad_(False)):
        before = seen.check()
        changed()
        assert seen.check() != before
    model.layers[0].weight.data = model.layers[0].weight.data.t()
    assert seen.check()[1]


@pytest.mark.parametrize("sees", [True, False])
def test_numbers_of_tables_are_taken_where_they_tell_of_attributes(sees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of Python 3.13.0 change with items alone, so `model.eval()` would go unseen."""
    monkeypatch.setattr(dynamo, "_dict_version", lambda table: table.get("training") if sees else 7)
    assert dynamo.dict_versions([{"training": 1}]) == ([1] if sees else None)


def test_inference_mode_is_no_change_and_needs_no_reading_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Gated(scripted=False)
    seen = ModelGuards(model)
    monkeypatch.setattr(seen, "_read", lambda: pytest.fail("it was read anew"))
    for mode in (torch.inference_mode(), torch.no_grad(), contextlib.nullcontext()):
        with mode:
            assert seen.check() == (0, False)


def test_a_hook_that_is_gone_again_is_noticed() -> None:
    model = Gated(scripted=False)
    seen = ModelGuards(model)
    handle = model.layers[0].weight.register_hook(lambda gradient: gradient * 2)
    assert seen.check() == (1, False)
    assert seen.check() == (1, False)
    handle.remove()
    assert seen.check() == (0, False)


def test_a_model_that_is_changed_at_every_call_is_given_up_for_good() -> None:
    model = Gated()
    seen = ModelGuards(model)
    for k in range(3 * MOST):
        model.scale = float(k)
        number, _ = seen.check()
    assert number is None
    assert len(seen._states) == MOST + 1


def test_what_a_run_of_its_own_changes_is_no_change() -> None:
    model = Gated()
    seen = ModelGuards(model)
    for k in range(3 * MOST):
        model.scale, model.shift = float(k), torch.full((4,), float(k))
        seen.accept()
        assert seen.check() == (0, False)
    model.eval()
    assert seen.check() == (1, False)


def test_hooks_of_the_user_are_told_from_those_of_libraries() -> None:
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4)))
    assert ModelGuards(model).hooked == ""
    handle = model[0].register_forward_pre_hook(lambda *a: None)
    seen = ModelGuards(model)
    assert seen.hooked == "0"
    handle.remove()
    seen.check()
    assert seen.hooked == ""
    assert ModelGuards(nn.Sequential(torch.jit.script(nn.ReLU()))).check() == (0, False)


def test_hooks_of_a_library_need_no_reading_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers hangs one on each layer of which it hands out hidden states; reading the model at every call took ten times as long."""
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4)), nn.ReLU())
    seen = ModelGuards(model)
    with monkeypatch.context() as patched:
        patched.setattr(seen, "_read", lambda: pytest.fail("it was read anew"))
        assert [seen.check(), seen.check()] == [(0, False)] * 2
    model[0].register_forward_pre_hook(lambda *a: None)
    assert (seen.check(), seen.hooked) == ((1, False), "0")


def _exchanged(layer: nn.Module) -> None:
    layer._forward_pre_hooks.clear()
    layer.register_forward_pre_hook(lambda *a: None)


def _under_its_number(layer: nn.Module) -> None:
    for number in layer._forward_pre_hooks:
        layer._forward_pre_hooks[number] = lambda *a: None


@pytest.mark.parametrize("replace", [_exchanged, _under_its_number])
def test_a_hook_in_the_place_of_a_librarys_is_noticed(replace: Callable[[nn.Module], None]) -> None:
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4)))
    seen = ModelGuards(model)
    replace(model[0])
    assert len(model[0]._forward_pre_hooks) == 1
    seen.check()
    assert seen.hooked == "0"


AGAIN: dict[str, tuple[Callable[[Gated], Any], Callable[[Gated], Any]]] = {
    "no hooks": (
        lambda m: setattr(m.layers[0], "_forward_hooks", OrderedDict()),
        lambda m: m.layers[0].register_forward_hook(lambda *a: None),
    ),
    "layers": (
        lambda m: setattr(m.layers, "_modules", dict(m.layers._modules)),
        lambda m: m.layers.__setitem__(1, nn.ReLU()),
    ),
    "an empty list": (lambda m: setattr(m, "nothing", []), lambda m: m.nothing.append(1)),
}


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("table", AGAIN)
def test_an_equal_table_in_the_place_of_another_is_watched_from_then_on(table: str, hooked: bool) -> None:
    model = Gated(scripted=False)
    model.nothing = []
    if hooked:
        torch.nn.utils.weight_norm(model.layers[0])
    replaced, changed = AGAIN[table]
    seen = ModelGuards(model)
    replaced(model)
    before, _ = seen.check()
    changed(model)
    after, moved = seen.check()
    assert moved or after != before


class Replays:
    """A graph that gives what was computed when it was recorded."""

    def replay(self) -> None:
        pass


@pytest.fixture
def recorded(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GraphedStep]:
    """Graphed calls without a GPU: what is recorded is the result of its first run."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replays)
    monkeypatch.setattr(cuda_graph, "recording", lambda *arguments: contextlib.nullcontext())
    return lambda model, run=None, **more: GraphedStep(run or model, gpu, model, **more)


def in_the_open() -> Gated:
    """A model of which the address of every tensor is known."""
    model = Gated(scripted=False)
    del model.edges
    return model


@pytest.mark.parametrize("calls", [2, PROOFS + 2], ids=["guards first", "launched ahead"])
@pytest.mark.parametrize("change", [*CHANGES, *MOVES])
def test_a_changed_model_is_not_replayed(change: str, calls: int, recorded: Callable[..., GraphedStep]) -> None:
    model, x = (Gated() if calls == 2 else in_the_open()).eval(), torch.ones(2, 4)
    run = recorded(model)
    for _ in range(WARM_CALLS + calls):
        run(x)
    assert run.shapes == 1
    {**CHANGES, **MOVES}[change](model)
    x = x.to(model.layers[0].weight.dtype)
    with torch.no_grad():
        model.layers[0].bias.fill_(7.0)  # what a replay of this stand-in would not see
        torch.manual_seed(0)
        found = run(x)
        torch.manual_seed(0)
        torch.testing.assert_close(found, model(x))


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in order: "replay" and "guards"."""
    done: list[str] = []
    check = ModelGuards.check
    monkeypatch.setattr(Replays, "replay", lambda self: done.append("replay"))
    monkeypatch.setattr(ModelGuards, "check", lambda self: (done.append("guards"), check(self))[1])
    return done


def test_a_replay_that_writes_nothing_outside_is_launched_before_the_guards_are_read(
    recorded: Callable[..., GraphedStep], order: list[str]
) -> None:
    run, x = recorded(in_the_open()), torch.ones(2, 4)
    for _ in range(WARM_CALLS + PROOFS):
        run(x)
    order.clear()
    run(x)
    assert order == ["replay", "guards"]


def test_inputs_are_copied_before_the_guards_are_read_and_once(
    recorded: Callable[..., GraphedStep], order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = cuda_graph._copy
    monkeypatch.setattr(cuda_graph, "_copy", lambda *given: (order.append("inputs"), copy(*given))[1])
    monkeypatch.setattr(cuda_graph.OutsideMemory, "unchanged", lambda self: False)
    model, x = in_the_open(), torch.ones(2, 4)
    run = recorded(model)
    for _ in range(WARM_CALLS + PROOFS + 1):
        run(x)
    order.clear()
    run(x)
    assert order == ["inputs", "guards", "replay"]
    for training in (False, True):  # another state, with a graph of its own
        model.train(training)
        for _ in range(WARM_CALLS + 2):
            run(x)
    model.eval()
    order.clear()
    run(x)
    assert order == ["inputs", "guards", "inputs", "replay"]


def test_copies_of_weights_are_looked_at_after_a_replay_is_launched_which_goes_for_nothing_if_they_were_old(
    recorded: Callable[..., GraphedStep], order: list[str]
) -> None:
    answers: list[Renewed] = []

    def renewed() -> Renewed:
        order.append("copies")
        return answers.pop(0) if answers else Renewed.NOTHING

    run, x = recorded(in_the_open(), renewed=renewed), torch.ones(2, 4)
    for _ in range(WARM_CALLS + PROOFS):
        run(x)

    def done() -> list[str]:
        order.clear()
        run(x)
        return list(order)

    ahead, after = ["replay", "copies", "guards"], ["copies", "guards", "replay"]
    assert done() == ahead
    answers += [Renewed.COPIES, Renewed.COPIES]
    assert done() == [*ahead, "replay"]
    assert [done(), done()] == [after, after]  # while they change in every call, nothing is launched for nothing
    assert done() == ahead
    answers += [Renewed.STEP]
    assert done() == ahead
    assert run.shapes == 0  # it is run, and recorded anew
    assert [done(), done()] == [["copies", "guards"], after]


@pytest.mark.parametrize("writes", ["at once", "later"])
def test_a_replay_that_writes_outside_waits_for_the_guards(
    writes: str, recorded: Callable[..., GraphedStep], order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False] if writes == "at once" else [True] * (PROOFS - 1) + [False])
    monkeypatch.setattr(cuda_graph.OutsideMemory, "unchanged", lambda self: next(answers))
    run, x = recorded(in_the_open()), torch.ones(2, 4)
    for _ in range(WARM_CALLS + PROOFS + 1):
        run(x)
    order.clear()
    run(x)
    assert order == ["guards", "replay"]


def test_a_replay_of_weights_whose_memory_may_be_gone_is_not_launched(
    recorded: Callable[..., GraphedStep], order: list[str]
) -> None:
    """The memory of a weight whose data were exchanged may not be mapped any more: a kernel that reads it would end the process."""
    model, x = in_the_open(), torch.ones(2, 4)
    run = recorded(model)
    for _ in range(WARM_CALLS + PROOFS + 1):
        run(x)
    order.clear()
    model.layers[0].weight.data = model.layers[0].weight.data.clone()
    run(x)
    assert order == ["guards"]


def test_a_forward_that_counts_and_sets_a_buffer_is_captured(recorded: Callable[..., GraphedStep]) -> None:
    class Counts(Gated):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale += 1
            self.shift = torch.arange(4.0) + 0
            return super().forward(x)

    run, x = recorded(Counts()), torch.ones(2, 4)
    for _ in range(WARM_CALLS + 2):
        run(x)
    assert run.shapes == 1


def test_the_last_call_before_a_recording_goes_the_way_that_the_recording_will(
    recorded: Callable[..., GraphedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the masks of transformers, which are made another way while a stream is captured."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    ways: list[tuple[bool, bool]] = []

    def asks(x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as other:
            ways.append(
                (
                    torch.cuda.is_current_stream_capturing(),
                    other.submit(torch.cuda.is_current_stream_capturing).result(),
                )
            )
        return x

    run, before = recorded(nn.Identity(), asks), torch.cuda.is_current_stream_capturing
    for _ in range(WARM_CALLS):
        run(torch.ones(2))
    assert ways == [(False, False)] * (WARM_CALLS - 1) + [(True, False)]
    assert torch.cuda.is_current_stream_capturing is before


def test_switching_back_and_forth_is_captured_once_each(recorded: Callable[..., GraphedStep]) -> None:
    model, x = Gated(), torch.ones(2, 4)
    run = recorded(model)
    for k in range(2 * (WARM_CALLS + 3)):
        model.requires_grad_(bool(k % 2))
        run(x)
    assert run.shapes == 2


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("as_given", [lambda x: x, lambda x: x[:, :3]], ids=["whole", "a slice"])
def test_a_forward_that_writes_to_its_input_writes_to_it_at_every_call(
    compiled: bool, as_given: Any, recorded: Callable[..., GraphedStep]
) -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1).sum()

    model, x = Counts(), torch.zeros(2, 4)
    if compiled:
        model.compile(backend="eager", dynamic=False)
    run = recorded(model)
    for k in range(WARM_CALLS + 3):
        with torch.no_grad():
            assert float(run(as_given(x))) == as_given(x).numel() * (k + 1)
        assert float(as_given(x)[0, 0]) == k + 1
    assert run.shapes == 0


def test_what_is_done_to_a_result_is_not_done_to_the_next(recorded: Callable[..., GraphedStep]) -> None:
    class Named(Gated):
        def forward(self, x: torch.Tensor) -> Any:
            return {"logits": super().forward(x), "hidden": [x]}

    run, x = recorded(Named()), torch.ones(2, 4)
    for _ in range(WARM_CALLS + 3):
        found = run(x)
        assert (set(found), len(found["hidden"])) == ({"logits", "hidden"}, 1)
        found.pop("logits")
        found["hidden"].append(None)


def test_a_gradient_that_is_added_up_lies_where_it_lay_when_it_was_recorded(
    recorded: Callable[..., GraphedStep],
) -> None:
    """Of what is trained and not stepped. Once it was cleared, its memory may be another tensor's, and a replay writes there."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.0)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        return x

    run, beside = recorded(model, step, optimizer=optimizer), model[0].weight
    for _ in range(WARM_CALLS):
        run(x)
    one = beside.grad / WARM_CALLS
    model.zero_grad()
    run(x)  # this stand-in computes while it records, and not when it replays
    total = beside.grad
    torch.testing.assert_close(total, one)
    model.zero_grad()
    run(x)
    assert beside.grad is total
    assert not total.any()
    beside.grad = one
    run(x)
    assert beside.grad is total
    torch.testing.assert_close(total, one)
    assert run.shapes == 1


@pytest.mark.parametrize("lies", ["in its place", "elsewhere"])
def test_a_buffer_that_is_kept_up_by_another_tensor_in_its_place_is_not_replayed(
    lies: str, recorded: Callable[..., GraphedStep]
) -> None:
    class Averages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if lies == "elsewhere":
                self.mean = 0.5 * self.mean + 0.5 * x.mean()
            else:
                self.mean.lerp_(x.mean(), 0.5)
            return x - self.mean

    model, x = Averages(), torch.ones(2, 4)
    run = recorded(model)
    for k in range(WARM_CALLS + 3):
        run(x)
        if lies == "elsewhere":
            assert float(model.mean) == 1 - 0.5 ** (k + 1)
    assert run.shapes == (0 if lies == "elsewhere" else 1)


class Waits(TorchDispatchMode):
    """Counts how often the host asks for a tensor's number."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_a_learning_rate_in_a_tensor_is_read_without_waiting_for_it(recorded: Callable[..., GraphedStep]) -> None:
    model, x, rate = nn.Linear(4, 4), torch.ones(2, 4), torch.tensor(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    run = recorded(model, lambda x: x, optimizer=optimizer)
    for k in range(WARM_CALLS + 4):
        with Waits() as waits:
            rate.fill_(1 / (1 + k))
            run(x)
        if k > WARM_CALLS:
            assert waits.count == 0
            assert float(run._rates[0]) == float(rate)
    for number in (float(torch.tensor(1 / (1 + WARM_CALLS))), 0.25):  # as it was recorded, and another
        optimizer.param_groups[0]["lr"] = number
        run(x)
        assert float(run._rates[0]) == number
    assert run.shapes == 1


def test_each_state_has_its_graph_and_one_with_a_hook_has_none(recorded: Callable[..., GraphedStep]) -> None:
    model, x = Gated(), torch.ones(2, 4)
    run = recorded(model)
    for training in (True, False, True, False):
        model.train(training)
        for _ in range(WARM_CALLS + 1):
            run(x)
    assert run.shapes == 2
    ran: list[int] = []
    handle = model.register_forward_hook(lambda *a: ran.append(1))
    for _ in range(WARM_CALLS + 3):
        run(x)
    assert (run.shapes, len(ran)) == (2, WARM_CALLS + 3)
    handle.remove()
    run(x)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    run(x)
    assert run.shapes == 0
    for k in range(MOST_SHAPES + 2):
        for _ in range(WARM_CALLS + 1):
            run(torch.ones(k + 1, 4))
    assert run.shapes == MOST_SHAPES


@torch._dynamo.config.patch(skip_nnmodule_hook_guards=True)  # as it is in a fresh process
def test_a_hook_that_comes_late_is_run_by_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_wide.CHANGES, "_holders", 0)  # recipes of other tests were never undone
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    applied = rung.apply(model, ["fused-gate-up"])
    with pytest.warns(UserWarning, match="fused-gate-up rewrote nothing"):
        applied(x)
    handle = model[0].register_forward_hook(lambda module, given, output: output + 1)
    torch.testing.assert_close(applied(x), model(x))
    handle.remove()
    torch.testing.assert_close(applied(x), model(x))
    applied.undo()
    assert torch._dynamo.config.skip_nnmodule_hook_guards
