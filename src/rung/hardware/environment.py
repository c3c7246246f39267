"""What a measurement ran on and with, for the record. Nothing here may hold a secret."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rung.hardware.device import Device, matmul_precision_name

# Only variables known to change speed or numerics are recorded: an environment may hold tokens.
RECORDED = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "GPU_MAX_HW_QUEUES", "HIP_FORCE_DEV_KERNARG", "HSA_NO_SCRATCH_RECLAIM", "TORCH_BLAS_PREFER_HIPBLASLT",
    "PYTORCH_TUNABLEOP_ENABLED", "PYTORCH_TUNABLEOP_TUNING", "MIOPEN_FIND_MODE", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
    "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_FREEZING", "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
)  # fmt: skip


def environment(device: Device) -> dict[str, Any]:
    """Versions, device and settings, as plain values that go into JSON."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": asdict(device),
        **_of_torch(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "variables": {name: os.environ[name] for name in RECORDED if name in os.environ},
        "git": git_revision(Path.cwd()),
    }


def _of_torch() -> dict[str, Any]:
    """Nothing where torch is not loaded: a plain function needs none."""
    torch = sys.modules.get("torch")
    if not torch:
        return {}
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": matmul_precision_name(),
    }


def git_revision(folder: Path) -> str | None:
    """The commit checked out in a folder, with '+' when there are changes; None outside a repository."""
    try:
        run = lambda *args: subprocess.run(  # noqa: E731
            ["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
        return run("rev-parse", "--short=12", "HEAD") + ("+" if run("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
