"""What of a launch configuration may be otherwise, with the same result but for the order of sums."""

from __future__ import annotations

from collections.abc import Iterator

from rung.kernels.tuned import Config

STAGES = (1, 2, 3)  # rows on their way at once, where a kernel has that
WAVES = (2, 4, 8)  # waves on a SIMD that AMD's compiler is told to leave registers for
THREADS = 1024  # of a program, at most
EACH = 128  # elements of a tile that a thread has, at most


def variations(kernel: str, config: Config, warp: int, amd: bool) -> Iterator[Config]:
    """The configurations that differ from this one in one thing. warp: threads of a warp (a wave).

    Of the sizes of a tile those that only say how much of the work one program takes: not the columns of a norm that keeps
    whole rows, nor of a head.
    """
    whole = "norm" in kernel and not kernel.endswith("_long")
    sizes = [n for n in ("ROWS", "HEADS", "BLOCK") if n in config and not (whole and n == "BLOCK")]
    for name in (*sizes, "num_warps"):
        for size in (config[name] // 2, config[name] * 2):
            if size and _fits(other := {**config, name: size}, warp):
                yield other
    for count in STAGES if "STAGES" in config else ():
        if count != config["STAGES"]:
            yield {**config, "STAGES": count}
    for waves in WAVES if amd else ():
        if waves != config.get("waves_per_eu"):
            yield {**config, "waves_per_eu": waves}


def _fits(config: Config, warp: int) -> bool:
    threads = config["num_warps"] * warp
    tile = config.get("ROWS", 1) * config.get("HEADS", 1) * config.get("BLOCK", config.get("HALF", 1))
    return threads <= THREADS and threads <= tile <= EACH * threads
