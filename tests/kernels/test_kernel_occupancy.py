"""How many waves fit, and what is read out of binaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InputError
from rung.kernels.resources.binaries import amdgcn, cubin, limits, with_occupancy
from rung.records.kernels import Resources


def kernel(arch: str, warps: int, registers: int, shared: int = 0) -> Resources:
    return with_occupancy(Resources("k", arch, "", warps, registers, 0, 0, shared))


@pytest.mark.parametrize(
    ("arch", "warps", "registers", "shared", "waves", "limit"),
    [
        ("gfx942", 4, 64, 0, 8, "nothing"),
        ("gfx942", 4, 65, 0, 7, "registers"),
        ("gfx942", 4, 81, 0, 5, "registers"),  # 88 of 512
        ("gfx942", 4, 128, 0, 4, "registers"),
        ("gfx942", 4, 512, 0, 1, "registers"),
        ("gfx942", 16, 70, 0, 4, "registers"),  # 28 waves of a compute unit hold one workgroup of 16
        ("gfx942", 4, 64, 32768, 2, "shared memory"),
        ("gfx950", 4, 64, 32768, 5, "shared memory"),  # 160 KiB
        ("gfx90a", 1, 32, 0, 8, "nothing"),
        ("sm90", 8, 32, 0, 64, "nothing"),
        ("sm90", 8, 40, 0, 48, "registers"),  # 6 blocks of 8
        ("sm90", 8, 41, 0, 40, "registers"),  # 48 a thread: 5 blocks
        ("sm90", 16, 64, 0, 32, "registers"),
        ("sm90", 1, 16, 0, 32, "blocks"),
        ("sm90", 4, 32, 115712, 8, "shared memory"),  # half of 228 KiB, less what is reserved
        ("sm86", 4, 32, 0, 48, "nothing"),
        ("sm90", 32, 128, 0, 0, "registers"),
    ],
)
def test_occupancy(arch: str, warps: int, registers: int, shared: int, waves: float, limit: str) -> None:
    found = kernel(arch, warps, registers, shared)
    assert (found.waves, found.limit) == (waves, limit)


def test_an_architecture_that_nothing_is_known_of_has_none() -> None:
    assert kernel("gfx1201", 4, 64).waves is None


@given(st.sampled_from(sorted(limits())), st.sampled_from([1, 2, 4, 8, 16]), st.integers(8, 248), st.integers(0, 60000))
def test_taking_more_never_leaves_room_for_more(arch: str, warps: int, registers: int, shared: int) -> None:
    found = kernel(arch, warps, registers, shared)
    assert found.waves is not None
    assert found.most is not None
    assert 0 <= found.waves <= found.most
    assert (kernel(arch, warps, registers + 8, shared).waves or 0) <= found.waves
    assert (kernel(arch, warps, registers, shared + 1024).waves or 0) <= found.waves


@given(st.binary(max_size=200), st.booleans())
def test_what_is_no_cubin_is_refused(data: bytes, elf: bool) -> None:
    with pytest.raises(InputError, match="cubin could not be read"):
        cubin(b"\x7fELF\x02\x01" * elf + data)


@given(st.text(max_size=200))
def test_what_is_no_assembly_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="the assembly has no"):
        amdgcn(text)


def test_assembly_of_a_kernel_that_spills() -> None:
    text = """
  - .agpr_count:     4
    .group_segment_fixed_size: 512
    .private_segment_fixed_size: 24
    .sgpr_count:     43
    .sgpr_spill_count: 1
    .vgpr_count:     132
    .vgpr_spill_count: 5
"""
    assert amdgcn(text) == {"registers": 132, "agprs": 4, "sgprs": 43, "scratch": 24, "shared": 512, "spills": 6}
