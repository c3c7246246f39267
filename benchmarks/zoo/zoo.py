"""Rung beside plain PyTorch on models that nobody tuned for: one process a case, resumable, one results file a machine.

    python benchmarks/zoo/zoo.py list
    python benchmarks/zoo/zoo.py check hf timm                   one eager step of each at toy size
    python benchmarks/zoo/zoo.py check --rewritten hf timm       each at toy size, verified under all rewrites
    python benchmarks/zoo/zoo.py run --out h100.jsonl --budget 120 --seconds 500 --first 20 hf
    python benchmarks/zoo/zoo.py run --out h100.jsonl --budget 30 --numerics tf32 --kernelbench ~/KernelBench/KernelBench --first 20 kernelbench/level1
    python benchmarks/zoo/zoo.py table h100.jsonl
    python benchmarks/zoo/zoo.py chart h100.jsonl --out h100.html

`run` goes on where it stopped: the same command again leaves out what the file has. Cases are run in an order that a fixed seed draws, which
is the file's first line; NAMES say which of them are run, and never in which order. docs/zoo.md says what is counted how.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import msgspec
from making import INFER, Case
from rows import LIBRARIES, SEED, Header, Results, Row, drawn

sys.path.append(str(Path(__file__).parents[1] / "climb"))
from fresh import CORES, EAGER, RECIPE, TURN, Climb, Stopped, Target, Timed, climbed, cold, stop, timed

FAMILIES = ("huggingface", "timm_models", "diffusion", "handwritten")  # files beside this one
MODES = ("default", "reduce-overhead")
KNOWN_MODES = (*MODES, "max-autotune")
PLAIN_LIMIT = 600.0  # seconds that a mode of torch.compile may take in all
LOG = 30  # lines of a climb's that are kept; of its workers all, where nothing was verified: they say what the time went to
# A few that make and run within seconds on a CPU; the first need nothing but torch.
SLICE = ("own/estuary", "own/unet", "own/ranker", "hf/qwen3-0.6b", "hf/t5-v1.1-base", "timm/convnext_tiny")


def cases(kernelbench: Path | None = None) -> dict[str, Case]:
    """All that there are, by name; those of a KernelBench checkout where its folder of levels is given."""
    found: dict[str, Case] = {}
    for family in FAMILIES:
        found |= importlib.import_module(family).CASES
    if kernelbench:
        problems = sorted(kernelbench.glob("level[123]/*.py"))
        if not problems:
            raise SystemExit(
                f"{kernelbench} has no level1/*.py: give the folder KernelBench of a KernelBench checkout."
            )
        for path in problems:
            name = f"kernelbench/{path.parent.name}/{path.stem}"
            found[name] = Case(name, f"KernelBench {path.parent.name}", f"kernelbench:{path.resolve()}", one_size=True)
    return found


def chosen(
    known: dict[str, Case], order: Sequence[str], names: Sequence[str], first: int | None
) -> list[tuple[Case, str]]:
    """The cases that the names mean, in the drawn order. A name is a case (`hf/gpt2`, `hf/gpt2:train`), what a case's name begins with
    (`hf`, `kernelbench/level1`), a variant (`train`), or `slice`. first: so many of them."""
    for name in names:
        if not any(_means(name, case) for case in order):
            raise SystemExit(f"nothing in the zoo is called {name!r}; `zoo.py list` shows what there is.")
    picked = [case for case in order if not names or any(_means(name, case) for name in names)]
    found = []
    for case in picked[:first]:
        name, _, variant = case.rpartition(":")
        found.append((known[name], variant))
    return found


def _means(word: str, case: str) -> bool:
    name, _, variant = case.rpartition(":")
    if word == "slice":
        return name in SLICE
    return word in (case, name, variant) or name.startswith(f"{word}/")


# ---- run -------------------------------------------------------------------------------------------------


def run(given: argparse.Namespace) -> int:
    known = cases(given.kernelbench)
    order = drawn(f"{name}:{variant}" for name, case in known.items() for variant in case.variants)
    picked = chosen(known, order, given.names, given.first)
    results = Results(given.out)
    if results.header is None:
        results.header = Header(seed=SEED, began=time.strftime("%Y-%m-%d %H:%M:%S %Z"), order=[])
    # A case keeps its place when others come: those of a checkout, say.
    results.header.order = drawn({*results.header.order, *order}, results.header.seed)
    results.write()
    say(f"in this order, drawn by seed {SEED}: {', '.join(f'{case.name}:{variant}' for case, variant in picked)}")
    return Run(given, picked, results).ended()


class Run:
    """The rows of a run, taken in order by one thread a GPU."""

    def __init__(self, given: argparse.Namespace, picked: Sequence[tuple[Case, str]], results: Results) -> None:
        self.given, self.results = given, results
        self.numerics = given.numerics or ("bf16" if _has_gpu() else "exact")
        self.versions = _versions()
        self.end = time.monotonic() + (given.seconds or float("inf"))
        self.queue: queue.SimpleQueue[tuple[str, Case, str]] = queue.SimpleQueue()
        for number, (case, variant) in enumerate(picked, 1):
            self.queue.put((f"{number}/{len(picked)} {case.name}:{variant}", case, variant))
        self.lock = threading.Lock()
        self.late = False
        self.failed: list[BaseException] = []

    def ended(self) -> int:
        """0 where all is done, 1 where the time was over before, 130 after Ctrl-C or a kill. What is there is in the file."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        threads = [threading.Thread(target=self._rows, args=(env,)) for env in _places(self.given.gpus)]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.1)
        except KeyboardInterrupt:
            stop()
            for thread in threads:
                thread.join()
            say("stopped; the same command goes on here.")
            return 130
        finally:
            signal.signal(signal.SIGTERM, before)
        if self.failed:
            raise self.failed[0]
        say("the time is over; the same command goes on here." if self.late else "all are done.")
        return 1 if self.late else 0

    def _rows(self, env: dict[str, str]) -> None:
        try:
            while not self.late and not self.failed:
                self._row(*self.queue.get_nowait(), env)
        except (queue.Empty, Stopped):
            return
        except BaseException as error:
            self.failed.append(error)

    def _row(self, head: str, case: Case, variant: str, env: dict[str, str]) -> None:
        given = self.given
        wanted = Row(
            name=case.name,
            variant=variant,
            kind=case.kind,
            numerics=self.numerics,
            budget_s=given.budget,
            toy=given.toy,
        )
        with self.lock:
            row = self.results.row_of(wanted)
        if row.done:
            return
        row.versions = self.versions  # of the climb, which is the last to run
        for group in parts(row, case, given.modes, self.results.rows, together=bool(env)):
            if time.monotonic() > self.end:
                self.late = True
                return
            self._group(head, group, env)
        with self.lock:
            row.done = True
            self.results.write()

    def _group(self, head: str, group: Sequence[Part], env: dict[str, str]) -> None:
        """Runs parts that begin together. Those that found too little memory beside the others run once more, alone."""

        def one(part: Part, more: dict[str, str]) -> bool:
            said = part(env | more)
            if more and part.lacked_memory:
                return False
            with self.lock:
                part.keep()
                self.results.write()
            say(f"{head}: {said}")
            return True

        if len(group) == 1:
            one(group[0], {})
            return
        with tempfile.TemporaryDirectory(prefix="turn-") as folder, ThreadPoolExecutor(len(group)) as pool:
            enough = list(pool.map(one, group, repeat({TURN: f"{folder}/turn"})))
        for part in (p for p, had in zip(group, enough, strict=True) if not had):
            one(part, {})


