"""A module `aiter` as far as its documentation goes: `tuned_gemm.gemm_a16w16` as an operator with a fake, its lookup,
and tables in the form of ROCm/aiter's aiter/configs/bf16_tuned_gemm.csv. It computes on the CPU and keeps count."""

import sys
from pathlib import Path
from typing import Optional

import torch


def _gemm_a16w16(
    A: torch.Tensor,
    B: torch.Tensor,
    bias: Optional[torch.Tensor] = None,  # noqa: UP045 (older torch reads these annotations as they are)
    otype: Optional[torch.dtype] = None,  # noqa: UP045
    scale_a: Optional[torch.Tensor] = None,  # noqa: UP045
    scale_b: Optional[torch.Tensor] = None,  # noqa: UP045
    scale_c: Optional[torch.Tensor] = None,  # noqa: UP045
) -> torch.Tensor:
    return sys.modules["aiter.tuned_gemm"].computed(A, B, bias)


# An operator is registered once a process. The real one says, too, that it writes to all of its arguments.
_library = torch.library.Library("aiter", "FRAGMENT")
_library.define("gemm_a16w16" + torch.library.infer_schema(_gemm_a16w16, mutates_args="unknown"))
_library.impl("gemm_a16w16", _gemm_a16w16, dispatch_key="CPU")

SOURCE = """
import csv, os, torch
import torch.nn.functional as F

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "configs", "bf16_tuned_gemm.csv")
GFX, CU_NUM = "gfx942", 304
ABSENT = {absent!r}
calls = []


def get_GEMM_A16W16_config(M, N, K, bias, dtype, otype, scaleAB=False, bpreshuffle=False):
    with open(os.environ.get("AITER_CONFIG_GEMM_BF16", TABLE)) as lines:
        for row in csv.DictReader(lines):
            wanted = (GFX, str(CU_NUM), str(N), str(K), str(bias), dtype, otype, str(scaleAB), str(bpreshuffle))
            names = ("gfx", "cu_num", "N", "K", "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle")
            same = tuple(row[name] for name in names) == wanted and int(row["M"]) in (M, -(-M // 16) * 16)
            if same and row["libtype"] not in ABSENT:
                return row
    return {{"libtype": "skinny" if M <= 4 and N <= CU_NUM else "torch", "solidx": 0, "kernelName": ""}}


def computed(A, B, bias):
    found = get_GEMM_A16W16_config(A.shape[0], B.shape[0], A.shape[1], bias is not None, str(A.dtype), str(A.dtype))
    calls.append((tuple(A.shape), B.shape[0], found["libtype"]))
    return F.linear(A, B, bias)


def gemm_a16w16(*args, **kwargs):
    return torch.ops.aiter.gemm_a16w16(*args, **kwargs)
"""

HEADER = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw"
)


def row(m: int, n: int, k: int, library: str, *, bias: bool = False, gfx: str = "gfx942", cu: int = 304,
        out: str = "torch.bfloat16", us: float = 9.5) -> str:  # fmt: skip
    return f"{gfx},{cu},{m},{n},{k},{bias},torch.bfloat16,{out},False,False,{library},5,1,{us},a_kernel,0.0,21.2,417.9"


def write_aiter(root: Path, rows: list[str], absent: tuple[str, ...] = ()) -> Path:
    """The package in `root`, with one table of these rows; absent: libraries whose rows it passes over."""
    package = root / "aiter"
    (package / "configs" / "model_configs").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tuned_gemm.py").write_text(SOURCE.format(absent=absent))
    (package / "configs" / "bf16_tuned_gemm.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return package
