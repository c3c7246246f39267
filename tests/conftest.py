"""One thread for torch in every test and every worker: two cores are shared by all. Triton kernels for its interpreter."""

import contextlib
import gc
import importlib.util
import logging
import os
import pkgutil
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Inductor takes the CPU's word for the instructions it has. Otherwise each process that compiles tries them, in a process that loads torch.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

import pytest
from hypothesis import settings

# How long an example takes tells of the machine. Each run draws others; more find more, as before a release.
settings.register_profile("rung", deadline=None, max_examples=int(os.environ.get("RUNG_TEST_EXAMPLES", "15")))
settings.load_profile("rung")


def _interpreted_kernels():
    """Triton asks for its interpreter when a kernel is defined, its own library's among them: so this comes before anything
    else imports it (torch does), and the variable goes again."""
    import torch

    if not torch.cuda.is_available():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            families = importlib.import_module("rung.kernels.families")
            for family in pkgutil.iter_modules(families.__path__, f"{families.__name__}."):
                importlib.import_module(family.name)
            with contextlib.suppress(ImportError):  # a launch imports it, where this Triton has it
                importlib.import_module("triton.experimental.gluon")


def pytest_configure(config):
    """Not in the process that only hands out tests: the others wait for it."""
    if config.getoption("dist", "no") == "no":
        gc.disable()  # until all is collected: what importing makes stays
        if importlib.util.find_spec("triton"):
            _interpreted_kernels()


@pytest.fixture(scope="session", autouse=True)
def _nothing_of_the_user(tmp_path_factory):
    """No test reads or writes the user's own recipes, history, options or caches: no fixture of a module, either. All processes of a run
    share the cache, so that what one climb compiled another finds."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if PROCESSES > 1 else base) / "rung-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNG_DATA", str(base / "rung-data"))
        patch.setenv("RUNG_CONFIG", str(base / "no-rung.toml"))
        patch.setenv("RUNG_CACHE", str(cache))
        for name in ("RUNG_HISTORY", "RUNG_STORE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_hooks_left():
    """Workloads of the tests have optimizers wait before each step, all that there are: none may do so in the tests that follow."""
    yield
    if optimizer := sys.modules.get("torch.optim.optimizer"):
        hooks = optimizer._global_optimizer_pre_hooks
        for key in [key for key, hook in hooks.items() if not hook.__module__.startswith("rung.")]:
            del hooks[key]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """The variables under which `replayed.Replayed` says again what a real worker said."""
    from climbing import MICRO
    from replayed import record

    return record(MICRO, tmp_path_factory.mktemp("recorded") / "said")


@pytest.fixture(scope="session")
def fp8_on_a_cpu():
    """Older torch (2.11 is) takes one scale for a whole tensor on a CPU; on GPUs a scale a row is as old as 2.6."""
    import torch

    one, eight = torch.ones(16, 1), torch.ones(16, 16).to(torch.float8_e4m3fn)
    try:
        torch._scaled_mm(eight, eight.t(), scale_a=one, scale_b=one.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip(f"torch {torch.__version__} has no FP8 product with a scale a row on a CPU")


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = Path("/usr/bin/chromium")
    if not chromium.exists():
        pytest.skip(f"{chromium} is not installed")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        yield started
        started.close()


def pytest_collection_finish():
    """Torch's modules are not looked through for garbage again and again, nor what compiling makes at every turn. And Dynamo does not
    empty the CPU's caches for each graph, to tell a log how long its guards take: a quarter of what it takes to trace a small one."""
    guards = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0
    # pytest adds its handlers to each logger that does not propagate. With a handler, torch writes a record of every step of compiling.
    logging.getLogger("torch.__trace").propagate = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


# Files of tests that take long, the longest first. Each process begins with some of them: of what waits at the end of a queue another
# process takes a part, and makes the fixtures of a module once more.
LONG = (
    "test_plain_wins.py",
    "test_going_on.py",
    "test_climb.py",
    "test_compare_sides.py",
    "test_over_ranks_verified.py",
    "test_kernel_inspection.py",
    "test_over_ranks.py",
    "test_candidate_over_ranks.py",
    "test_climb_from_python.py",
)
PROCESSES = int(
    os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
)  # each begins with an equal part of the tests, in their order
PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
HERE = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Each process reads another part of the tests first: what one has compiled the others find."""
    report = yield
    if collector.path == HERE:
        first = len(report.result) * PROCESS // PROCESSES
        report.result = report.result[first:] + report.result[:first]
    return report


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path)
    others = [item for item in items if item.path.name not in LONG]
    ordered = []
    for process in range(PROCESSES):
        first = [item for name in LONG[process::PROCESSES] for item in items if item.path.name == name]
        more = max(0, (len(items) - len(ordered)) // (PROCESSES - process) - len(first))
        ordered += first + others[:more]
        del others[:more]
    items[:] = ordered + others
