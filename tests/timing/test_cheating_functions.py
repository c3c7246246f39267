"""Functions that are fast because they cheat: each known way is refused by `rung.compare(f, g, inputs=make)`, and named."""

import functools
import inspect
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import rung
import rung.measure.as_launched
import rung.measure.clock
from rung.errors import WorkloadError
from rung.hardware.device import cpu
from rung.measure.without_launch import Graph
from rung.timing import function_witness
from rung.timing.function import Function
from rung.timing.function_witness import OnInputs
from rung.verify.timed_functions import TimedFunctions

Call = Callable[[torch.Tensor], torch.Tensor]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SIZE = 128
BEFORE = 10  # calls: verification takes fewer, timing more


def inputs(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def work(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(4):
        y = torch.softmax(y @ x, -1)
    return y


def of(call: Call) -> Call:
    """The same work by other means: what is not refused."""
    return lambda x: call(x)


def while_verified() -> bool:
    return any("/rung/verify/" in frame.filename for frame in inspect.stack(0))


def nothing_while_timed() -> Call:
    """Empty where it is timed: honest wherever verification calls."""
    last: list[torch.Tensor] = []

    def cheat(x: torch.Tensor) -> torch.Tensor:
        if not last or last[0].shape != x.shape or while_verified():
            last[:] = [work(x)]
        return last[0]

    return cheat


def nothing_after_a_while() -> Call:
    """Empty once verification is over."""
    calls, last = [0], [torch.empty(0)]

    def cheat(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] < BEFORE or last[0].shape != x.shape:
            last[0] = work(x)
        return last[0]

    return cheat


def by_identity() -> Call:
    """An answer for each object that was ever given; all are kept, so that none gets another's place."""
    known: list[tuple[torch.Tensor, torch.Tensor]] = []

    def cheat(x: torch.Tensor) -> torch.Tensor:
        for given, result in known:
            if given is x:
                return result
        known.append((x, work(x)))
        return known[-1][1]

    return cheat


def by_version() -> Call:
    """The same, with an eye on what is written in place: right, but no work is done again."""
    known: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def cheat(x: torch.Tensor) -> torch.Tensor:
        key = id(x), x._version
        if key not in known:
            known[key] = x, work(x)
        return known[key][1]

    return cheat


def by_content() -> Call:
    """An answer for each content that was ever seen."""
    known: dict[tuple[Any, ...], torch.Tensor] = {}

    def cheat(x: torch.Tensor) -> torch.Tensor:
        key = (tuple(x.shape), x.dtype, x.detach().flatten()[:64].cpu().numpy().tobytes())
        if key not in known:
            known[key] = work(x)
        return known[key]

    return cheat


def written_later() -> Call:
    """Returns at once; a thread writes the result when it has it."""

    def cheat(x: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(x)
        threading.Timer(0.05, lambda: result.copy_(work(x))).start()
        return result

    return cheat


class Lazy(torch.Tensor):
    """Computes when it is read."""

    given: torch.Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def real(value: Any) -> Any:
            return work(value.given) if type(value) is Lazy and hasattr(value, "given") else value

        return func(*torch.utils._pytree.tree_map(real, args), **(kwargs or {}))


def computed_when_read() -> Call:
    def cheat(x: torch.Tensor) -> torch.Tensor:
        result = torch.empty(x.shape, dtype=x.dtype, device=x.device).as_subclass(Lazy)
        result.given = x
        return result

    return cheat


def changed(holder: Any, name: str, made: Callable[[Any], Any], after: int = BEFORE) -> Call:
    """Honest work, and from some call on a clock of its own."""
    calls = [0]

    def cheat(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == after:
            setattr(holder, name, made(getattr(holder, name)))
        return work(x)

    return cheat


def half(clock: Any) -> Any:
    begin = clock()
    return lambda: begin + (clock() - begin) // 2


@pytest.fixture(autouse=True)
def clocks() -> Iterator[None]:
    """The real ones again, whatever a cheat left. One thread: threads that wait for each other on a busy machine scatter."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    kept = [(time, name, getattr(time, name)) for name in ("perf_counter_ns", "perf_counter", "monotonic")]
    kept += [(torch.cuda, name, getattr(torch.cuda, name)) for name in ("synchronize", "Event")]
    kept += [(rung.measure.clock, "time_block", rung.measure.clock.time_block)]
    kept += [(torch.cuda.Event, "elapsed_time", torch.cuda.Event.elapsed_time)]
    kept += [(rung.measure.as_launched, "time_block", rung.measure.as_launched.time_block)]
    kept += [(kind, "block", kind.block) for kind in (rung.measure.as_launched.Clock, rung.measure.as_launched.Events)]
    yield
    torch.set_num_threads(threads)
    for holder, name, value in kept:
        setattr(holder, name, value)


CHEATS: dict[str, tuple[Callable[[], Call], str]] = {
    "an empty timed region": (nothing_while_timed, "while it was timed"),
    "an empty timed region after a while": (nothing_after_a_while, "while it was timed"),
    "an output cached by the identity of the input": (by_identity, "while it was timed"),
    "an output cached by identity and version": (by_version, "not done again"),
    "an output cached by content": (by_content, "not done again"),
    "a result written after it was returned": (written_later, "off by|not finite|not written yet|uninitialized memory"),
    "a result computed when it is read": (computed_when_read, "Lazy"),
}
CLOCKS: dict[str, Callable[[], Call]] = {
    "time.perf_counter_ns": lambda: changed(time, "perf_counter_ns", half),
    "time.perf_counter_ns before it is called": lambda: changed(time, "perf_counter_ns", half, after=1),
    "torch.cuda.Event": lambda: changed(torch.cuda, "Event", lambda real: type("Event", (), {})),
    "torch.cuda.Event.elapsed_time": lambda: changed(torch.cuda.Event, "elapsed_time", lambda real: lambda a, b: 0.001),
    "torch.cuda.synchronize": lambda: changed(torch.cuda, "synchronize", lambda real: lambda *_: None),
    "rung.measure.clock.time_block": lambda: changed(
        rung.measure.clock, "time_block", lambda real: lambda *given: real(*given)
    ),
    "rung.measure.as_launched.time_block": lambda: changed(
        rung.measure.as_launched, "time_block", lambda real: functools.partial(real)
    ),
    "rung.measure.as_launched.Clock.block": lambda: changed(
        rung.measure.as_launched.Clock, "block", lambda real: lambda *given: real(*given)
    ),
    "rung.measure.as_launched.Events.block": lambda: changed(
        rung.measure.as_launched.Events, "block", lambda real: functools.partialmethod(real)
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_known_cheat_is_refused_and_named(cheat: str) -> None:
    make, says = CHEATS[cheat]
    for _ in range(10):  # on a busy machine one try may not show that new inputs take longer
        found = rung.compare(work, make(), inputs=inputs, device="cpu", seconds=0.5)
        if found["verdict"] == "not equal":
            break
    assert (found["verdict"], found["not_equal"]) == ("not equal", "B")
    assert re.search(says, found["verification"]["failures"][0]), found["verification"]["failures"]
    assert "times" not in found.to_dict()


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_that_was_changed_is_refused_and_named(clock: str) -> None:
    name = clock.partition(" ")[0]
    said = ""
    try:
        found = rung.compare(work, CLOCKS[clock](), inputs=inputs, device="cpu", seconds=0.5)
        said = found["verification"]["failures"][0] if found["verdict"] == "not equal" else "believed"
    except WorkloadError as error:
        said = str(error)
    assert name in said


def test_a_clock_that_was_replaced_as_the_file_was_imported_is_no_clock_to_measure_with() -> None:
    """As in a worker of `rung bench ops.py:f --call`, whose file has been imported by now."""
    time.monotonic = time.process_time
    with pytest.raises(WorkloadError, match=r"time\.monotonic is not the real one"):
        Function(lambda: None, "mine", "cpu").open()


def test_a_name_that_is_added_to_hide_a_builtin_is_a_clock_that_was_changed() -> None:
    function = Function(lambda: None, "mine", "cpu")
    function.open()
    rung.measure.clock.sum = lambda samples: 0  # type: ignore[attr-defined]
    try:
        with pytest.raises(WorkloadError, match=r"rung\.measure\.clock\.sum is not the real one"):
            function.block(1)
    finally:
        del rung.measure.clock.sum  # type: ignore[attr-defined]
    function.block(1)


def test_the_honest_pass_in_the_same_harness() -> None:
    found = rung.compare(work, of(work), inputs=inputs, device="cpu", seconds=0.5)
    assert found["verification"]["passed"], found["verification"]["failures"]
    assert found["verdict"] != "not equal"


def test_where_memory_is_short_that_is_said_and_the_comparison_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("rung.verify.timed_functions.TimedFunctions.case", full)
    found = rung.compare(work, of(work), inputs=inputs, device="cpu", seconds=0.5)
    assert "times" in found.to_dict()
    assert any("no memory to check" in line for line in found["warnings"])


class Replayed:
    """Stands in for a graph: what calls launched while they were recorded."""

    recording: "Replayed | None" = None

    def __init__(self) -> None:
        self.launched: list[Callable[[], object]] = []

    def replay(self) -> None:
        with torch.inference_mode():  # which results may have been made in
            for launch in self.launched:
                launch()

    @classmethod
    def recorded(cls, step: Call, calls: Callable[[], None], device: Any) -> "Replayed":
        step()  # type: ignore[call-arg]
        cls.recording = graph = Replayed()
        calls()
        cls.recording = None
        return graph


def launched(x: torch.Tensor) -> torch.Tensor:
    """Work that a graph would launch again, in the same memory."""
    result = work(x)
    if Replayed.recording:
        Replayed.recording.launched.append(lambda: result.copy_(work(x)))
    return result


def with_its_input(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return launched(x), x


def in_inference_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return launched(x)


TABLE = torch.linspace(0, 1, 16)


def with_a_table(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return launched(x), TABLE


def with_a_cheat(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Its first result, which it has from before where it is recorded, and a table."""
    return CHEAT(x), TABLE


def beside_a_cheat(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return work(x), TABLE


def a_table_that_depends_on_its_input(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By its size alone; it is the last one's where it is recorded."""
    if not Replayed.recording:
        LAST[:] = [TABLE * len(x)]
    return launched(x), LAST[0]


def of_its_size(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return work(x), TABLE * len(x)


def empty_where_recorded() -> Call:
    last: list[torch.Tensor] = []

    def cheat(x: torch.Tensor) -> torch.Tensor:
        if not Replayed.recording:
            last[:] = [work(x)]
        return last[0]

    return cheat


CHEAT, LAST = empty_where_recorded(), list[torch.Tensor]()


def of_several_sizes(seed: int) -> torch.Tensor:
    return inputs(seed)[: SIZE - seed, : SIZE - seed].contiguous()


@pytest.mark.parametrize("make", [inputs, of_several_sizes])
@pytest.mark.parametrize(
    ("call", "believed"),
    [
        (launched, True),
        (with_its_input, True),
        (in_inference_mode, True),
        (with_a_table, True),
        (empty_where_recorded(), False),
    ],
)
def test_a_graph_in_which_nothing_is_recorded_is_refused(
    call: Call, believed: bool, make: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not new content finds room in the memory of the inputs that were timed."""
    letter, why = distrusted(call if believed else work, call, make, monkeypatch)
    assert letter == ("" if believed else "B")
    assert believed or re.search("off by|not finite", why)


@pytest.mark.parametrize(
    ("reference", "call"),
    [(beside_a_cheat, with_a_cheat), (of_its_size, a_table_that_depends_on_its_input)],
    ids=["another result", "a table of the size"],
)
def test_a_result_that_never_changes_hides_no_other(reference: Any, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert distrusted(reference, call, of_several_sizes, monkeypatch)[0] == "B"


def distrusted(reference: Any, call: Any, make: Call, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The side that is not believed, of which B is timed in what stands in for a graph, and why."""
    monkeypatch.setattr(function_witness, "recorded", Replayed.recorded)
    monkeypatch.setattr(TimedFunctions, "on_new_inputs", lambda *_: 1.0)
    given = OnInputs({"A": reference, "B": call}, make, cpu())  # type: ignore[arg-type]
    sides = {letter: Function(given.of(letter), letter, "cpu") for letter in "AB"}
    for side in sides.values():
        side.open()
    sides["B"]._timer = object.__new__(Graph)
    return given.distrusted(sides, {"A": [1.0], "B": [1.0]})


# -- what only a GPU can do ------------------------------------------------------------------------------------------------


def large(seed: int) -> torch.Tensor:
    return torch.randn(2048, 2048, generator=torch.Generator().manual_seed(seed))


def on_another_stream(x: torch.Tensor) -> torch.Tensor:
    """Launches its work where no event of the timing is."""
    if not hasattr(on_another_stream, "stream"):
        on_another_stream.stream = torch.cuda.Stream()  # type: ignore[attr-defined]
    with torch.cuda.stream(on_another_stream.stream):  # type: ignore[attr-defined]
        return work(x)


def waited_for_where_verified(x: torch.Tensor) -> torch.Tensor:
    """The same, and waits for it where it is verified."""
    result = on_another_stream(x)
    if while_verified():
        torch.cuda.synchronize()
    return result


def nothing_in_a_graph() -> Call:
    """Empty where calls are recorded into a graph, which is then timed."""
    last: list[torch.Tensor] = []

    def cheat(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            return last[0]
        last[:] = [work(x)]
        return last[0]

    return cheat


def joined(x: torch.Tensor) -> torch.Tensor:
    """Honest work on another stream, which the current one waits for."""
    here, there = torch.cuda.current_stream(), torch.cuda.Stream()
    there.wait_stream(here)
    with torch.cuda.stream(there):
        result = work(x)
    here.wait_stream(there)
    result.record_stream(here)
    return result


# Cheats that are honest work where the machine is busy, and then gain nothing. The GPU's queue of launches was full, so that the host waited
# for the other stream, too. Or a call took 100 us and more with its launches: then it is timed as it is launched, and in no graph.
GAINS_NOTHING = ("waited_for_where_verified", "nothing_in_a_graph")


@GPU
@pytest.mark.parametrize(
    "cheat", ["on_another_stream", "waited_for_where_verified", "nothing_in_a_graph", "content", "identity"]
)
def test_a_cheat_on_a_gpu_is_refused(cheat: str) -> None:
    made: Call = {
        "on_another_stream": on_another_stream,
        "waited_for_where_verified": waited_for_where_verified,
        "nothing_in_a_graph": nothing_in_a_graph(),
        "content": by_content(),
        "identity": by_identity(),
    }[cheat]
    sizes = inputs if cheat == "nothing_in_a_graph" else large
    found = rung.compare(work, made, inputs=sizes, device="cuda", seconds=2.0)
    if cheat in GAINS_NOTHING and found["verdict"] in ("slower", "same"):
        return
    assert (found["verdict"], found["not_equal"]) == ("not equal", "B"), str(found)


@GPU
@pytest.mark.parametrize("honest", ["same", "small", "joined", "tiny"])
def test_the_honest_pass_on_a_gpu(honest: str) -> None:
    made = joined if honest == "joined" else of(work)
    reference, make = (work, inputs if honest == "small" else large)
    if honest == "tiny":
        reference, made, make = torch.relu, lambda x: x.clamp(min=0), inputs
    found = rung.compare(reference, made, inputs=make, device="cuda", seconds=2.0)
    assert found["verification"]["passed"], found["verification"]["failures"]