def _places(gpus: Sequence[int] | None) -> list[dict[str, str]]:
    """The variables of each thread's processes: a GPU, and its part of the cores. Without GPUs one thread, which uses what there is."""
    if not gpus:
        return [{}]
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // len(gpus))
    mine = [cores[share * k : share * (k + 1)] or cores for k in range(len(gpus))]
    return [{"CUDA_VISIBLE_DEVICES": str(gpu), CORES: ",".join(map(str, c))} for gpu, c in zip(gpus, mine, strict=True)]


class Part:
    """One process of a row, which is called to run it and says in a line what came of it. `keep` writes that into the row."""

    def __init__(self, row: Row, target: Target, mode: str = "") -> None:
        self.row, self.target, self.mode = row, target, mode
        self.timed: Timed | None = None
        self.climb: Climb | None = None

    def __call__(self, env: dict[str, str]) -> str:
        if not self.mode:
            self.climb = climb(self.target, self.row.budget_s, env)
            return said_of(self.climb)
        with cold(env) as whole:
            self.timed = timed(self.target, self.mode, whole, PLAIN_LIMIT)
        return f"{self.mode} {_time(self.timed)}"

    @property
    def lacked_memory(self) -> bool:
        return self.timed is not None and self.timed.kind == "out of memory"

    def keep(self) -> None:
        if self.climb:
            self.row.climb = self.climb
        elif self.timed and self.mode == EAGER:
            self.row.eager = self.timed
            self.row.reason = self.timed.error
        elif self.timed:
            self.row.plain = [*self.row.plain, self.timed]


