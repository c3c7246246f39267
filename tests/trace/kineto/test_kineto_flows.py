"""Arrows link a GPU event to its launch where correlation ids do not."""

import gzip
import json
from pathlib import Path

import pytest

from rung.trace import read
from rung.trace.output import launches

SHARED = Path(__file__).parents[4] / "shared" / "data" / "traces"
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 9, "tid": 8, "ts": 1.5, "dur": 1}
KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 3, "ts": 20.25, "dur": 5}
BEGIN = {"ph": "s", "id": 4, "pid": 9, "tid": 8, "ts": 1.5, "cat": "ac2g", "name": "ac2g"}
END = {"ph": "f", "id": 4, "pid": 0, "tid": 3, "ts": 20.25, "cat": "ac2g", "name": "ac2g", "bp": "e"}


def opened(folder, *events):
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return read(path)


def with_id(event, correlation):
    return event | {"args": {"correlation": correlation}}


@pytest.mark.parametrize("odd", [{}, {"pid": 9.0}], ids=["quick", "careful"])
def test_an_event_without_a_correlation_takes_that_of_the_launch_that_its_arrow_comes_from(tmp_path, odd):
    other = LAUNCH | odd | {"ts": 3}
    trace = opened(tmp_path, END, BEGIN, KERNEL, with_id(LAUNCH, 77), other)
    assert trace.events["correlation"].to_list() == [77, 77, None]
    assert launches(trace).rows() == [(1, 0)]
    assert trace.meta["linked_by_flow"] == 1
    assert trace.unread == {"flow event": 2}


def test_where_the_launch_has_no_id_both_get_one_of_their_own(tmp_path):
    second = [event | {"ts": event["ts"] + 50} for event in (LAUNCH, KERNEL, BEGIN | {"id": "a"}, END | {"id": "a"})]
    trace = opened(tmp_path, LAUNCH, KERNEL, BEGIN, END, *second)
    first, _, third, _ = ids = trace.events["correlation"].to_list()
    assert ids == [first, first, third, third]
    assert len({first, third, None}) == 3
    assert trace.meta["linked_by_flow"] == 2


def test_a_correlation_id_is_believed_before_an_arrow(tmp_path):
    right = with_id(LAUNCH, 7) | {"ts": 0.5}
    trace = opened(tmp_path, right, with_id(LAUNCH, 5), with_id(KERNEL, 7), BEGIN, END)
    assert trace.events["correlation"].to_list() == [7, 5, 7]
    assert "linked_by_flow" not in trace.meta


@pytest.mark.parametrize(
    "arrow",
    [[END], [BEGIN], [BEGIN, END | {"id": 5}], [BEGIN, END | {"ts": 20}], [BEGIN | {"tid": 1}, END]],
    ids=["no begin", "no end", "other id", "other time", "other thread"],
)
def test_half_an_arrow_links_nothing(tmp_path, arrow):
    trace = opened(tmp_path, with_id(LAUNCH, 5), with_id(KERNEL, 3), *arrow)
    assert trace.events["correlation"].to_list() == [5, 3]
    assert "linked_by_flow" not in trace.meta


def test_arrows_from_an_operator_to_its_gradient_are_no_launches(tmp_path):
    backward = [event | {"cat": "fwdbwd"} for event in (BEGIN, END)]
    trace = opened(tmp_path, with_id(LAUNCH, 5), KERNEL, *backward)
    assert trace.events["correlation"].to_list() == [5, None]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real traces in ../shared")
@pytest.mark.parametrize("name", ["mi250_train", "mi300_bert", "h100_timesformer", "v100_alexnet_train"])
def test_arrows_of_real_traces_lead_where_their_ids_lead(tmp_path, name):
    whole = read(SHARED / f"{name}.json.gz")
    data = json.loads(gzip.decompress((SHARED / f"{name}.json.gz").read_bytes()))
    for event in data["traceEvents"]:
        if event.get("cat", "").lower() in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"):
            event["args"].pop("correlation", None)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data))
    by_flow = read(path)
    linked, found = launches(whole), launches(by_flow)
    assert found.height == by_flow.meta["linked_by_flow"] > 0.7 * linked.height  # no arrow leads from a hipMemsetAsync
    assert found.join(linked, on=["launch", "gpu"], how="anti").is_empty()
