"""Which counters a GPU has, and in how few passes they are read."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InputError, UsageError
from rung.profilers import counters

ARCHS = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
# The counters of five files in the field, one a run there, and the passes that the blocks of an MI300X need.
FILES = {
    "compute": (
        "SQ_WAVES SQ_WAVE_CYCLES SQ_INSTS_VALU SQ_ACTIVE_INST_VALU SQ_INSTS_VALU_ADD_F32 SQ_INSTS_VALU_MUL_F32 "
        "SQ_INSTS_VALU_FMA_F32 SQ_INSTS_VALU_TRANS_F32 SQ_INSTS_SALU SQ_INSTS_VMEM_RD SQ_INSTS_VMEM_WR SQ_WAIT_INST_ANY", 2),
    "communication": (
        "TCC_EA_WRREQ_64B_sum TCC_EA_RDREQ_32B_sum TCC_ATOMIC_sum TCP_TCC_ATOMIC_REQ_sum SQ_WAIT_INST_ANY SQ_WAVES "
        "TCP_TCC_READ_REQ_sum TCP_TCC_WRITE_REQ_sum", 1),
    "mix": ("SQ_INSTS_VALU SQ_INSTS_SALU SQ_INSTS_VMEM_RD SQ_INSTS_VMEM_WR SQ_WAIT_INST_ANY", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FILES))
def test_counters_that_others_read_in_a_run_each_need_few(name):
    names, expected = FILES[name]
    chosen = counters.choose(names.split(), "gfx942")
    assert len(counters.passes(chosen.counters, "gfx942")) == expected


# What rocprofiler-sdk defines for gfx908, reductions and expressions left out. 6.2: tag rocm-6.2.0 of ROCm/rocprofiler-sdk
# (basic_counters.xml); 6.3: its branch amd-mainline, and 7.0: branch release/rocm-rel-7.0 of ROCm/rocm-systems, both
# counter_defs.yaml; the three have the same names.
GFX908_70 = (
    "GRBM_COUNT GRBM_GUI_ACTIVE SQ_ACTIVE_INST_VALU SQ_INSTS_FLAT SQ_INSTS_FLAT_LDS_ONLY SQ_INSTS_GDS SQ_INSTS_LDS SQ_INSTS_SALU "
    "SQ_INSTS_SMEM SQ_INSTS_VALU SQ_INSTS_VMEM_RD SQ_INSTS_VMEM_WR SQ_INST_CYCLES_SALU SQ_LDS_BANK_CONFLICT "
    "SQ_THREAD_CYCLES_VALU SQ_WAIT_INST_LDS SQ_WAVES TA_FLAT_READ_WAVEFRONTS TA_FLAT_WRITE_WAVEFRONTS TA_TA_BUSY "
    "TCC_EA_RDREQ TCC_EA_RDREQ_32B TCC_EA_WRREQ TCC_EA_WRREQ_64B TCC_EA_WRREQ_STALL TCC_HIT TCC_MISS "
    "TCP_TCP_TA_DATA_STALL_CYCLES"
)
# Its counters at the memory from 7.1 on: commit 1c149c661 of rocm-systems, "Adding MI100 counters" (2025-07-31), which the branch of
# 7.0 does not have; config.yaml of commit 0226d38e9 (10.0) has the same.
GFX908_71_EA = (
    "TCC_EA_RDREQ TCC_EA_RDREQ_32B TCC_EA_WRREQ TCC_EA_WRREQ_64B TCC_EA_WRREQ_STALL TCC_EA0_ATOMIC TCC_EA0_ATOMIC_LEVEL "
    "TCC_EA0_RDREQ_DRAM TCC_EA0_RDREQ_DRAM_CREDIT_STALL TCC_EA0_RDREQ_GMI_CREDIT_STALL TCC_EA0_RDREQ_IO_CREDIT_STALL "
    "TCC_EA0_RDREQ_LEVEL TCC_EA0_RD_UNCACHED_32B TCC_EA0_WRREQ_DRAM TCC_EA0_WRREQ_DRAM_CREDIT_STALL "
    "TCC_EA0_WRREQ_GMI_CREDIT_STALL TCC_EA0_WRREQ_IO_CREDIT_STALL TCC_EA0_WRREQ_LEVEL TCC_EA0_WRREQ_STALL "
    "TCC_EA0_WR_UNCACHED_32B"
)


def test_no_counter_is_planned_on_gfx908_that_its_release_does_not_define():
    derived = {d["name"] for d in counters.tables()["derived"]}
    assert counters.known("gfx908", (7, 0)) - derived <= set(GFX908_70.split())
    assert counters.known("gfx908", (6, 2)) == counters.known("gfx908", (7, 0)) < counters.known("gfx908", (7, 1))
    assert {name for name in counters.known("gfx908", (7, 1)) if name.startswith("TCC_EA")} <= set(GFX908_71_EA.split())
    assert counters.known("gfx908") == counters.known("gfx908", (10, 1))


@pytest.mark.parametrize(
    ("rocm", "read", "why"),
    [((6, 4), ("TCC_EA_RDREQ_sum",), "on gfx908 from ROCm 7.1 on"), ((7, 0), ("TCC_EA_RDREQ_sum",), "on gfx908 from ROCm 7.1 on"),
     ((7, 1), ("TCC_EA_RDREQ_sum", "TCC_EA0_RDREQ_LEVEL_sum"), None), ((7, 14), ("TCC_EA_RDREQ_sum", "TCC_EA0_RDREQ_LEVEL_sum"), None)],
)  # fmt: skip
def test_the_release_picks_the_spelling_and_says_what_came_later(rocm, read, why):
    wanted = ["TCC_EA0_RDREQ_sum|TCC_EA_RDREQ_sum", "TCC_EA0_RDREQ_LEVEL_sum|TCC_EA_RDREQ_LEVEL_sum", "TD_TD_BUSY"]
    found = counters.choose(wanted, "gfx908", rocm=rocm)
    assert found.counters == read
    assert found.left_out.get("TCC_EA0_RDREQ_LEVEL_sum") == why
    assert found.left_out["TD_TD_BUSY"] == "gfx908 has none"
    asked = counters.choose(["TCC_EA0_RDREQ_sum", "TCC_EA_WRREQ_LEVEL_sum"], "gfx908", rocm=rocm)
    assert asked.counters == (("TCC_EA_RDREQ_sum", "TCC_EA0_WRREQ_LEVEL_sum") if why is None else ("TCC_EA_RDREQ_sum",))


@given(st.data())
def test_no_pass_asks_more_of_a_block_than_it_has_and_none_is_lost(data):
    arch = data.draw(st.sampled_from(ARCHS))
    names = data.draw(st.lists(st.sampled_from(sorted(counters.known(arch))), unique=True, min_size=1, max_size=40))
    groups = counters.passes(names, arch)
    assert sorted(name for group in groups for name in group) == sorted(names)
    limits = counters.tables()["limits"][counters._family(arch)]
    derived = {d["name"] for d in counters.tables()["derived"]}
    for group in groups:
        for block, most in limits.items():
            assert sum(n.startswith(block + "_") for n in group if n not in derived) <= most


def test_a_derived_counter_costs_the_events_that_it_is_made_of():
    # Eight of SQ and a derived one of two more: no room in one pass. One whose events are read anyway costs nothing.
    eight = [f"SQ_INSTS_{k}" for k in ("VALU", "SALU", "SMEM", "LDS", "FLAT", "GDS", "BRANCH", "VMEM")]
    assert len(counters.passes([*eight, "VALUUtilization"], "gfx942")) == 2
    both = ["SQ_THREAD_CYCLES_VALU", "SQ_ACTIVE_INST_VALU", *eight[:6], "VALUUtilization", "VALUBusy"]
    assert len(counters.passes(both, "gfx942")) == 1


def test_what_a_gpu_lacks_is_left_out_or_read_under_its_own_name():
    found = counters.choose(["TCC_EA_RDREQ_sum", "L2CacheMiss", "SQ_WAIT_INST_VALU", "SQ_WAVES"], "gfx942")
    assert found.counters == ("TCC_EA0_RDREQ_sum", "TCC_MISS_sum", "SQ_WAVES")
    assert found.left_out["SQ_WAIT_INST_VALU"] == "gfx942 has none"
    assert "TCC_EA0_RDREQ_sum read instead" in found.left_out["TCC_EA_RDREQ_sum"]
    assert counters.choose(["TCC_EA0_RDREQ_sum|TCC_EA_RDREQ_sum"], "gfx90a").counters == ("TCC_EA_RDREQ_sum",)
    assert "SQ_INSTS_VALU_ADD_F32" in counters.choose(["SQ_INSTS_VALU_ADD_F32"], "gfx908").left_out


@pytest.mark.parametrize(
    ("name", "arch", "foreign"),
    [("GL2C_EA_RDREQ_96B_sum", "gfx942", True), ("TCC_EA0_RDREQ_128B_sum", "gfx942", False), ("TCC_HIT_sum", "gfx1100", True),
     ("SQ_WAVES", "gfx1100", False), ("NOBODYS", "gfx942", False), ("GL2C_EA_RDREQ_96B_sum", "", False)],
)  # fmt: skip
def test_counters_of_the_other_line_of_gpus_are_told_from_those_that_are_missed(name, arch, foreign):
    assert counters.foreign(name, arch) == foreign


def test_the_profilers_own_list_decides_where_there_is_one():
    found = counters.choose(["SQ_WAVES", "NEW_COUNTER", "TCC_HIT_sum"], "gfx942", available=["NEW_COUNTER", "TCC_HIT"])
    assert found.counters == ("NEW_COUNTER", "TCC_HIT_sum")


def test_a_group_that_the_profiler_refuses_is_halved():
    groups = counters.passes(["SQ_A", "SQ_B", "SQ_C", "SQ_D"], "gfx942", lambda group: len(group) < 3)
    assert groups == (("SQ_A", "SQ_B"), ("SQ_C", "SQ_D"))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", sorted(counters.tables()["sets"]))
def test_every_set_has_counters_that_the_architecture_knows(arch, name):
    if name.startswith("ncu"):
        return
    chosen = counters.choose(counters.named(name), arch)
    assert chosen.counters
    known = counters.known(arch)
    assert all(counters._REDUCED.sub("", counter) in known or counter in known for counter in chosen.counters)


def test_a_set_of_ones_own(tmp_path, monkeypatch):
    path = tmp_path / "c.toml"
    path.write_text('[sets.mine]\nsays = "x"\ncounters = ["SQ_WAVES"]\n')
    monkeypatch.setenv("RUNG_COUNTERS", str(path))
    assert counters.named("mine") == ("SQ_WAVES",)
    with pytest.raises(UsageError, match="no set of counters 'yours'"):
        counters.named("yours")
    broken = tmp_path / "d.toml"
    broken.write_text("[sets")
    monkeypatch.setenv("RUNG_COUNTERS", str(broken))
    with pytest.raises(InputError, match=r"d\.toml could not be read as TOML"):
        counters.named("mine")


def test_the_table_of_the_documentation_is_what_the_tables_give():
    text = (Path(__file__).parents[2] / "docs/internals/profiling.md").read_text()
    rows = [
        line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \w+ \| \d( \| \d){5} \|", line)
    ]
    assert len(rows) == 7
    for name, *said in rows:
        found = [len(counters.passes(counters.choose(counters.named(name), arch).counters, arch)) for arch in ARCHS]
        assert [int(n) for n in said] == found, name
