"""FLOP/s and bytes/s of what was measured: from what is told or counted, to every form of the report."""

import re
import time
from html import unescape
from typing import Any

import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace
from torch import nn

import rung
from rung.errors import UsageError
from rung.hardware import Device
from rung.ladder import candidate
from rung.plan import Plan
from rung.records.bench import Bench, Failed
from rung.records.measured import Interval
from rung.records.record import plain
from rung.report.bench import bench_lines, markdown_lines, samples_csv, sweep_lines
from rung.report.samples_page import bench_page
from rung.timing.work import NOTHING_SUPPLIED, SuppliedWork, achieved, work_with_peaks
from rung.workload import Workload

H100 = Device("cuda", 0, "nvidia", "NVIDIA H100 80GB HBM3", "sm90", 80 << 30, 132)
CPU = Device("cpu", 0, "cpu", "a CPU", "x86_64", 0, 0)


@pytest.fixture(scope="module")
def nap() -> Bench:
    """A call of about 2 ms for which 2 GFLOP and 4 MB were told."""
    return rung.bench(lambda: time.sleep(0.002), seconds=0.3, flops=2e9, nbytes=4e6, device="cpu").document


def test_told_work_becomes_rates_and_shares_of_the_chip_it_ran_on() -> None:
    found = achieved(work_with_peaks(H100, "bf16"), SuppliedWork(flops=1e12, flops_in="bf16", nbytes=1e9), 2e6)
    assert found.flops_per_second == pytest.approx(5e14)
    assert found.of_peak == pytest.approx(5e14 / 989.4e12, rel=1e-3)
    assert found.bytes_per_second == pytest.approx(5e11)
    assert found.of_bandwidth == pytest.approx(5e11 / 3.35e12, rel=0.01)


@pytest.mark.parametrize(
    ("plan", "dtype", "amp", "precision"),
    [
        (Plan(), torch.float32, None, "fp32"),
        (Plan(), torch.bfloat16, None, "bf16"),
        (Plan(), torch.float32, torch.bfloat16, "bf16"),
        (Plan(tf32=True), torch.float32, None, "tf32"),
        (Plan(bf16=True), torch.float32, None, "bf16"),
        (Plan(linears="fp8"), torch.bfloat16, None, "fp8"),
        (Plan(linears="int8"), torch.bfloat16, None, "bf16"),
    ],
)
def test_a_step_is_held_against_the_rate_of_the_precision_that_it_runs_in(
    plan: Plan, dtype: torch.dtype, amp: torch.dtype | None, precision: str
) -> None:
    made = candidate.Candidate()
    made.plan, made.device, made.model = plan, CPU, nn.Linear(64, 64).to(dtype)
    made.workload = Workload("w", lambda: made.model, lambda seed: torch.ones(8, 64, dtype=dtype), amp=amp)
    made.step = None  # type: ignore[assignment]
    found = made.work()
    assert (found["precision"], found["flops"]) == (precision, 2 * 8 * 64 * 64)


def test_counted_work_stays_unless_it_is_told_and_nothing_is_made_up() -> None:
    counted = replace(work_with_peaks(H100, "fp32"), flops=1e9)
    assert achieved(counted, NOTHING_SUPPLIED, 1e6).flops_per_second == pytest.approx(1e12)
    assert achieved(counted, SuppliedWork(flops=2e9), 1e6).flops == 2e9
    unknown = achieved(work_with_peaks(H100, None), SuppliedWork(flops=1e9), 1e6)
    assert unknown.of_peak is None
    assert unknown.bytes_per_second is UNSET
    assert not {"flops_per_second", "bytes_per_second"} & set(
        plain(achieved(work_with_peaks(CPU, None), NOTHING_SUPPLIED, 1e6))
    )
    assert achieved(work_with_peaks(CPU, None), SuppliedWork(nbytes=1), 1e6).of_bandwidth is None


