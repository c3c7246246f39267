"""Facts of the GPU that formulas need, as a trace states them, and its peaks by level of memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rung.analysis.counters.formulas import formulas
from rung.hardware.peaks import Peaks, find
from rung.trace.table import Trace

# What each fact is called by rocprof-compute's sysinfo.csv and by rocprofv3's agents.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "cu": ("cu_per_gpu", "cu_count"),
    "simd": ("simd_per_cu",),
    "xcd": ("num_xcd", "num_xcc"),
    "wave": ("wave_size", "wave_front_size"),
    "waves_per_cu": ("max_waves_per_cu",),
    "banks": ("lds_banks_per_cu",),
    "clock": ("max_sclk", "max_engine_clk_fcompute"),
    "channels": ("total_l2_chan",),
}
_USUAL = {"simd": 4.0, "xcd": 1.0, "wave": 64.0, "banks": 32.0, "tick": 4.0}
_MEASURED = {"hbm": "hbmbw", "infinity cache": "mallbw", "l2": "l2bw", "l1": "l1bw", "lds": "ldsbw"}  # roofline.csv


@dataclass(frozen=True)
class Gpu:
    """arch: 'gfx942', '' where the trace does not say; facts: by the names of formulas.toml, those that are known;
    peaks: the row of peaks.toml, if there is one; bandwidth, measured: bytes/s by level, theoretical and as a benchmark
    on this machine found them (roofline.csv); measured also has FLOP/s as "fp32" (vector) and "mfma fp16"."""

    arch: str
    facts: Mapping[str, float]
    peaks: Peaks | None
    bandwidth: Mapping[str, float]
    measured: Mapping[str, float]


def gpu_of(trace: Trace, device: int | None) -> Gpu:
    """The GPU at a position of the trace's devices; the first where the position names none."""
    place = device if device is not None and 0 <= device < len(trace.devices) else 0
    properties: Mapping[str, Any] = trace.devices[place] if trace.devices else {}
    arch = _arch(properties)
    known = formulas().arch
    own = next((known[prefix] for prefix in sorted(known, key=len, reverse=True) if arch.startswith(prefix)), {})
    facts = _USUAL | {key: float(value) for key, value in own.items()}
    for fact, keys in _KEYS.items():
        found = next((v for v in (_number(properties.get(key)) for key in keys) if v), None)
        if found:
            facts[fact] = found
    peaks = _peaks(properties, arch, int(facts.get("cu", 0)))
    return Gpu(arch, facts, peaks, _bandwidth(facts, peaks, properties), _measured(trace, place))


def _arch(properties: Mapping[str, Any]) -> str:
    for key in ("gpu_arch", "gcnArch", "gcnArchName", "name"):
        named = re.match(r"gfx[0-9a-f]+", str(properties.get(key) or ""))
        if named:
            return named[0]
    version = int(_number(properties.get("gfx_target_version")) or 0)  # 90402: 9, 4, 2; the last in hexadecimal
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _peaks(properties: Mapping[str, Any], arch: str, units: int) -> Peaks | None:
    names = [str(properties.get(key) or "") for key in ("product_name", "gpu_model", "name")]
    memory = _memory(properties)
    named = (find(name, arch, units, memory) for name in names if name and not name.startswith("gfx"))
    # rocprof-compute writes the series, MI200, at times: then architecture, units and memory decide.
    return next((row for row in named if row), None) or (find("", arch, units, memory) if arch and units else None)


def _memory(properties: Mapping[str, Any]) -> int:
    """Bytes of its memory, as the agents of rocprofv3 say in JSON; 0 where nothing does."""
    banks = properties.get("mem_banks")
    if not isinstance(banks, list):
        return 0
    sizes = [_number(bank.get("size_in_bytes")) for bank in banks if isinstance(bank, dict)]
    return int(max((size for size in sizes if size), default=0.0))


def _bandwidth(facts: Mapping[str, float], peaks: Peaks | None, properties: Mapping[str, Any]) -> dict[str, float]:
    hbm = peaks.bandwidth if peaks else (_number(properties.get("hbm_bw")) or 0.0) * 1e9
    infinity = (peaks.cache_bandwidth or 0.0) if peaks else 0.0
    clock = facts.get("clock", 0.0) * 1e6
    levels = {
        "hbm": hbm,
        "infinity cache": infinity,
        "l2": clock * facts.get("l2_peak", 0.0) * facts.get("channels", 0.0),
        "l1": clock * facts.get("l1_peak", 0.0) * facts.get("cu", 0.0),
        "lds": clock * facts.get("lds_peak", 0.0) * facts.get("cu", 0.0),
    }
    return {level: rate for level, rate in levels.items() if rate > 0}


def _measured(trace: Trace, place: int) -> dict[str, float]:
    """The row of roofline.csv with this device's number, else the first: GB/s and GFLOP/s there."""
    rows = trace.meta.get("roofline") or []
    if not rows:
        return {}
    lowered = [{str(key).casefold(): _number(value) for key, value in row.items()} for row in rows]
    row = next((row for row in lowered if row.get("device") == place), lowered[0])
    found = {level: row.get(title) for level, title in _MEASURED.items()}
    for kind in ("fp16", "fp32", "fp64"):
        found[kind] = row.get(f"{kind}flops")
    for kind, title in {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "fp64": "f64", "fp8": "f8", "fp6": "f6"}.items():
        found[f"mfma {kind}"] = row.get(f"mfma{title}flops")
    return {key: value * 1e9 for key, value in found.items() if value}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
