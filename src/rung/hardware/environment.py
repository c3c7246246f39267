"""What a measurement ran on and with, for the record. Nothing here may hold a secret."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rung.hardware.device import Device, matmul_precision_name
from rung.hardware.state import state

# Only variables known to change speed or numerics are recorded: an environment may hold tokens.
RECORDED = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "GPU_MAX_HW_QUEUES", "HIP_FORCE_DEV_KERNARG", "HSA_NO_SCRATCH_RECLAIM", "TORCH_BLAS_PREFER_HIPBLASLT",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "PYTORCH_TUNABLEOP_ENABLED", "PYTORCH_TUNABLEOP_TUNING", "MIOPEN_FIND_MODE", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
    "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_FREEZING", "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
)  # fmt: skip

VOLATILE = ("time", "now")
INDUCTOR = (
    "max_autotune", "max_autotune_gemm", "max_autotune_gemm_backends", "coordinate_descent_tuning", "freezing",
    "epilogue_fusion", "cpp_wrapper", "fx_graph_cache", "force_disable_caches", "shape_padding",
)  # fmt: skip


def environment(device: Device, *, briefly: bool = False) -> dict[str, Any]:
    """Versions, device and settings, as plain values that go into JSON. briefly: without what other programs are asked for (the settings
    and the load of the machine, and the commit)."""
    found = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": asdict(device),
        **_of_torch(),
        "python": platform.python_version(),
        "variables": {name: os.environ[name] for name in RECORDED if name in os.environ},
    }
    if briefly:
        return found
    settings, now = state(device)
    return {
        **found,
        "platform": platform.platform(),
        "settings": settings,
        "now": now,
        "git": git_revision(Path.cwd()),
    }


def _of_torch() -> dict[str, Any]:
    """Nothing where torch is not loaded: a plain function needs none."""
    torch = sys.modules.get("torch")
    if not torch:
        return {}
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": matmul_precision_name(),
        "blas": _blas(torch),
        "inductor": _inductor(),
    }


def _blas(torch: Any) -> dict[str, Any]:
    """What matrix products and convolutions go to, and with which liberties."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found: dict[str, Any] = {
        "cudnn_benchmark": cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
    }
    if torch.cuda.is_available():
        with contextlib.suppress(Exception):  # what an older torch does not know is left out
            found["library"] = str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2]
        with contextlib.suppress(Exception):
            found["tunable"] = torch.cuda.tunable.is_enabled()
    else:
        found["library"] = "mkl" if torch.backends.mkl.is_available() else "other"
        found["mkldnn"] = torch.backends.mkldnn.is_available()
    return found


def _inductor() -> dict[str, Any]:
    """The settings of the compiler in effect, where it is loaded: set in code, they are in no variable."""
    config = sys.modules.get("torch._inductor.config")
    found = {name: getattr(config, name, None) for name in INDUCTOR} if config else {}
    if config:
        found["cudagraphs"] = getattr(getattr(config, "triton", None), "cudagraphs", None)
    return {name: value for name, value in found.items() if isinstance(value, (bool, int, str))}


def differences(environments: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """What is not the same in all of them, but for what changes by itself: the name (a nested one by its path), and
    the value in each."""
    flat = [_flat({k: v for k, v in e.items() if k not in VOLATILE}) for e in environments]
    names = dict.fromkeys(name for e in flat for name in e)
    found = {name: [e.get(name) for e in flat] for name in names}
    return {name: values for name, values in found.items() if any(v != values[0] for v in values)}


def _flat(record: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.items():
        found |= _flat(value, f"{path}{name}.") if isinstance(value, Mapping) else {f"{path}{name}": value}
    return found


def _git(folder: Path, *what: str) -> str:
    asked = subprocess.run(["git", "-C", str(folder), *what], capture_output=True, text=True, timeout=5, check=True)
    return asked.stdout.strip()


def git_revision(folder: Path) -> str | None:
    """The commit checked out in a folder, with '+' when there are changes; None outside a repository."""
    try:
        revision, changed = (
            _git(folder, "rev-parse", "--short=12", "HEAD"),
            _git(folder, "status", "--porcelain", "-uno"),
        )
        return revision + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
