"""`ranks(4)` starts four ranks for a test: forks of one process that has loaded torch, which would take each of them seconds."""

import gc
import os
import runpy
import sys
from pathlib import Path

from rung.launch import launcher
from rung.side import Launcher


def ranks(count: int) -> Launcher:
    return launcher(f"{sys.executable} {__file__} {count}")


def importable(test: str) -> dict[str, str]:
    """Variables of ranks that import what lies beside a test's file, and beside this one."""
    folders = [str(Path(file).parent) for file in (test, __file__)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))}


def main(count: int, script: str, *words: str) -> None:
    """Runs a Python script in so many processes, as its ranks."""
    started = []
    for rank in range(count):
        if (child := os.fork()) == 0:
            for name, value in {"RANK": rank, "SIZE": count, "LOCAL_RANK": rank}.items():
                os.environ[f"OMPI_COMM_WORLD_{name}"] = str(value)
            sys.argv, sys.path[0] = [script, *words], os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
            sys.exit()
        started.append(child)
    sys.exit(max(os.waitpid(child, 0)[1] != 0 for child in started))


if __name__ == "__main__":
    gc.disable()
    import torch._dynamo  # optimizers load it
    import torch.distributed.fsdp  # noqa: F401

    gc.freeze()
    gc.enable()
    main(int(sys.argv[1]), *sys.argv[3:])
