"""What objects hold is read anew where it may be something else, and is kept no longer than they live."""

import gc
import weakref
from collections import UserDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rung.engine import contents
from rung.engine.contents import Contents
from rung.engine.input_guards import Inputs
from rung.engine.objects import MOST, content


class Layer:
    def __init__(self) -> None:
        self.keys, self.on, self.sizes = torch.zeros(2, 4), False, [1, 2]


class Wide(Layer):
    """One of another class, with the same attributes."""


class Slots:
    __slots__ = ("keys", "on")

    def __init__(self) -> None:
        self.keys, self.on = torch.zeros(2), 1


class Tagged(list[int]):
    """A list with an attribute, and one with a slot."""

    tag = 0


class Slotted(list[int]):
    __slots__ = ("tag",)


class Cache:
    def __init__(self) -> None:
        self.layers = [Layer(), Layer()]
        self.by_name: Any = {"a": torch.ones(2), "b": (1, [2])}
        self.seen, self.slots = {1, 2}, Slots()
        self.recent: Any = deque([1, 2])
        self.more = UserDict(x=torch.ones(3))
        self.plain = SimpleNamespace(length=300)
        self.tagged: Any = [1]
        self.tuples = {(0, "k"): 1}


def shaped(cache: Cache) -> None:
    cache.layers[0].keys.data = cache.layers[0].keys.data.t()


def elsewhere(cache: Cache) -> None:
    cache.layers[0].keys.data = cache.layers[0].keys.data.clone()