def test_a_narrow_interval_is_not_said_to_miss_its_width(nap: Bench) -> None:
    assert nap.summary.mean
    calm = replace(nap.summary, std=0.01 * nap.summary.mean.value)
    unsteady = replace(nap, reached=False, steady=False, precision=0.005, summary=calm)
    narrow = "\n".join(bench_lines(replace(unsteady, time=Interval(value=100.0, low=99.9, high=100.1))))
    assert "within ±0.5%, but not steady: raise --time" in narrow
    wide = "\n".join(bench_lines(replace(unsteady, time=Interval(value=100.0, low=99.0, high=101.0))))
    assert "not yet within ±0.5%: raise --time" in wide
    scattered = replace(nap.summary, std=0.2 * nap.summary.mean.value)
    noisy = "\n".join(
        bench_lines(replace(unsteady, time=Interval(value=100.0, low=99.0, high=101.0), summary=scattered))
    )
    assert "not yet within ±0.5%: measure on a quieter machine, or raise --time" in noisy


def test_few_samples_are_not_said_to_hold_the_median_95_times_of_100(nap: Bench) -> None:
    assert "95% interval" in "\n".join(bench_lines(nap))
    few = "\n".join(bench_lines(replace(nap, samples=nap.samples[:3])))
    assert "the range of 3 samples, too few for a 95% interval" in few

    def interval(samples: list[float]) -> str:
        return sweep_lines([replace(nap, samples=samples, point={"n": "1"})])[2].split("|")[3].strip()

    assert re.fullmatch(r"[\d.]+ .s – [\d.]+ .s", interval(nap.samples))
    assert interval(nap.samples[:3]).endswith(" (range of 3)")
    assert interval(nap.samples[:1]) == "–"


def test_it_is_in_every_form_of_the_report(nap: Bench) -> None:
    on_chip = replace(
        nap,
        work=achieved(work_with_peaks(H100, "bf16"), SuppliedWork(1e12, "bf16", 1e9), 2e6),
        point={"n": "1"},
        samples_per_step=8,
    )
    for text in ("\n".join(bench_lines(on_chip)), "\n".join(markdown_lines(on_chip)), unescape(bench_page([on_chip]))):
        assert "500 TFLOP/s, 50.5% of the chip's bf16 rate" in text
        assert "500 GB/s, 14.9% of the chip's memory bandwidth" in text
    over = replace(nap, work=achieved(work_with_peaks(H100, None), SuppliedWork(nbytes=1e10), 2e6))
    assert "149.3% of the chip's memory bandwidth: caches served the rest" in "\n".join(bench_lines(over))

    failed = Failed(
        target="f", status="failed", error="no room", exit_code=4, samples=[1e6], summary=None, point={"n": "2"}
    )
    table = sweep_lines([on_chip, failed])
    assert [cell.strip() for cell in table[0].split("|")[4:7]] == ["samples/s", "FLOP/s", "B/s"]
    assert len({line.rindex("|") for line in table}) == 1  # it is read in a terminal, too
    assert "| 500 TFLOP/s | 500 GB/s |" in table[2]
    assert {line.count("|") for line in table} == {8}
    head, first, *_, last = samples_csv([on_chip, failed]).splitlines()
    assert head == "workload,n,step,ns,flops_per_second,bytes_per_second"
    assert float(first.split(",")[4]) == pytest.approx(1e12 / nap.samples[0] * 1e9)
    assert last == "f,2,0,1000000.0,,"


def test_what_is_not_known_is_not_printed(nap: Bench) -> None:
    told = "\n".join(bench_lines(nap))
    assert "FLOP/s" in told
    assert "B/s" in told
    assert "chip's" not in told  # no peaks of a CPU are known
    silent = replace(nap, work=achieved(work_with_peaks(CPU, None), NOTHING_SUPPLIED, 2e6), point={})
    for text in ("\n".join(bench_lines(silent)), "\n".join(markdown_lines(silent)), samples_csv([silent])):
        assert "B/s" not in text
        assert "per_second" not in text
    head = sweep_lines([replace(silent, point={"n": "1"}, samples_per_step=None)])[0]
    assert "B/s" not in head
    assert "samples/s" not in head


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"flops": -1}, "-1 is not an amount"),
        ({"nbytes": float("inf")}, "inf is not an amount"),
        ({"flops": 1, "flops_in": "float16"}, "no precision 'float16'"),
        ({"flops_in": "bf16"}, "give both"),
    ],
)
def test_work_that_is_none_is_told_in_a_sentence(how: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rung.bench(lambda: None, **how)
