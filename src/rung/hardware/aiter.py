"""aiter's tuned matrix products on AMD GPUs: which shapes its tables know, and what aiter does with the others.

Read from ROCm/aiter: aiter/tuned_gemm.py (the lookup and its fall-backs), aiter/jit/core.py (which tables are read),
csrc/py_itfs_cu/gemm_common.cu (how M is padded), aiter/jit/utils/chip_info.py (tables without a `gfx` column),
gradlib/README.md and gradlib/gradlib/GemmTuner.py (the tuner's options and the columns of its input).
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rung.hardware.device import Device
from rung.records.workload import LookedUp, TunedProducts

ARCHITECTURES = ("gfx942", "gfx950")
TABLES = "AITER_CONFIG_GEMM_BF16"  # the variable that names tables in the place of aiter's own
DTYPE = "torch.bfloat16"
UNTUNED = ("M", "N", "K", "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle")
NO_ROW = "it has no row"
PLAIN = "torch"  # the library that is F.linear
# Tables written before there was a `gfx` column: the only chips that were tuned then, by compute units.
LEGACY = {"256": "gfx950", "80": "gfx942", "304": "gfx942"}


class Product(NamedTuple):
    """x [M, K] times weight [N, K], transposed, with or without a bias [N]."""

    m: int
    n: int
    k: int
    bias: bool

    def __str__(self) -> str:
        return f"{self.m} x {self.k} x {self.n}{' with bias' if self.bias else ''}"


@dataclass(frozen=True)
class Answer:
    """library: what computes the product if aiter is asked for it (asm, hipblaslt, ...), empty where that is F.linear
    or another fall-back; `why` then says so."""

    library: str
    why: str = ""


@dataclass(frozen=True)
class Tuned:
    """What aiter's tables hold for one chip. rows: libraries by product, M as in the table; files: the tables, the first
    being the one that its tuner writes to; asked: aiter's own lookup, or None where it cannot be asked."""

    rows: dict[Product, str]
    files: tuple[Path, ...]
    asked: Callable[[Product], str] | None = None

    def answer(self, product: Product) -> Answer:
        """By the table, and then by aiter itself: a row whose library is not there is passed over in silence."""
        row = next((self.rows[p] for p in padded(product) if p in self.rows), "")
        if not row:
            return Answer("", NO_ROW)
        if row == PLAIN:
            return Answer("", "its row says F.linear, which was the fastest when it was tuned")
        used = self.asked(product) if self.asked else row
        return Answer(used) if used == row else Answer("", f"its row names {row}, but aiter falls back to {used}")


