"""What cuDNN's (or MIOpen's) search and the channels-last layout give convolutions, with nothing compiled.

    python benchmarks/ladder/convolutions.py KernelBench/KernelBench

DIR is the folder of a KernelBench checkout that has level1; its convolutions and five networks of level 3 are timed, in inference, with TF32.
Each line: milliseconds of a step as it is, then how many times as fast it is with `torch.backends.cudnn.benchmark`, with weights in
channels-last layout, and with both. The median of nine steps by the GPU's clock, after three others.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rung.engine.channels_last import ChannelsLast

NETWORKS = ("9_ResNet18", "15_DenseNet121", "18_SqueezeNet", "22_EfficientNetB0", "27_RegNet")
WARM, STEPS = 3, 9


def problems(folder: Path) -> list[Path]:
    found = sorted(folder.glob("level1/*conv*.py"), key=lambda path: int(path.name.split("_")[0]))
    if not found:
        raise SystemExit(f"{folder} has no level1/*conv*.py: give the folder KernelBench of a KernelBench checkout.")
    return [*found, *(folder / "level3" / f"{name}.py" for name in NETWORKS)]


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"problem_{path.stem}", path)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def median_ms(step: Callable[[], Any]) -> float:
    for _ in range(WARM):
        step()
    took = []
    for _ in range(STEPS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end))
    return statistics.median(took)


@torch.no_grad()
def timed(path: Path) -> list[float]:
    """Milliseconds as it is, with the search, with the layout, with both."""
    problem = module(path)
    torch.manual_seed(0)
    model = problem.Model(*problem.get_init_inputs()).cuda().eval()
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.get_inputs()]
    found = []
    for layout in (False, True):
        if layout:
            ChannelsLast(model)
        for search in (False, True):
            torch.backends.cudnn.benchmark = search
            found.append(median_ms(lambda: model(*inputs)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    folder = parser.parse_args().folder
    torch.set_float32_matmul_precision("high")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for path in problems(folder):
        try:
            plain, *others = timed(path)
        except torch.OutOfMemoryError:
            print(f"{path.stem[:60]:60} out of memory", flush=True)
        else:
            ratios = "  ".join(
                f"{name} {plain / ms:5.2f}x" for name, ms in zip(("search", "layout", "both"), others, strict=True)
            )
            print(f"{path.stem[:60]:60} {plain:8.3f} ms  {ratios}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
