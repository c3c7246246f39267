"""GPUs of a trace are named as the driver does, and told by their architecture where it does not."""

import polars as pl

from rung.analysis.overview import gpu_names
from rung.trace import Trace
from rung.trace.table import SCHEMA

MI300X = {"totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "warpSize": 64, "numSms": 304}


def names(*devices, **meta):
    return gpu_names(Trace(pl.DataFrame(schema=SCHEMA), devices=list(devices), meta=meta))


def test_a_name_is_taken_as_it_is_and_once():
    assert names({"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}) == ["NVIDIA H200"]
    assert names(files=[{"devices": [{"name": "NVIDIA H200"}]}, {"devices": [MI300X | {"name": "AMD Instinct MI300X"}]}]) == [
        "NVIDIA H200", "AMD Instinct MI300X",
    ]  # fmt: skip


def test_a_nameless_or_generic_one_is_told_by_its_architecture():
    assert names(MI300X | {"name": ""}) == ["a GPU without a name (taken for MI300X)"]
    generic = {"name": "AMD Radeon Graphics", "computeMajor": 9, "computeMinor": 0, "warpSize": 64, "numSms": 104}
    assert names(generic) == ["AMD Radeon Graphics (taken for MI210)"]
    assert names({}, {"name": "ARTEMIS"}) == ["ARTEMIS"]
