"""Run in a process of its own, where kernels are no interpreter's: what of each kernel is computed in float64 where its numbers come in
float64, as Inductor passes them; a JSON object from the kernel to lines of Triton's IR, of every kernel that takes numbers."""

import json
from typing import Any

from triton.backends.nvidia.compiler import CUDABackend

from rung.kernels.resources import compile as compiling
from rung.kernels.resources import own
from rung.kernels.resources.inspect import _function

compiling.resources = lambda asm, *_: asm["ttir"]
stages = CUDABackend.add_stages


def first_alone(self: CUDABackend, found: dict[str, Any], *rest: Any) -> None:
    """Nothing is asked of what is made of Triton's own IR, which takes the most time."""
    stages(self, found, *rest)
    for name in [name for name in found if name != "ttir"]:
        del found[name]


CUDABackend.add_stages, CUDABackend.binary_ext = first_alone, "ttir"
seen: dict[str, list[str]] = {}
for launch in own.launches(32):
    if launch.kernel in seen or not any(isinstance(value, float) for value in launch.values.values()):
        continue
    values = {k: "fp64" if isinstance(v, float) else v for k, v in launch.values.items()}
    ir = compiling.compile_for("sm90", launch.name, _function(launch), values)
    computed = [line.strip() for line in ir.splitlines() if "f64" in line and "tt.func" not in line]
    seen[launch.kernel] = [line for line in computed if "arith.truncf" not in line]
print(json.dumps(seen))