def parts(
    row: Row, case: Case, modes: Sequence[str], others: Sequence[Row], together: bool = False
) -> Iterator[list[Part]]:
    """What is still to be run for a row: eager, each mode, and the climb. What a row of another budget has timed is taken from there.
    together: eager and the modes begin at the same time, and only their timing is one after the other."""
    target = Target(case.target, case.all_options(row.variant, row.toy), row.numerics)
    twins = [other for other in others if other is not row and other.same_runs(row)]
    row.eager = row.eager or next((twin.eager for twin in twins if twin.eager), None)
    missing = [] if row.eager else [EAGER]
    for mode in modes:
        if any(t.mode == mode for t in row.plain):
            continue
        if same := next((t for twin in twins for t in twin.plain if t.mode == mode), None):
            row.plain = [*row.plain, same]
        else:
            missing.append(mode)
    plain = [Part(row, target, mode) for mode in missing]
    for group in [plain] if together and plain else [[part] for part in plain]:
        if not row.reason:
            yield group
    if row.climb is None and not row.reason:
        yield [Part(row, target)]


def climb(target: Target, budget: float, more: dict[str, str]) -> Climb:
    """A climb, and then its recipe in a fresh process as a user applies it, which finds the climb's compiled code."""
    with cold(more) as env:
        found = climbed(target, budget, env, lambda recipe: timed(target, f"{RECIPE}{recipe}", env, PLAIN_LIMIT))
    verified = found.result.get("status") in ("verified", "confirmed")
    return msgspec.structs.replace(found, log=found.log[-LOG:], workers_log=[] if verified else found.workers_log)


def said_of(found: Climb) -> str:
    if found.crash:
        return f"Rung crashed (exit {found.exit}): {found.crash.splitlines()[-1] if found.crash else ''}"
    if not found.result.get("kept"):
        return f"no recipe after {found.wall_s:.0f} s: {found.why}"
    over = (found.result.get("speedup") or {}).get("value")
    times = f"{over:.2f}x the untouched model, " if over else ""
    applied = _time(found.applied) if found.applied else "not applied"
    return f"{found.result.get('status')} after {found.wall_s:.0f} s: {times}{','.join(found.result['kept'])}; applied: {applied}"


