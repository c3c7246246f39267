"""How fast does a large tensor get from a GPU into memory that is new to the process, and back? By torch alone, and as a verification does it.

    python benchmarks/measurement/host_copies.py [--gib 1]

Four bytes an element; each way is taken three times. Needs a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from rung.verify.host_transfers import to_device, to_host


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    given = torch.rand(int(parser.parse_args().gib * 2**28), device="cuda")
    held = given.cpu()
    assert torch.equal(to_host(given), held)
    assert torch.equal(to_device(held, "cuda"), given)
    print(f"{torch.cuda.get_device_name()}, {torch.get_num_threads()} threads")
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "to the host, by torch": lambda: given.to("cpu"),
        "to the host, through buffers": lambda: to_host(given),
        "to the GPU, by torch": lambda: held.to("cuda"),
        "to the GPU, through buffers": lambda: to_device(held, "cuda"),
    }
    for what, way in ways.items():
        print(f"{what:30}", " ".join(f"{rate(way, given.nbytes):5.1f}" for _ in range(3)), "GB/s")
    return 0


def rate(way: Callable[[], torch.Tensor], size: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    way()
    torch.cuda.synchronize()
    return size / (time.perf_counter() - began) / 1e9


if __name__ == "__main__":
    raise SystemExit(main())
