"""Variables as rungs: only names that the doctor knows, no-ops where they hold, and what a worker is started with."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from known_facts import facts_of
from msgspec import structs

from rung import side
from rung.hardware.doctor.gpus import Here
from rung.hardware.doctor.machine import Machine
from rung.hardware.doctor.variables import in_effect, known
from rung.plan import Plan
from rung.recipes.recipe import Recipe
from rung.rungs import BY_NAME, Context, Evidence, inductor, plan_of
from rung.rungs.environment import left, settings
from rung.timing import workers

ROWS = settings()
PARTS = {"gemm": 40.0, "attention": 20.0, "convolution": 10.0, "communication": 10.0, "launch_gap": 20.0}


def context(vendor: str = "amd", arch: str = "gfx1100", rocm: str = "6.0", ranks: int = 1, **environ: str) -> Context:
    class Stand(Machine):
        def text(self, name: Any) -> str | None:
            return rocm if str(name).endswith(".info/version") else super().text(name)

    variables = in_effect(Stand(environ=environ), Here(vendor, 1, [arch]))
    facts = {"gpu": True, "mode": "train", "vendor": vendor, "variables": variables, "ranks": ranks}
    return Context(Plan(), "exact", facts_of(facts), PARTS, {})


def test_every_name_is_one_that_a_library_reads() -> None:
    read = {row["name"]: row for row in known() if not row.get("unread")}
    for row in ROWS:
        for name in {**row.env, **row.tuning_env}:
            assert name in read, f"{row.name}: {name} is not in doctor's variables.toml"
            assert read[name]["for"] in (row.vendor, "any")


def test_what_doctor_lists_is_a_rung_or_has_a_reason_to_be_none() -> None:
    listed = {row["name"] for row in known() if not row.get("unread")}
    set_by_a_rung = {name for row in ROWS for name in {**row.env, **row.tuning_env}}
    assert listed - set_by_a_rung == set(left())
    assert all(left().values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_variable_applies_on_its_vendors_gpus_alone(row: Any) -> None:
    for vendor, arch, other in (("nvidia", "sm90", "AMD"), ("amd", "gfx1100", "NVIDIA")):
        no = BY_NAME[row.name].applies(context(vendor, arch, ranks=2 if row.ranks else 1))
        if row.vendor == "any":
            assert no is None
        elif row.vendor != vendor:
            assert no is not None
            assert no.verdict == "no-op"
            assert other in no.why
        elif vendor == "nvidia":
            assert no is None
    cpu = Context(Plan(), "exact", facts_of({"gpu": False, "mode": "train"}), PARTS, {})
    assert BY_NAME[row.name].applies(cpu) is not None


@pytest.mark.parametrize(
    ("rung", "arch", "rocm", "environ", "holds"),
    [
        ("hw-queues", "gfx942", "6.4", {}, False),
        ("hw-queues", "gfx942", "6.4", {"GPU_MAX_HW_QUEUES": "2"}, True),
        ("device-kernargs", "gfx942", "6.4", {}, True),  # the default since ROCm 6.2
        ("device-kernargs", "gfx942", "6.0", {}, False),
        ("hipblaslt", "gfx942", "6.4", {}, True),  # torch's own choice there
        ("hipblaslt", "gfx1100", "6.4", {}, False),
        ("rocblas", "gfx942", "6.4", {}, False),
        ("tunableop", "gfx942", "6.4", {}, False),
    ],
)
def test_a_variable_that_holds_by_default_or_by_the_user_is_a_no_op(
    rung: str, arch: str, rocm: str, environ: dict[str, str], holds: bool
) -> None:
    no = BY_NAME[rung].applies(context("amd", arch, rocm, **environ))
    assert (no is not None and no.verdict == "no-op") is holds, no


@pytest.mark.parametrize(
    "environ",
    [
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"},
        {"PYTORCH_HIP_ALLOC_CONF": "garbage_collection_threshold:0.8"},
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_an_allocator_that_the_user_has_set_is_left_as_it_is(environ: dict[str, str]) -> None:
    no = BY_NAME["expandable-segments"].applies(context("amd", "gfx942", **environ))
    assert no is not None
    assert no.verdict == "no-op"
    assert next(iter(environ)) in no.why


def test_segments_that_grow_are_tried_where_memory_is_reserved_and_not_used() -> None:
    rung, gib = BY_NAME["expandable-segments"], 2**30
    tight, loose = (
        replace(context("nvidia", "sm90"), memory={"allocated": n * gib, "reserved": 10 * gib}) for n in (8.2, 7)
    )
    assert "82% of the memory" in str(rung.applies(tight))
    assert rung.applies(loose) is None
    proof = rung.proof
    told = {"variable PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert proof(Evidence(None, None, {**told, "expandable_segments": 3})).shown is True
    assert proof(Evidence(None, None, {**told, "expandable_segments": 0})).shown is False  # a build that cannot


def test_a_variable_may_need_a_chip_a_version_a_contract_and_a_rung_beside_it() -> None:
    rung = BY_NAME["hipblaslt-tf32"]

    def says(arch: str = "gfx942", torch: str = "2.9.1+rocm6.4", numerics: Any = "tf32", tf32: bool = True) -> str:
        bare = context("amd", arch)
        facts = structs.replace(bare.facts, arch=arch, torch=torch)
        return str(rung.applies(replace(bare, facts=facts, numerics=numerics, plan=Plan(tf32=tf32))))

    assert says() == "None"
    assert "nothing reads it on gfx950" in says(arch="gfx950")
    assert "nothing reads it in this torch: it is for torch before 2.10" in says(torch="2.10.0+rocm7.0")
    assert "the numeric contract is exact" in says(numerics="exact")
    assert "together with tf32" in says(tf32=False)
    assert "together with channels-last" in str(BY_NAME["miopen-nhwc"].applies(context()))


def test_composable_kernels_attention_is_for_the_chips_that_torch_builds_it_for() -> None:
    for arch, built in (("gfx942", True), ("gfx950", True), ("gfx90a", False), ("gfx1201", False)):
        bare = context("amd", arch)
        no = BY_NAME["ck-attention"].applies(replace(bare, facts=structs.replace(bare.facts, arch=arch)))
        assert (no is None) is built
        assert no is None or f"nothing reads it on {arch}" in no.why


def test_eight_mi300x_get_more_channels_also_after_32_were_kept() -> None:
    many, few = BY_NAME["nccl-channels-112"], BY_NAME["nccl-channels"]

    def says(ranks: int = 8, arch: str = "gfx942", kept: Any = few, **environ: str) -> str:
        bare = context("amd", arch, ranks=ranks, **environ)
        facts = structs.replace(bare.facts, arch=arch)
        return str(many.applies(replace(bare, facts=facts, plan=kept.change(bare.plan))))

    assert says() == "None"
    assert "ignored with fewer than 8 ranks" in says(ranks=4)
    assert "on gfx950" in says(arch="gfx950")
    assert "NCCL_MIN_NCHANNELS=16 is set" in says(NCCL_MIN_NCHANNELS="16")
    assert "holds already" in says(kept=many)
    assert few.name in many.replaces
    assert many.name in few.replaces
    assert dict(many.change(few.change(Plan())).env) == {"NCCL_MIN_NCHANNELS": "112"}
    assert few.applies(context("amd", "gfx942", ranks=2)) is None


def test_channels_last_in_miopen_is_also_that_of_batch_normalization() -> None:
    both = {"PYTORCH_MIOPEN_SUGGEST_NHWC": "1", "PYTORCH_MIOPEN_SUGGEST_NHWC_BATCHNORM": "1"}
    assert dict(BY_NAME["miopen-nhwc"].change(Plan()).env) == both
    assert next(row.env for row in inductor.settings() if row.name == "layout-optimization") == {"amd": both}


def test_scratch_that_is_kept_also_shortens_collectives() -> None:
    best, worst = BY_NAME["keep-scratch"].remaining(context(ranks=2))["communication"]
    assert best < worst == 1.0


def test_a_worker_is_started_with_the_variables_of_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    class Stand:
        def __init__(self, serves: str, log: Path, env: dict[str, str], cwd: Path | None, forks: object) -> None:
            started.append(env)

        def __enter__(self) -> "Stand":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send(self, method: str, **arguments: object) -> None:
            pass

    monkeypatch.setattr(workers, "Worker", Stand)
    from contextlib import ExitStack

    setup = side.Setup(None, tmp_path, files=tmp_path)
    rungs = ("hw-queues", "tunableop")
    with ExitStack() as stack:
        workers.open_worker(stack, setup, side.Side("t", rungs=rungs), "a")
        workers.open_worker(stack, setup, side.Side("t", rungs=rungs, env={"GPU_MAX_HW_QUEUES": "8"}), "b")
        workers.open_worker(stack, setup, side.Side("t"), "c")
    assert started[0] == {
        "GPU_MAX_HW_QUEUES": "2",
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "PYTORCH_TUNABLEOP_TUNING": "0",
        "PYTORCH_TUNABLEOP_FILENAME": f"{tmp_path}/tunableop.csv",
    }
    assert started[1]["GPU_MAX_HW_QUEUES"] == "8"
    assert started[2] == {}


def test_the_first_pass_of_tunableop_tunes_into_the_file_that_the_second_reads() -> None:
    rung = BY_NAME["tunableop"]
    first, then = dict(rung.tuning_env), dict(plan_of(["tunableop"]).env)
    assert (first["PYTORCH_TUNABLEOP_TUNING"], then["PYTORCH_TUNABLEOP_TUNING"]) == ("1", "0")
    assert first["PYTORCH_TUNABLEOP_FILENAME"] == then["PYTORCH_TUNABLEOP_FILENAME"]


def test_a_real_process_has_them_and_the_recipe_carries_them(tmp_path: Path) -> None:
    planned = workers.variables(plan_of(["hw-queues", "tunableop"]), tmp_path)
    code = "import os; print(os.environ['GPU_MAX_HW_QUEUES'], os.environ['PYTORCH_TUNABLEOP_FILENAME'])"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **planned}, capture_output=True, text=True)
    assert done.stdout.split() == ["2", f"{tmp_path}/tunableop.csv"]
    recipe = Recipe.parse(Recipe(("hw-queues",), variables=planned).text())
    assert recipe.variables == planned