def _time(found: Timed) -> str:
    return found.error or f"{found.step_ms:.3f} ms a step, ready after {found.ready_s:.0f} s"


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _versions() -> dict[str, str]:
    found = {}
    for package in (*LIBRARIES, "rung"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return {
        **found,
        **({"commit": done.stdout.strip()} if done.returncode == 0 else {}),
        "python": sys.version.split()[0],
    }


# ---- check -----------------------------------------------------------------------------------------------


def lacking(case: Case) -> str:
    """The first library that the case needs and that is not installed."""
    return next((name for name in case.needs if importlib.util.find_spec(name) is None), "")


def one_step(case: Case, variant: str) -> str:
    """Makes the case at toy size and runs one eager step of it on the CPU; says what it gave. Raises what the model raises."""
    import torch

    from rung.engine.step import Step
    from rung.hardware import pick
    from rung.plan import Plan
    from rung.workload import load, seeded_model

    w = load(case.target, case.all_options(variant, toy=True))
    if (w.mode == "infer") != (variant == INFER):
        raise AssertionError(f"{case.name}:{variant} is a workload for {w.mode}")
    model = seeded_model(w)
    loss, output = Step(w, model, Plan(), pick("cpu"))(w.inputs(1))
    seen = output if loss is None else loss
    if not bool(torch.isfinite(seen).all()):
        raise AssertionError(f"{case.name}:{variant} gives numbers that are not finite")
    count = sum(p.numel() for p in model.parameters())
    return f"{count:,} parameters, " + (f"output {tuple(output.shape)}" if loss is None else f"loss {loss.item():.3f}")


def rewritten(case: Case, variant: str) -> str:
    """Verifies the case at toy size on the CPU under every rewrite that runs there; says what was compared. Raises AssertionError where
    something is not equal."""
    import torch

    from rung.hardware import pick
    from rung.plan import Plan
    from rung.rewrites import PASSES
    from rung.verify.verify import verify
    from rung.workload import load

    torch._dynamo.reset()  # the memory of the case before
    passes = tuple(name for name in PASSES if not name.startswith(("flex-", "tf32-")))  # which train on GPUs alone
    found = verify(load(case.target, case.all_options(variant, toy=True)), Plan(passes=passes), pick("cpu")).record()
    if not found.passed:
        raise AssertionError(found.failures[0])
    return f"rewritten: equal in {found.checks} comparisons"


def check(given: argparse.Namespace) -> int:
    known = cases(given.kernelbench)
    failed = 0
    every = [f"{name}:{variant}" for name, case in known.items() for variant in case.variants]
    for case, variant in chosen(known, every, given.names, None):
        if missing := lacking(case):
            print(f"{case.name}:{variant}: skipped, {missing} is not installed", flush=True)
            continue
        try:
            told = (rewritten if given.rewritten else one_step)(case, variant)
            print(f"{case.name}:{variant}: {told}", flush=True)
        except Exception as error:
            failed += 1
            print(f"{case.name}:{variant}: FAILED, {type(error).__name__}: {error}", flush=True)
    done = "verified under all rewrites" if given.rewritten else "made, and stepped once"
    print(f"{failed} failed" if failed else f"all {done}")
    return 1 if failed else 0


# ---- the command line ------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, flush=True)


def listed(given: argparse.Namespace) -> int:
    known = cases(given.kernelbench)
    order = drawn(f"{name}:{variant}" for name, case in known.items() for variant in case.variants)
    for case, variant in chosen(known, order, given.names, None):
        say(f"{case.name}:{variant}  ({case.kind})")
    return 0


def tables(given: argparse.Namespace) -> int:
    from tables import table

    print(table(Results(given.file)))
    return 0


def charts(given: argparse.Namespace) -> int:
    from chart import page

    given.out.write_text(page(Results(given.file)))
    say(f"chart: {given.out}")
    return 0


def _modes(text: str) -> tuple[str, ...]:
    found = tuple(m for m in text.split(",") if m)
    if odd := next((m for m in found if m not in KNOWN_MODES), None):
        raise argparse.ArgumentTypeError(f"{odd!r} is no mode; there are {', '.join(KNOWN_MODES)}")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    if not all(part.isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GPUs; write their numbers, as in 0,1")
    return tuple(int(part) for part in text.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def add(name: str, call: object, help_text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(name, help=help_text)
        made.set_defaults(call=call)
        return made

    run_ = add("run", run, "measure what the results file lacks")
    run_.add_argument("--out", type=Path, required=True, metavar="FILE", help="the results file, JSON lines")
    run_.add_argument("--budget", type=float, default=120.0, metavar="SECONDS", help="of a climb (default: 120)")
    run_.add_argument("--seconds", type=float, metavar="N", help="begin no process after so many seconds")
    run_.add_argument(
        "--numerics", choices=("exact", "tf32", "bf16"), help="of every side (default: bf16 on a GPU, exact on a CPU)"
    )
    run_.add_argument(
        "--modes",
        type=_modes,
        default=MODES,
        metavar="A,B",
        help=f"of {', '.join(KNOWN_MODES)} (default: the first two)",
    )
    run_.add_argument(
        "--first", type=int, metavar="N", help="of the chosen cases, the first so many in the drawn order"
    )
    run_.add_argument(
        "--gpus", type=_numbers, metavar="0,1", help="several cases at a time, each on a GPU and its part of the cores"
    )
    run_.add_argument("--toy", action="store_true", help="models of toy size, to try the runner on a CPU")
    check_ = add("check", check, "make cases at toy size on the CPU, and step once")
    check_.add_argument(
        "--rewritten", action="store_true", help="verify each under all rewrites instead: seconds to minutes a case"
    )
    others = [run_, add("list", listed, "the cases, in the drawn order"), check_]
    for one in others:
        one.add_argument(
            "names", nargs="*", metavar="NAMES", help="cases, families, variants or `slice` (default: all)"
        )
        one.add_argument(
            "--kernelbench", type=Path, metavar="DIR", help="the folder of a KernelBench checkout that has level1"
        )
    table_ = add("table", tables, "Markdown")
    chart_ = add("chart", charts, "one HTML page without scripts")
    for one in (table_, chart_):
        one.add_argument("file", type=Path)
    chart_.add_argument("--out", type=Path, default=Path("zoo.html"), metavar="FILE")
    given = parser.parse_args()
    return int(given.call(given))


if __name__ == "__main__":
    raise SystemExit(main())