CHANGES: dict[str, Callable[[Cache], Any]] = {
    "a number": lambda c: setattr(c.plain, "length", 301),
    "a flag": lambda c: setattr(c.layers[1], "on", True),
    "a flag that equals the number": lambda c: setattr(c.slots, "on", True),
    "a key": lambda c: c.tuples.update({(1, "k"): 1}),
    "a slot": lambda c: setattr(c.slots, "keys", torch.zeros(2)),
    "a further attribute": lambda c: setattr(c.layers[0], "more", None),
    "an attribute that is gone": lambda c: delattr(c.layers[0], "on"),
    "a list": lambda c: c.layers[0].sizes.append(3),
    "a list in a tuple": lambda c: c.by_name["b"][1].append(3),
    "a deque": lambda c: c.recent.append(3),
    "a set": lambda c: c.seen.add(3),
    "a dict": lambda c: c.by_name.update(c=1),
    "the order of a dict": lambda c: c.by_name.update(a=c.by_name.pop("a")),
    "a dict of another class": lambda c: c.more.update(x=torch.ones(3)),
    "another tensor": lambda c: setattr(c.layers[0], "keys", torch.zeros(2, 4)),
    "a tensor that lies elsewhere": elsewhere,
    "a tensor of another shape": shaped,
    "a tensor that gets a gradient": lambda c: c.layers[0].keys.requires_grad_(),
    "layers exchanged": lambda c: c.layers.reverse(),
    "a layer less": lambda c: c.layers.pop(),
    "one layer twice": lambda c: c.layers.__setitem__(1, c.layers[0]),
    "another class": lambda c: setattr(c.layers[0], "__class__", Wide),
    "all attributes": lambda c: setattr(c.layers[0], "__dict__", vars(Layer())),
    "all attributes of the object": lambda c: setattr(c, "__dict__", vars(Cache())),
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each time that objects are read."""
    done: list[int] = []
    monkeypatch.setattr(contents, "content", lambda *a: (done.append(1), content(*a))[1])
    return done


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(change: str, slots: bool, reads: list[int]) -> None:
    cache, known = Cache(), Contents("cpu")
    if not slots:
        cache.slots = Layer()  # type: ignore[assignment]
    before = known.read(["cache"], [cache])
    assert known.read(["cache"], [cache]).key == before.key
    assert len(reads) == (2 if slots else 1)
    CHANGES[change](cache)
    after = known.read(["cache"], [cache])
    assert after.key != before.key
    assert before.difference(["cache"], [cache], "cpu").startswith("cache")
    assert known.read(["cache"], [cache]).key == after.key == content(["cache"], [cache], "cpu").key


@pytest.mark.parametrize("kind", [Tagged, Slotted])
def test_attributes_of_a_list_are_seen(kind: Any) -> None:
    cache, known = Cache(), Contents("cpu")
    cache.slots, cache.tagged = Layer(), kind([1])  # type: ignore[assignment]
    before = known.read(["cache"], [cache])
    cache.tagged.tag = 1
    assert known.read(["cache"], [cache]).key != before.key
    cache.tagged.tag = 2
    assert known.read(["cache"], [cache]).key != before.key


def test_numbers_in_tensors_are_no_change(reads: list[int]) -> None:
    cache, known = Layer(), Contents("cpu")
    before = known.read(["cache"], [cache])
    cache.keys.add_(1)
    after = known.read(["cache"], [cache])
    assert after.key is before.key
    assert list(map(id, after.tensors)) == list(map(id, before.tensors))
    assert after.memory == before.memory
    assert not before.difference(["cache"], [cache], "cpu")
    assert len(reads) == 1


def leads_back(to: str) -> Cache:
    cache = Cache()
    cache.slots = {"nothing": 1, "itself": cache, "a function": lambda: cache}[to]  # type: ignore[assignment]
    return cache


@pytest.mark.parametrize("to", ["nothing", "itself", "a function"])
def test_an_object_lives_no_longer_for_being_read(to: str) -> None:
    cache, known = leads_back(to), Contents("cpu")
    known.read(["cache"], [cache])
    held = weakref.ref(cache), weakref.ref(cache.layers[0].keys)
    del cache
    gc.collect()
    assert [one() for one in held] == [None, None]
    assert not known._known


class Number(int):
    pass


COMPLEX = torch.ones(2, dtype=torch.complex64)
UNEQUAL: dict[str, tuple[Any, Any]] = {
    "a negative zero": (0.0, -0.0),
    "a negative zero of two": (complex(0.0, 0.0), complex(0.0, -0.0)),
    "a key that equals another": ({0.0: 1}, {-0.0: 1}),
    "a key of another class": ({(1, "k"): 1}, {(True, "k"): 1}),
    "a conjugate": (COMPLEX, COMPLEX.conj()),
    "a negative view": (COMPLEX.imag, COMPLEX.conj().imag),
    "how long a deque gets": (deque([1], maxlen=2), deque([1], maxlen=5)),
}


@pytest.mark.parametrize("what", UNEQUAL)
def test_what_is_equal_and_not_the_same_is_told_apart(what: str) -> None:
    cache, known = Layer(), Contents("cpu")
    one, other = UNEQUAL[what]
    cache.on = one
    before = known.read(["cache"], [cache]).key
    cache.on = other
    assert known.read(["cache"], [cache]).key != before


def test_a_number_with_attributes_is_not_read() -> None:
    number: Any = Number(3)
    number.scale = torch.ones(1)
    assert "inner is a Number" in content(["given"], [SimpleNamespace(inner=number)], "cpu").unseen


def test_what_gets_a_gradient_is_read_where_none_is_taken() -> None:
    cache, known = Layer(), Contents("cpu")
    cache.keys.requires_grad_()
    for _ in range(2):
        with torch.no_grad():
            assert not known.read(["cache"], [cache]).unseen
        assert "gets a gradient" in known.read(["cache"], [cache]).unseen


class Refusing:
    __slots__ = ("keys",)

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


class Hidden:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise ValueError


def test_objects_that_refuse_to_be_read_are_unseen() -> None:
    assert not content(["given"], [Refusing()], "cpu").unseen
    assert "cannot be read (ValueError)" in content(["given"], [Hidden()], "cpu").unseen


def test_tensors_of_a_transform_are_unseen() -> None:
    found: list[str] = []

    def looked_at(x: torch.Tensor) -> torch.Tensor:
        for given in (SimpleNamespace(inner=x), SimpleNamespace(inner=torch.ones(2))):
            found.append(Inputs((x, given), {}, "cpu").unseen)
        return x

    torch.vmap(looked_at)(torch.zeros(3, 2))
    assert found == ["input 1.inner has no memory of its own", "an input has no memory of its own"]


@pytest.mark.parametrize("what", ["tensor", "list", "object"])
def test_what_a_live_object_drops_is_freed(what: str) -> None:
    cache, known = Cache(), Contents("cpu")
    cache.slots = Layer()  # type: ignore[assignment]
    cache.by_name["again"] = cache.layers
    known.read(["cache"], [cache])
    keys = weakref.ref(cache.layers[0].keys)
    assert len(known._known) == 1
    if what == "tensor":
        cache.layers[0].keys = torch.zeros(2, 4)
    else:
        cache.by_name = {}
        cache.layers = [] if what == "list" else [Layer()]
    gc.collect()
    assert keys() is None


@pytest.mark.parametrize("kind", [list, dict, set, deque])
def test_nothing_huge_is_looked_into(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    class Huge(kind):  # type: ignore[misc]
        def __iter__(self) -> Any:
            looked.append(1)
            return super().__iter__()

    huge = Huge((k, k) for k in range(MOST + 1))
    found = content(["given"], [SimpleNamespace(first=torch.Generator(), inner=huge)], "cpu")
    assert found.unseen.startswith("given.first is a Generator")
    assert "values" in content(["given"], [SimpleNamespace(inner=huge)], "cpu").unseen
    assert not looked


def test_what_python_does_not_show_is_named() -> None:
    class Counts:
        total = torch.zeros(1)

    for name, value in {"a generator": torch.Generator(), "a class that holds a tensor": Counts()}.items():
        holder = SimpleNamespace(inner=[name, value])
        assert content(["given"], [holder], "cpu").unseen.startswith("given.inner[1] is a ")
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    assert "deep" in content(["given"], [SimpleNamespace(inner=deep)], "cpu").unseen
    assert "values" in content(["given"], [SimpleNamespace(inner=[1] * 100_000)], "cpu").unseen
    host = content(["given"], [SimpleNamespace(inner=torch.ones(1))], "cuda").unseen
    assert host == "given.inner lies in the host's memory"
