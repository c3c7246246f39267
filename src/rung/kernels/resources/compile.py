"""A Triton kernel compiled for an architecture that need not be here, and what it takes there."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rung.errors import UsageError, WorkloadError
from rung.kernels.resources.binaries import amdgcn, cubin, with_occupancy
from rung.records.kernels import Resources

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950", "sm90", "sm100")
OPTIONS = ("num_warps", "num_stages", "num_ctas", "waves_per_eu", "matrix_instr_nonkdim", "kpack", "maxnreg")
_AMD_ONLY = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
_NVIDIA_ONLY = ("maxnreg",)


def architectures(text: str) -> tuple[str, ...]:
    """`gfx942,sm90` as names. Raises UsageError for what is neither AMD's nor NVIDIA's form."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not re.fullmatch(r"gfx[0-9a-f]{3,4}|sm\d{2,3}", name):
            raise UsageError(f"--arch {name}: write architectures as in gfx942,sm90.")
    return names


def warp_size(arch: str) -> int:
    """Threads of a wave: 64 on gfx9, else 32."""
    return 64 if arch.startswith("gfx9") else 32


def need_triton() -> None:
    """One sentence where kernels cannot be compiled here. Raises UsageError."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise UsageError("TRITON_INTERPRET=1 is set: kernels of an interpreter cannot be compiled; unset it.")
    try:
        import triton  # noqa: F401
    except ImportError:
        raise UsageError(
            "compiling needs Triton, which is not installed: it comes with PyTorch's builds for ROCm and CUDA, and on a "
            "machine without a GPU `pip install triton==3.7.1` fits torch 2.13."
        ) from None


class Specialised(NamedTuple):
    """A kernel's arguments as Triton sees them at a launch: a type, a constant or attributes by the argument's name."""

    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict[str, list[list[Any]]]
    options: dict[str, Any]


def compile_for(
    arch: str, name: str, kernel: Any, values: Mapping[str, Any], source: str = "", config: str | None = None
) -> Resources:
    """Compiles the kernel with these arguments and reads what it takes.

    kernel: a `triton.JITFunction`. values: an argument by its name, as in a call: a tensor (its dtype counts, so the
    meta device will do) or the name of a type (`*bf16`, `i32`), a number, the value of a constexpr; besides,
    `num_warps` and other OPTIONS. As at a launch, integers divisible by 16 and pointers are taken to be aligned and an
    integer that is 1 to be constant. Raises UsageError for arguments that do not fit, WorkloadError where compiling fails.
    """
    found = _specialised(name, kernel, values)
    if config is None:
        blocks = {k: v for k, v in found.constants.items() if k.isupper()}
        config = _words({**blocks, **found.options})
    return build(arch, name, kernel, found, source, config)


def build(arch: str, name: str, kernel: Any, found: Specialised, source: str, config: str) -> Resources:
    """The same where the arguments are known as Triton sees them."""
    need_triton()
    import triton
    from triton.backends.compiler import GPUTarget

    amd = arch.startswith("gfx")
    options = {k: v for k, v in found.options.items() if k not in (_NVIDIA_ONLY if amd else _AMD_ONLY)}
    target = GPUTarget("hip", arch, warp_size(arch)) if amd else GPUTarget("cuda", int(arch[2:]), 32)
    ast = _ast_source(kernel, found)
    try:
        built = triton.compile(ast, target=target, options=options)
    except Exception as error:
        raise WorkloadError(f"{name} does not compile for {arch}: {_reason(error)}") from error
    return resources(built.asm, built.metadata._asdict(), name, arch, config, source)


def _reason(error: Exception) -> str:
    """The line that says why compiling failed: the assembler's, which stands before the command to repeat it, else the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    fatal = (line for line in lines if line.startswith(("ptxas fatal", "ptxas error")))
    return next(fatal, lines[-1])[:300]


def _ast_source(kernel: Any, found: Specialised) -> Any:
    """What Triton compiles. Triton 3.2, which torch 2.6 comes with, has other names for it and counts arguments by number."""
    from triton.compiler import ASTSource

    position = {argument: (k,) for k, argument in enumerate(kernel.arg_names)}
    if "constexprs" in inspect.signature(ASTSource).parameters:
        return ASTSource(
            fn=kernel,
            signature=found.signature,
            constexprs={position[k]: v for k, v in found.constants.items()},
            attrs={position[k]: v for k, v in found.attributes.items()},
        )
    from triton.backends.compiler import AttrsDescriptor

    divisible = {position[k][0]: 16 for k in found.attributes}
    return ASTSource(
        fn=kernel,
        signature={k: v for k, v in found.signature.items() if k not in found.constants},
        constants=found.constants,
        attrs=AttrsDescriptor.from_hints(divisible),
    )


def resources(
    asm: Mapping[str, Any], metadata: Mapping[str, Any], name: str, arch: str, config: str, source: str
) -> Resources:
    """What the compiler's results say: asm has `amdgcn` text or `cubin` bytes; metadata `num_warps` and `shared`."""
    found: dict[str, Any] = amdgcn(asm["amdgcn"]) if "amdgcn" in asm else cubin(asm["cubin"])
    shared = max(found.pop("shared", 0), int(metadata["shared"]))
    return with_occupancy(
        Resources(name, arch, config, int(metadata["num_warps"]), shared=shared, source=source, **found)
    )


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in values.items())


def _specialised(name: str, kernel: Any, values: Mapping[str, Any]) -> Specialised:
    """What Triton would find at a launch with these."""
    missing = [p.name for p in kernel.params if p.name not in values and not p.has_default]
    unknown = [k for k in values if k not in kernel.arg_names and k not in OPTIONS]
    if missing or unknown:
        # The unknown first: a misspelt name is missing, too, and that alone would not say why.
        what = f"has no argument {', '.join(unknown)}" if unknown else f"lacks {', '.join(missing)}"
        raise UsageError(f"{name} {what}; its arguments are {', '.join(kernel.arg_names)}.")
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[str, list[list[Any]]] = {}
    for p in kernel.params:
        value = values.get(p.name, p.default if p.has_default else None)
        if p.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[p.name], constants[p.name] = "constexpr", value
            continue
        kind = signature[p.name] = _type(name, p.name, value)
        if kind.startswith("*") or (type(value) is int and value % 16 == 0):
            attributes[p.name] = [["tt.divisibility", 16]]
    options = {k: v for k, v in values.items() if k in OPTIONS and k not in kernel.arg_names}
    return Specialised(signature, constants, attributes, options)


_POINTERS = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "i1", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
}  # fmt: skip


def _type(name: str, argument: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if hasattr(value, "dtype") and hasattr(value, "data_ptr"):
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype in _POINTERS:
            return f"*{_POINTERS[dtype]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise UsageError(
        f"{name}: {argument} is {value!r}; give a tensor, a number or the name of a type, as *bf16 or i32."
    )
