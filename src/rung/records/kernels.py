"""What `rung kernels list` and `inspect` print with --json: the kernels there are, and what kernels take of a GPU."""

from __future__ import annotations

from rung.records.record import SCHEMA, Part


class Function(Part, kw_only=True):
    """A function of `rung.kernels`: what it computes, and the kernels behind it."""

    name: str
    computes: str
    kernels: list[str]


class Kernels(Part, kw_only=True, tag_field="kind", tag="kernels"):
    """`rung kernels list`."""

    schema: int = SCHEMA
    kernels: list[Function]


class Resources(Part):
    """One kernel on one architecture. registers: of a thread (AMD: VGPRs, accumulation registers among them); agprs, sgprs: AMD only;
    spills: registers that went to memory (AMD), bytes of a thread's stack that hold them (NVIDIA); scratch: bytes of a thread's private
    memory; shared: bytes of LDS or shared memory of a program; warps: of a program (waves on AMD); config: what it was compiled with.

    waves: resident on a SIMD (AMD) or multiprocessor (NVIDIA) at most, of `most`; limit: what bounds it; null: unknown.
    """

    kernel: str
    arch: str
    config: str
    warps: int
    registers: int
    spills: int
    scratch: int
    shared: int
    agprs: int | None = None
    sgprs: int | None = None
    waves: float | None = None
    most: int | None = None
    limit: str | None = None
    source: str = ""


class Inspected(Part, kw_only=True, tag_field="kind", tag="kernel resources"):
    """`rung kernels inspect`. failed: a sentence for each kernel that could not be compiled or read."""

    schema: int = SCHEMA
    rows: list[Resources]
    failed: list[str]