def padded(product: Product) -> list[Product]:
    """The product as it is, then with M rounded up as aiter rounds it: finely, then coarsely.

    Beyond 8192 rows the coarse M is 8192 for wide products; from which N on differs by version (1024, later 4096).
    """
    m, n = product.m, product.n
    fine = next((step for most, step in ((256, 16), (1024, 32), (4096, 64)) if m <= most), 128)
    coarse = 8192 if m > 8192 and n > 1024 else 1 << max(m - 1, 0).bit_length()
    return [product._replace(m=size) for size in (m, -(-m // fine) * fine, coarse)]


@lru_cache(maxsize=8)
def tuned(device: Device) -> Tuned | str:
    """aiter's tables for this chip, or why its products cannot be used here."""
    if device.vendor != "amd" or device.arch not in ARCHITECTURES:
        return f"aiter's tuned products are for {' and '.join(ARCHITECTURES)}; this is {device.arch}"
    found = importlib.util.find_spec("aiter")
    if found is None or not found.submodule_search_locations:
        return "the module aiter is not installed"
    try:
        module = importlib.import_module("aiter.tuned_gemm")
    except Exception as error:  # it builds and loads libraries as it is imported, so anything may come
        return f"aiter cannot be imported here ({type(error).__name__}: {str(error)[:200]})"
    if not callable(getattr(module, "gemm_a16w16", None)):
        return "this aiter has no tuned_gemm.gemm_a16w16"
    files = tables(Path(found.submodule_search_locations[0]))
    if not files:
        return "no table of tuned products was found (aiter/configs/bf16_tuned_gemm.csv)"
    return Tuned(rows(files, device.arch, device.units), files, _lookup(module))


def tables(package: Path) -> tuple[Path, ...]:
    """The tables that aiter reads: those of its variable, else its own and those of single models."""
    if named := os.environ.get(TABLES):
        return tuple(path for path in map(Path, named.split(os.pathsep)) if path.is_file())
    own = package / "configs" / "bf16_tuned_gemm.csv"
    models = sorted((package / "configs" / "model_configs").glob("*bf16_tuned_gemm*.csv"))
    return tuple(path for path in (own, *models) if path.is_file() and "untuned" not in path.name)


def rows(files: Iterable[Path], arch: str, units: int) -> dict[Product, str]:
    """The rows for plain products in bfloat16 on one chip; of several for one product, the fastest."""
    best: dict[Product, tuple[float, str]] = {}
    for path in files:
        with path.open(newline="") as lines:
            for row in csv.DictReader(lines, skipinitialspace=True):
                try:
                    read = _row(row, arch, units)
                except (KeyError, ValueError, TypeError, AttributeError):
                    continue  # a line that aiter cannot use either
                if read and (read[0] not in best or read[1] < best[read[0]]):
                    best[read[0]] = read[1]
    return {product: library for product, (_, library) in best.items()}


def _row(row: dict[str, str], arch: str, units: int) -> tuple[Product, tuple[float, str]] | None:
    here = row.get("gfx", LEGACY.get(row["cu_num"], "")) == arch and int(row["cu_num"]) == units
    plain = (row["dtype"], row["outdtype"], row["scaleAB"], row["bpreshuffle"]) == (DTYPE, DTYPE, "False", "False")
    if not here or not plain:
        return None
    product = Product(int(row["M"]), int(row["N"]), int(row["K"]), row["bias"] == "True")
    return product, (float(row.get("us") or "inf"), row["libtype"])


def _lookup(module: Any) -> Callable[[Product], str] | None:
    ask = getattr(module, "get_GEMM_A16W16_config", None)
    if ask is None:
        return None

    def asked(p: Product) -> str:
        try:
            said = ask(M=p.m, N=p.n, K=p.k, bias=p.bias, dtype=DTYPE, otype=DTYPE, scaleAB=False, bpreshuffle=False)
            library = str(said["libtype"])
        except Exception as error:  # another version's lookup, or a library of a row that cannot be loaded
            return f"an error ({type(error).__name__}: {str(error)[:100]})"
        # Without that library, F.linear is called in its place, with a warning only.
        return PLAIN if library == "opus" and getattr(module, "_opus_tune", True) is None else library

    return asked


def looked_up(device: Device, products: Mapping[Product, tuple[int, int]]) -> TunedProducts:
    """What a survey keeps. products: how many layers have each shape, as captured and as rewritten."""
    found = tuned(device)
    if isinstance(found, str):
        return TunedProducts(missing=found)
    answers = {product: found.answer(product) for product in sorted(products)}
    return TunedProducts(
        missing="",
        chip=f"{device.arch} with {device.units} compute units",
        tables=[str(path) for path in found.files],
        tuner=str(_tuner()),
        tuned=[LookedUp(sizes=p, said=a.library, layers=products[p]) for p, a in answers.items() if a.library],
        left=[LookedUp(sizes=p, said=a.why, layers=products[p]) for p, a in answers.items() if not a.library],
        untuned=[p for p, a in answers.items() if a.why == NO_ROW],
    )


def _tuner() -> Path:
    """gradlib lies beside the package in a checkout, and in aiter_meta where it was installed."""
    inside = Path("gradlib", "gradlib", "gemm_tuner.py")
    found = importlib.util.find_spec("aiter")
    homes = [Path(place).parent for place in (found.submodule_search_locations or [])] if found else []
    return next((p for home in homes for p in (home / inside, home / "aiter_meta" / inside) if p.is_file()), inside)


def list_untuned(found: TunedProducts, folder: Path) -> str:
    """Writes aiter-untuned.csv, the input of aiter's tuner with a line for each product that its tables lack; the command
    that tunes them into the table where aiter finds them. Nothing, and no command, where none is lacking."""
    if not found.untuned or not found.tables:
        return ""
    path = (folder / "aiter-untuned.csv").resolve()
    with path.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(UNTUNED)
        writer.writerows((m, n, k, bool(bias), DTYPE, DTYPE, False, False) for m, n, k, bias in found.untuned)
    return shlex.join(["python3", str(found.tuner), "--input_file", str(path), "--tuned_file", found.tables[0]])
