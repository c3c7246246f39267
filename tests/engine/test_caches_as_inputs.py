"""Objects that a call is given, such as caches: replayed where they lie, on a CPU as in `test_replayed_operations.py`."""

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from replayed_by_torch import Operations
from torch import nn
from torch.utils import _pytree as pytree

from rung.engine import contents, cuda_graph
from rung.engine.cuda_graph import MOST_SHAPES, OFTEN, WARM_CALLS, GraphedStep
from rung.engine.objects import rebuilt
from rung.errors import WorkloadError
from rung.hardware import pick
from rung.verify.audit import audit
from rung.workload import Workload

LENGTH = 64


class Nothing(Operations):
    """A graph that keeps no memory, as one of a GPU keeps none that is not its own."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Cache:
    """Of fixed size, as StaticCache of transformers is: written in place, its length a tensor."""

    def __init__(self) -> None:
        self.layers = [SimpleNamespace(keys=torch.zeros(1, LENGTH, 4), full=False) for _ in range(2)]
        self.length = torch.zeros((), dtype=torch.int64)

    def tensors(self) -> list[torch.Tensor]:
        return [*(layer.keys for layer in self.layers), self.length]


class Growing(Cache):
    """As DynamicCache is."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.keys = layer.keys[:, :0]


class Counting(Cache):
    """With its length as a number of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ran = 0
        self.project = nn.Linear(4, 4)
        self.eval()

    def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
        self.ran += 1
        for layer in cache.layers:
            keys = self.project(x)
            if isinstance(cache, Growing):
                layer.keys = torch.cat([layer.keys, keys], 1)
            else:
                layer.keys.index_copy_(1, cache.length[None], keys)
            x = x + layer.keys.sum(1, keepdim=True)
        cache.length.add_(1)
        if isinstance(cache, Counting):
            cache.seen += 1
        return {"x": x, "cache": cache}


@pytest.fixture
def written() -> list[torch.Tensor]:
    """What calls write to: a graph that is recorded leaves it as it was."""
    return []


@pytest.fixture
def captured(gpu: Any, monkeypatch: pytest.MonkeyPatch, written: list[torch.Tensor]) -> Callable[..., GraphedStep]:
    @contextlib.contextmanager
    def recording(graph: Operations, *_: Any) -> Iterator[None]:
        before = [(t, t.detach().clone()) for t in written]
        with graph:
            yield
        for t, value in before:
            t.data.copy_(value)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Operations)
    monkeypatch.setattr(cuda_graph, "recording", recording)
    return lambda model, run=None: GraphedStep(run or model, gpu, model)


def token(k: int) -> torch.Tensor:
    return torch.randn(1, 1, 4, generator=torch.Generator().manual_seed(k))


def decoded(run: Callable[..., Any], cache: Any, steps: range) -> list[torch.Tensor]:
    with torch.no_grad():
        return [run(token(k), cache=cache)["x"].clone() for k in steps]


def assert_same(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_tokens_are_decoded_on_the_callers_own_cache(
    mode: Any, captured: Callable[..., GraphedStep], written: list[torch.Tensor]
) -> None:
    model = Decoder()
    run, steps = captured(model), range(WARM_CALLS + 8)
    with mode():
        mine, theirs = Cache(), Cache()
    written += mine.tensors()
    with mode():
        found = [run(token(k), cache=mine)["x"].clone() for k in steps]
        ran = model.ran
        right = [model(token(k), theirs)["x"] for k in steps]
    assert (run.shapes, ran) == (1, WARM_CALLS + 1)
    assert_same(found, right)
    assert_same(mine.tensors(), theirs.tensors())
    with mode():
        assert run(token(0), cache=mine)["cache"] is mine


def test_every_cache_has_a_graph_of_its_own_and_is_given_back(
    captured: Callable[..., GraphedStep], written: list[torch.Tensor]
) -> None:
    model = Decoder()
    run, caches, right = captured(Decoder()), [Cache(), Cache()], [Cache(), Cache()]
    written += [t for cache in caches for t in cache.tensors()]
    for k in range(WARM_CALLS + 5):
        for mine, theirs in zip(caches, right, strict=True):
            assert_same(decoded(run, mine, range(k, k + 1)), decoded(model, theirs, range(k, k + 1)))
            assert_same(mine.tensors(), theirs.tensors())
            with torch.no_grad():
                assert run(token(k), cache=mine)["cache"] is mine
                model(token(k), theirs)
    assert run.shapes == 2


def longer(cache: Any) -> None:
    cache.layers[0].keys = torch.cat([cache.layers[0].keys, torch.zeros(1, 1, 4)], 1)


def one_layer_less(cache: Any) -> None:
    cache.layers.pop()


def flagged(cache: Any) -> None:
    cache.layers[1].full = True


def another_tensor(cache: Any) -> None:
    cache.layers[1].keys = cache.layers[1].keys.clone()


def another_memory(cache: Any) -> None:
    cache.layers[1].keys.data = cache.layers[1].keys.data.clone()


def further_attribute(cache: Any) -> None:
    cache.window = 4


@pytest.mark.parametrize("change", [longer, one_layer_less, flagged, another_tensor, another_memory, further_attribute])
def test_a_cache_that_was_changed_between_calls_is_not_replayed_as_it_was(
    change: Callable[[Any], None], captured: Callable[..., GraphedStep], written: list[torch.Tensor]
) -> None:
    model = Decoder()
    run, mine, theirs = captured(model), Cache(), Cache()
    written += mine.tensors()
    for k in range(2):
        steps = range(k * 8, k * 8 + WARM_CALLS + 4)
        assert_same(decoded(run, mine, steps), decoded(model, theirs, steps))
        assert_same(mine.tensors(), theirs.tensors())
        ran = model.ran
        if not k:
            change(mine)
            change(theirs)
            written[:] = mine.tensors()
            decoded(run, mine, range(1))
            decoded(model, theirs, range(1))
            assert model.ran == ran + 2
    assert run.shapes == 2


def test_a_number_that_counts_is_told_once_and_never_replayed(captured: Callable[..., GraphedStep]) -> None:
    for kind, what in ((Counting, r"cache\.seen"), (Growing, r"cache\.layers\[0\]\.keys")):
        model = Decoder()
        run, mine, theirs = captured(model), kind(), kind()
        decoded(run, mine, range(OFTEN - 1))
        with pytest.warns(
            UserWarning, match=f"{OFTEN} calls in a row ran uncaptured, because {what} is changed by the call"
        ):
            decoded(run, mine, range(OFTEN - 1, OFTEN))
        run._contents = SimpleNamespace(read=None)  # type: ignore[assignment]  # nothing is read any more
        decoded(run, mine, range(OFTEN, 3 * OFTEN))
        decoded(model, theirs, range(3 * OFTEN))
        assert run.shapes == 0
        assert_same(mine.tensors(), theirs.tensors())


def test_a_cache_that_grows_beside_a_mask_is_told_and_left_alone(captured: Callable[..., GraphedStep]) -> None:
    model = Decoder()
    run, cache = captured(model, lambda x, mask, cache: model(x, cache)), Growing()
    with torch.no_grad():
        for k in range(OFTEN - 1):
            run(token(k), torch.ones(1, k + 1), cache)
        with pytest.warns(UserWarning, match=r"because input 2\.layers\[0\]\.keys is changed"):
            run(token(0), torch.ones(1, OFTEN), cache)
        run._contents = SimpleNamespace(read=None)  # type: ignore[assignment]  # nothing is read any more
        run(token(0), torch.ones(1, OFTEN + 1), cache)


def test_a_cache_that_cannot_be_read_is_told_and_left_alone(captured: Callable[..., GraphedStep]) -> None:
    run, cache = captured(Decoder()), Cache()
    cache.generator = torch.Generator()  # type: ignore[attr-defined]
    decoded(run, cache, range(OFTEN - 1))
    with pytest.warns(UserWarning, match=r"cache\.generator is a Generator"):
        decoded(run, cache, range(1))
    run._contents = SimpleNamespace(read=None)  # type: ignore[assignment]
    decoded(run, cache, range(2))


def test_objects_that_are_made_for_each_call_are_told_once_and_not_recorded(
    captured: Callable[..., GraphedStep],
) -> None:
    run, kept = captured(Decoder()), [Cache() for _ in range(OFTEN)]
    for cache in kept[1:]:
        decoded(run, cache, range(1))
    with pytest.warns(UserWarning, match="what an object among the inputs holds is another at every call"):
        decoded(run, kept[0], range(1))
    kept.clear()
    for _ in range(OFTEN):  # which may lie where the last one lay
        decoded(run, Cache(), range(1))
    assert run.shapes == 0


def test_an_uncaptured_call_frees_what_it_replaces(captured: Callable[..., GraphedStep]) -> None:
    freed: list[bool] = []

    def forward(x: torch.Tensor, cache: Any) -> Any:
        old = weakref.ref(cache.layers[0].keys)
        cache.layers[0].keys = torch.cat([cache.layers[0].keys, x], 1)
        freed.append(old() is None)
        return {"x": x}

    run, cache = captured(nn.Identity(), forward), Growing()
    decoded(run, cache, range(3))
    cache.layers[0].more = torch.Generator()  # into which Python does not look
    decoded(run, cache, range(2))
    assert freed == [True] * 5


def test_objects_that_stay_the_same_are_read_once(
    captured: Callable[..., GraphedStep], written: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, cache, reads = captured(Decoder()), Cache(), []
    written += cache.tensors()
    read = contents.content
    monkeypatch.setattr(contents, "content", lambda *a: (reads.append(1), read(*a))[1])
    with torch.no_grad():
        for k in range(WARM_CALLS + 2):
            run(torch.ones(1, 1, 8)[..., ::2] + k, cache=cache)
            run(torch.ones(1, 1, 8)[..., ::2], cache=cache)
    assert len(reads) == 1


def test_a_call_that_found_no_memory_and_changed_its_cache_is_not_made_again(
    captured: Callable[..., GraphedStep], written: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(x: torch.Tensor, cache: Any = None) -> Any:
        if cache is not None and len(calls) == WARM_CALLS:
            cache.full = True
            raise torch.OutOfMemoryError("no memory")
        calls.append(1)
        return {"x": x}

    calls: list[int] = []
    run, cache = captured(nn.Identity(), forward), Cache()
    for _ in range(WARM_CALLS + 1):
        run(token(0))
    calls.clear()
    decoded(run, cache, range(WARM_CALLS))
    with pytest.raises(WorkloadError, match="no memory"):
        decoded(run, cache, range(1))


def test_what_is_changed_by_the_recording_alone_is_not_replayed_again(
    captured: Callable[..., GraphedStep], written: list[torch.Tensor]
) -> None:
    model, calls = Decoder(), []

    def turns(x: torch.Tensor, cache: Any) -> Any:
        calls.append(1)
        if len(calls) == WARM_CALLS + 1:
            cache.layers[0].full = True
        return model(x if not cache.layers[0].full or len(calls) == WARM_CALLS + 1 else 2 * x, cache)

    run, mine, theirs = captured(model, turns), Cache(), Cache()
    written += mine.tensors()
    found = decoded(run, mine, range(WARM_CALLS + 1))
    assert run.shapes == 0
    assert_same(found, decoded(model, theirs, range(WARM_CALLS + 1)))
    assert_same(decoded(run, mine, range(9, 10)), [model(2 * token(9), theirs)["x"]])


def test_a_graph_keeps_no_cache_and_those_of_caches_that_are_gone_make_room(
    captured: Callable[..., GraphedStep], written: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Nothing)
    run, kept = captured(Decoder()), []
    for _ in range(MOST_SHAPES + 1):
        kept.append(Cache())
        decoded(run, kept[-1], range(WARM_CALLS + 1))
    assert run.shapes == MOST_SHAPES
    held = [weakref.ref(cache.layers[0].keys) for cache in kept]
    del kept[:3]
    gc.collect()
    assert [one() is None for one in held] == [True] * 3 + [False] * (MOST_SHAPES - 2)
    decoded(run, kept[-1], range(WARM_CALLS + 1))
    assert run.shapes == MOST_SHAPES - 3 + 1


def test_a_call_with_a_cache_that_cannot_be_recorded_goes_on_uncaptured_and_is_told_once(
    captured: Callable[..., GraphedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did so before such calls were recorded."""

    @contextlib.contextmanager
    def broken_off(*_: Any) -> Iterator[None]:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        yield

    monkeypatch.setattr(cuda_graph, "recording", broken_off)
    model = Decoder()
    run, mine, theirs = captured(model), Cache(), Cache()
    decoded(run, mine, range(WARM_CALLS))
    with pytest.warns(
        UserWarning, match=r"calls with such an object run uncaptured, because .*operation not permitted"
    ):
        decoded(run, mine, range(WARM_CALLS, WARM_CALLS + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded(run, mine, range(WARM_CALLS + 1, 3 * WARM_CALLS + 5))
    decoded(model, theirs, range(3 * WARM_CALLS + 5))
    assert_same(mine.tensors(), theirs.tensors())
    plain = captured(nn.Identity())
    for _ in range(WARM_CALLS):
        plain(torch.ones(2))
    with pytest.raises(WorkloadError, match="cannot be captured"):
        plain(torch.ones(2))


def test_an_input_that_lies_in_the_cache_is_read_where_it_lies(
    captured: Callable[..., GraphedStep], written: list[torch.Tensor]
) -> None:
    model = Decoder()

    def late(position: torch.Tensor, x: torch.Tensor, cache: Any) -> Any:
        result = model(x, cache)
        return {**result, "x": result["x"] + position}

    run, mine, theirs = captured(Decoder(), late), Cache(), Cache()
    written += mine.tensors()
    with torch.no_grad():
        for k in range(WARM_CALLS + 3):
            found = run(mine.length[None], token(k), cache=mine)["x"]
            torch.testing.assert_close(found, late(theirs.length[None], token(k), theirs)["x"])
    assert run.shapes == 1


@dataclass(frozen=True)
class Answer:
    x: torch.Tensor
    inner: Any


@pytest.mark.parametrize("kind", [Growing, Counting, SimpleNamespace])
def test_an_object_that_is_handed_out_is_another_at_every_call(kind: Any, captured: Callable[..., GraphedStep]) -> None:
    """A cache that a model makes in its call grows in its caller's hands."""

    def forward(x: torch.Tensor) -> Answer:
        made: Any = kind()
        made.first = [x + 1]
        made.more = {"itself": made}
        return Answer(x, made)

    run, x = captured(nn.Identity(), forward), torch.ones(2)
    answers = [run(x) for _ in range(WARM_CALLS + 3)]
    for answer in answers:
        assert type(answer.inner) is kind
        assert answer.inner.more["itself"] is answer.inner
        torch.testing.assert_close(answer.inner.first[0], torch.full((2,), 2.0))
        answer.inner.first.append(1)
        answer.inner.grown = True
    again = run(x).inner
    assert len(again.first) == 1
    assert not hasattr(again, "grown")
    assert run.shapes == 1


class State:
    def __init__(self) -> None:
        self.hidden = torch.zeros(1, 4)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state, self.states = State(), [{"inner": State()}]

    def forward(self, x: torch.Tensor) -> Any:
        return x + 1, self.state, {"inner": self.states[0]["inner"]}, self.states


def test_what_the_model_holds_is_handed_out_itself(captured: Callable[..., GraphedStep]) -> None:
    model = Recurrent()
    run = captured(model)
    for _ in range(WARM_CALLS + 3):
        _, state, inner, states = run(torch.ones(2))
        assert state is model.state
        assert inner["inner"] is model.states[0]["inner"]
        assert states is model.states
    assert run.shapes == 1


class Unset:
    __slots__ = ("inner",)

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Concealed:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise ValueError


def test_results_of_every_form_are_handed_out() -> None:
    shared = [torch.zeros(2)]
    found = rebuilt({"a": shared, "b": shared}, {})
    assert found["a"] is found["b"] is not shared
    cycle: list[Any] = []
    cycle.append({"itself": cycle})
    found = rebuilt(cycle, {})
    assert found[0]["itself"] is found is not cycle
    chain = SimpleNamespace(inner=None)
    for _ in range(600):
        chain = SimpleNamespace(inner=chain)
    assert rebuilt(chain, {}).inner is not chain.inner
    assert isinstance(rebuilt(Unset(), {}), Unset)
    concealed = Concealed()
    assert rebuilt(concealed, {}) is concealed


class Registered(Growing):
    """As some versions of transformers register DynamicCache with torch's pytree."""


def flattened(cache: Registered) -> tuple[list[torch.Tensor], int]:
    return cache.tensors(), len(cache.layers)


def unflattened(tensors: Any, layers: int) -> Registered:
    made = object.__new__(Registered)
    *keys, made.length = tensors
    made.layers = [SimpleNamespace(keys=one, full=False) for one in keys]
    return made


pytree.register_pytree_node(Registered, flattened, unflattened)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_registered_cache_that_grows_grows_in_its_callers_hands(
    mode: Any, captured: Callable[..., GraphedStep]
) -> None:
    model = Decoder()
    run = captured(model)
    with mode():
        mine, theirs = Registered(), Registered()
        for k in range(WARM_CALLS + 4):
            torch.testing.assert_close(run(token(k), cache=mine)["x"], model(token(k), theirs)["x"])
    assert mine.layers[0].keys.shape[1] == WARM_CALLS + 4
    assert_same(mine.tensors(), theirs.tensors())
    assert run.shapes == 0


def test_a_list_that_a_call_appends_to_is_the_callers(captured: Callable[..., GraphedStep]) -> None:
    seen: list[torch.Tensor] = []
    run = captured(nn.Identity(), lambda x, past: (past.append(x + 1), x + len(past))[1])
    with torch.inference_mode():
        for k in range(WARM_CALLS + 4):
            torch.testing.assert_close(run(torch.zeros(3)[:2], past=seen), torch.full((2,), 1.0 + k))
    assert (len(seen), run.shapes) == (WARM_CALLS + 4, 0)


def test_labels_that_a_call_takes_out_of_its_batch_keep_no_graph_away(captured: Callable[..., GraphedStep]) -> None:
    run = captured(nn.Identity(), lambda batch: batch["x"] + batch.pop("labels"))
    for k in range(WARM_CALLS + 3):
        torch.testing.assert_close(
            run({"x": torch.ones(2), "labels": torch.full((2,), float(k))}), torch.full((2,), 1.0 + k)
        )
    assert run.shapes == 1


def test_transformers_caches(captured: Callable[..., GraphedStep], written: list[torch.Tensor]) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.randint(3, 100, (1, 8), generator=torch.Generator().manual_seed(0))
    run, tokens, caches = captured(model), [], []
    with torch.no_grad():
        for call in (model, run):
            cache = transformers.StaticCache(config=config, max_cache_len=LENGTH)
            token = model(prompt, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            written[:] = [t for layer in cache.layers for t in (layer.keys, layer.values, layer.cumulative_length)]
            for _ in range(WARM_CALLS + 4):
                output = call(token, past_key_values=cache, use_cache=True)
                assert output.past_key_values is cache
                token = output.logits[:, -1:].argmax(-1)
                tokens.append(token)
            caches.append(written[:])
    assert run.shapes == 1
    assert tokens[: WARM_CALLS + 4] == tokens[WARM_CALLS + 4 :]
    assert_same(*caches)


@pytest.mark.parametrize("kind", [Cache, Growing])
def test_a_workload_with_a_cache_among_its_inputs_is_refused(kind: Any) -> None:
    """Nothing would be seen of what a candidate writes there: the reference and the untouched model write to the same."""
    one = Workload("decoding", Decoder, lambda seed: {"x": token(seed), "cache": kind()}, lambda m, b: m(**b)["x"])
    with pytest.raises(WorkloadError, match=rf"a {kind.__name__}, in which .*belongs in the model's buffers"):
        audit(one, pick("cpu"))


def test_slices_in_a_batch_are_laid_out_as_their_copies_will_be(captured: Callable[..., GraphedStep]) -> None:
    """From the first call on: for others Dynamo would compile anew."""
    strides = []

    def run(batch: dict[str, Any]) -> torch.Tensor:
        strides.append([t.stride() for t in (batch["ids"], *batch["pair"])])
        return batch["ids"] + batch["pair"][0]

    whole, graphed = torch.randn(3, 5), captured(nn.Linear(1, 1), run)
    batch = {"ids": whole[:, :-1], "pair": (whole[:, 1:], whole)}
    for _ in range(WARM_CALLS + 2):
        torch.testing.assert_close(graphed(batch), whole[:, :-1] + whole[:, 1:])
    assert strides == [[(4, 1), (4, 1), (5, 1)]] * (WARM_CALLS + 1)
