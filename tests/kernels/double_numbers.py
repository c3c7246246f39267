"""Run in a process of its own, where kernels are no interpreter's: what of each kernel is computed in float64 where its numbers come in
float64, as Inductor passes them; a JSON object from the kernel to lines of Triton's IR, of every kernel that takes numbers."""

import json
from typing import Any

from triton.backends import backends

from rung.kernels.resources import compile as compiling
from rung.kernels.resources import own
from rung.kernels.resources.inspect import _function

CUDABackend = backends["nvidia"].compiler  # Triton 3.2 loads a class of its own, not the module's
stages = CUDABackend.add_stages


class FirstStage(BaseException):
    """Triton's own IR. It ends the compilation: the later stages take the most time, and a kernel without them is none
    that Triton could load or cache."""


def first_alone(self: Any, found: dict[str, Any], *rest: Any) -> None:
    stages(self, found, *rest)
    make = found["ttir"]

    def make_and_end(source: Any, metadata: dict[str, Any]) -> None:
        raise FirstStage(str(make(source, metadata)))

    found["ttir"] = make_and_end


CUDABackend.add_stages = first_alone
seen: dict[str, list[str]] = {}
variants = set()
for launch in own.launches(32):
    variant = launch.kernel, launch.values.get("DROPOUT")
    if variant in variants or not any(isinstance(value, float) for value in launch.values.values()):
        continue
    variants.add(variant)
    values = {k: "fp64" if isinstance(v, float) else v for k, v in launch.values.items()}
    try:
        compiling.compile_for("sm90", launch.name, _function(launch), values)
    except FirstStage as stage:
        computed = [line.strip() for line in str(stage).splitlines() if "f64" in line and "tt.func" not in line]
        seen.setdefault(launch.kernel, []).extend(line for line in computed if "arith.truncf" not in line)
print(json.dumps(seen))
