"""The counters that Nsight Compute prints, as a log file holds them."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InputError
from rung.trace import read

TEXT = """==PROF== Connected to process 4242 (/usr/bin/python3.11)
==PROF== Profiling "gemm" - 0: 0%....50%....100% - 8 passes
"ID","Process ID","Process Name","Kernel Name","Block Size","Device","gpu__time_duration.sum","launch__waves_per_multiprocessor"
"","","","","","","ns",""
"0","4242","python3","gemm<float>(float *, int)","(128, 1, 1)","1","1,234,567","2.5"
"1","4242","python3","add","(64, 1, 1)","0","17.5","n/a"
==PROF== Disconnected from process 4242
"""


def put(folder, text):
    path = folder / "ncu.csv"
    path.write_text(text)
    return path


def test_one_row_a_kernel_and_counter(tmp_path):
    trace = read(put(tmp_path, TEXT))
    assert trace.format == "ncu-csv"
    assert trace.counters.rows() == [
        (0, 1, "gemm<float>(float *, int)", "gpu__time_duration.sum", 1234567.0, None),
        (0, 1, "gemm<float>(float *, int)", "launch__waves_per_multiprocessor", 2.5, None),
        (1, 0, "add", "gpu__time_duration.sum", 17.5, None),
    ]
    assert trace.events.height == 0
    assert trace.unread == {"counter without a number": 1}


_names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)


@given(st.lists(st.tuples(_names, st.integers(0, 7), st.integers(0, 10**12)), min_size=1, max_size=8))
def test_any_kernels_are_read_back_equal(tmp_path_factory, kernels):
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL)
    table.writerow(["ID", "Process ID", "Kernel Name", "Device", "dram__bytes.sum"])
    table.writerow(["", "", "", "", "byte"])
    table.writerows([n, 1, name, device, f"{value:,}"] for n, (name, device, value) in enumerate(kernels))
    found = read(put(tmp_path_factory.mktemp("ncu"), text.getvalue())).counters.rows()
    assert found == [
        (n, device, name, "dram__bytes.sum", value, None) for n, (name, device, value) in enumerate(kernels)
    ]


def test_what_is_cut_off_is_refused_and_read_as_far_as_it_is_whole(tmp_path):
    path = put(tmp_path, TEXT[: TEXT.index('"17.5"') - 3])
    with pytest.raises(InputError, match="cut off in its last line"):
        read(path)
    trace = read(path, partial=True)
    assert set(trace.counters["correlation"]) == {0}
    assert trace.unread["row cut off at the end of the file"] == 1


def test_titles_without_kernels_are_refused(tmp_path):
    with pytest.raises(InputError, match="titles and no kernels"):
        read(put(tmp_path, "\n".join(TEXT.splitlines()[:4])))


def test_a_time_in_seconds_is_told_in_nanoseconds(tmp_path):
    text = TEXT.replace('"","ns",""', '"","second",""').replace("1,234,567", "0.0015")
    assert read(put(tmp_path, text)).counters.filter(kernel="gemm<float>(float *, int)")["value"].to_list() == [
        1.5e6,
        2.5,
    ]


def test_facts_of_the_machine_and_texts_are_no_counters(tmp_path):
    text = TEXT.replace('"launch__waves_per_multiprocessor"', '"device__attribute_warp_size"')
    assert set(read(put(tmp_path, text)).counters["counter"]) == {"gpu__time_duration.sum"}
    text = TEXT.replace('"2.5"', '"PolicySpread"').replace('"n/a"', '""')
    trace = read(put(tmp_path, text))
    assert set(trace.counters["counter"]) == {"gpu__time_duration.sum"}
    assert trace.unread == {}


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e300", "4000000000", "-1", "x"])
def test_numbers_that_no_device_or_kernel_has_are_none(tmp_path, number):
    text = TEXT.replace('"Device",', '"Device","device__attribute_display_name",').replace('"ns"', '"","ns"')
    text = text.replace('"1","1,234,567"', f'"{number}","H100","{number}"').replace('"0","17.5"', '"0","H100","17.5"')
    trace = read(put(tmp_path, text))
    assert set(trace.counters["device"].to_list()) <= {0, None}
    assert trace.devices == [{"name": "H100"}]


def test_a_cell_that_cannot_be_read_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"ncu\.csv is damaged"):
        read(put(tmp_path, TEXT.replace('"add"', f'"{"a" * (csv.field_size_limit() + 1)}"')))
