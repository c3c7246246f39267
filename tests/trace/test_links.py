"""Which row launched which."""

from made_traces import made

from rung.trace.output import launches


def event(kind, correlation, **more):
    return {"kind": kind, "ts": 1, "correlation": correlation} | more


def test_all_kernels_of_a_graph_belong_to_its_launch():
    trace = made(event("runtime", 7, name="hipGraphLaunch"), *[event("kernel", 7)] * 3, event("memcpy", 7))
    assert launches(trace).rows() == [(0, 1), (0, 2), (0, 3), (0, 4)]


def test_the_first_call_of_an_id_is_the_launch_and_large_ids_are_kept_apart():
    large = 2**62 + 1
    trace = made(event("kernel", large), event("runtime", large), event("runtime", large), event("runtime", large - 1))
    assert launches(trace).rows() == [(1, 0)]


def test_ids_of_two_ranks_are_kept_apart():
    trace = made(*[event(kind, 1, rank=rank) for rank in (0, 1) for kind in ("runtime", "kernel")])
    assert launches(trace).rows() == [(0, 1), (2, 3)]


def test_events_without_an_id_or_a_call_have_no_launch():
    trace = made(event("kernel", None), event("kernel", 4), event("runtime", None), event("cpu_op", 4))
    assert launches(trace).is_empty()
