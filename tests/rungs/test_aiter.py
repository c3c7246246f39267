"""aiter's tables: which shapes they know, which fall-backs are seen, and what its tuner is given."""

import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aiter_standin
import pytest
from aiter_standin import row

from rung.hardware import aiter
from rung.hardware.aiter import NO_ROW, Product, Tuned
from rung.hardware.device import cpu
from rung.records.record import plain
from rung.records.workload import TunedProducts

MI300X = replace(cpu(), kind="cuda", vendor="amd", name="AMD Instinct MI300X", arch="gfx942", units=304)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def forget() -> None:
        aiter.tuned.cache_clear()
        for name in [n for n in sys.modules if n.partition(".")[0] == "aiter"]:
            monkeypatch.delitem(sys.modules, name)

    def made(rows: list[str], absent: tuple[str, ...] = ()) -> Path:
        forget()
        return aiter_standin.write_aiter(tmp_path, rows, absent)

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(aiter.TABLES, raising=False)
    yield made
    forget()


def tuned() -> Tuned:
    found = aiter.tuned(MI300X)
    assert isinstance(found, Tuned), found
    return found


def test_a_shape_is_looked_up_by_the_whole_key(install: Callable[..., Path]) -> None:
    others = [
        row(16, 64, 32, "asm", gfx="gfx950", cu=256),
        row(16, 64, 32, "asm", cu=80),
        row(16, 64, 32, "asm", bias=True),
        row(16, 64, 32, "asm", out="torch.float32"),
        row(32, 64, 32, "asm"),
    ]
    install([*others, row(16, 96, 32, "hipblaslt")])
    assert tuned().answer(Product(16, 96, 32, False)).library == "hipblaslt"
    assert tuned().answer(Product(16, 64, 32, False)).why == NO_ROW
    assert tuned().answer(Product(16, 64, 32, True)).library == "asm"


def test_rows_are_found_for_m_rounded_up(install: Callable[..., Path]) -> None:
    install([row(16, 64, 32, "asm")])
    assert tuned().answer(Product(9, 64, 32, False)).library == "asm"
    assert tuned().answer(Product(17, 64, 32, False)).why == NO_ROW
    assert [p.m for p in aiter.padded(Product(300, 64, 32, False))] == [300, 320, 512]
    assert [p.m for p in aiter.padded(Product(9000, 4608, 32, False))] == [9000, 9088, 8192]


def test_fall_backs_of_aiter_are_seen(install: Callable[..., Path]) -> None:
    install([row(16, 64, 32, "flydsl"), row(16, 96, 32, "torch"), row(16, 128, 32, "asm")], absent=("flydsl",))
    assert tuned().answer(Product(16, 64, 32, False)).why == "its row names flydsl, but aiter falls back to torch"
    assert "F.linear" in tuned().answer(Product(16, 96, 32, False)).why
    assert tuned().answer(Product(16, 128, 32, False)).library == "asm"


def test_tables_of_models_are_read_as_well_and_a_variable_replaces_all(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = install([row(16, 64, 32, "asm", us=9.0)])
    folder = package / "configs" / "model_configs"
    (folder / "llama_bf16_tuned_gemm.csv").write_text(
        "\n".join([aiter_standin.HEADER, row(16, 64, 32, "triton", us=8.0), row(1, 64, 32, "asm")])
    )
    (folder / "llama_bf16_untuned_gemm.csv").write_text("M,N,K\n1,2,3\n")
    assert tuned().rows == {Product(16, 64, 32, False): "triton", Product(1, 64, 32, False): "asm"}
    mine = tmp_path / "mine.csv"
    mine.write_text("\n".join([aiter_standin.HEADER, row(2, 64, 32, "asm")]))
    monkeypatch.setenv(aiter.TABLES, f"{mine}:{tmp_path / 'gone.csv'}")
    aiter.tuned.cache_clear()
    assert (tuned().rows, tuned().files) == ({Product(2, 64, 32, False): "asm"}, (mine,))


def test_a_table_without_the_architecture_is_told_apart_by_its_compute_units(tmp_path: Path) -> None:
    old = tmp_path / "old.csv"
    lines = [aiter_standin.HEADER, row(1, 64, 32, "asm"), row(2, 64, 32, "asm", cu=256), "half a line"]
    old.write_text("\n".join(line.partition(",")[2] for line in lines))
    assert aiter.rows([old], "gfx942", 304) == {Product(1, 64, 32, False): "asm"}
    assert aiter.rows([old], "gfx950", 256) == {Product(2, 64, 32, False): "asm"}


def test_each_reason_why_it_cannot_be_used(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "this is gfx90a" in str(aiter.tuned(replace(MI300X, arch="gfx90a")))
    assert "gfx942 and gfx950" in str(aiter.tuned(cpu()))
    monkeypatch.setattr(aiter.importlib.util, "find_spec", lambda name: None)
    assert "not installed" in str(aiter.tuned(MI300X))
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    package = install([])
    for source, why in [("raise OSError('no HIP')", "OSError: no HIP"), ("gemm = 1", "no tuned_gemm.gemm_a16w16")]:
        (package / "tuned_gemm.py").write_text(source)
        aiter.tuned.cache_clear()
        sys.modules.pop("aiter.tuned_gemm", None)
        assert why in str(aiter.tuned(MI300X))


def test_what_the_tuner_is_given_is_what_the_tables_lack(install: Callable[..., Path], tmp_path: Path) -> None:
    package = install([row(16, 64, 32, "asm"), row(16, 96, 32, "torch")])
    tuner = tmp_path / "aiter_meta" / "gradlib" / "gradlib" / "gemm_tuner.py"
    tuner.parent.mkdir(parents=True)
    tuner.touch()
    shapes = dict.fromkeys([Product(16, 64, 32, False), Product(16, 96, 32, False), Product(7, 64, 32, True)], (2, 1))
    found = aiter.looked_up(MI300X, shapes)
    assert plain(found)["tuned"] == [[(16, 64, 32, False), "asm", (2, 1)]]
    assert plain(found)["untuned"] == [(7, 64, 32, True)]
    command = aiter.list_untuned(found, tmp_path)
    path = tmp_path / "aiter-untuned.csv"
    with path.open() as lines:
        wanted = {"M": "7", "N": "64", "K": "32", "bias": "True", "dtype": "torch.bfloat16",
                  "outdtype": "torch.bfloat16", "scaleAB": "False", "bpreshuffle": "False"}  # fmt: skip
        assert list(csv.DictReader(lines)) == [wanted]
    table = package / "configs" / "bf16_tuned_gemm.csv"
    assert command == f"python3 {tuner} --input_file {path} --tuned_file {table}"


def test_nothing_is_written_where_there_is_nothing_to_tune(tmp_path: Path) -> None:
    for found in (TunedProducts(missing="the module aiter is not installed"), TunedProducts(missing="", untuned=[])):
        assert aiter.list_untuned(found, tmp_path) == ""
    assert not list(tmp_path.iterdir())
