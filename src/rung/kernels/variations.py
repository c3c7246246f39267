"""What of a launch configuration may be otherwise, with the same result but for the order of sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rung.kernels.resources.compile import warp_size

Config = dict[str, Any]
STAGES = (1, 2, 3)  # rows on their way at once, where a kernel has that
WAVES = (2, 4, 8)  # waves on a SIMD that AMD's compiler is told to leave registers for
THREADS = 1024  # of a program, at most
EACH = 128  # elements of a tile that a thread has, at most


def variations(kernel: str, config: Config, warp: int, amd: bool) -> Iterator[Config]:
    """The configurations that differ from this one in one thing. warp: threads of a warp (a wave)."""
    for name in (*_sizes(kernel, config), "num_warps"):
        for size in (config[name] // 2, config[name] * 2):
            if size and _fits(other := {**config, name: size}, warp):
                yield other
    for count in STAGES if "STAGES" in config else ():
        if count != config["STAGES"]:
            yield {**config, "STAGES": count}
    for waves in WAVES if amd else ():
        if waves != config.get("waves_per_eu"):
            yield {**config, "waves_per_eu": waves}


def refused(kernel: str, rule: Mapping[str, Any], use: Mapping[str, Any], arch: str) -> str:
    """Why `use` is nothing that variations of the rule lead to; "" where it is. arch: 'gfx942' or 'sm90'."""
    amd = arch.startswith("gfx")
    free = {*_sizes(kernel, rule), "num_warps", "STAGES"}
    for name in {**rule, **use}:
        value = use.get(name)
        if name == "waves_per_eu" and amd and name not in rule:
            good = value in WAVES
        elif name == "STAGES" and name in rule:
            good = value in STAGES
        elif name in free and name in rule:
            good = type(value) is int and value > 0 and value & (value - 1) == 0
        else:
            good = name in rule and value == rule[name]
        if not good:
            return f"{name} = {value}"
    return "" if _fits(use, warp_size(arch)) else f"num_warps = {use['num_warps']}"


def _sizes(kernel: str, config: Mapping[str, Any]) -> list[str]:
    """Those of a tile's sizes that only say how much of the work one program takes: not the columns of a norm that keeps whole
    rows, nor of a head."""
    whole = "norm" in kernel and not kernel.endswith("_long")
    return [name for name in ("ROWS", "HEADS", "BLOCK") if name in config and not (whole and name == "BLOCK")]


def _fits(config: Mapping[str, Any], warp: int) -> bool:
    threads = config["num_warps"] * warp
    tile = config.get("ROWS", 1) * config.get("HEADS", 1) * config.get("BLOCK", config.get("HALF", 1))
    return bool(threads <= THREADS and threads <= tile <= EACH * threads)
