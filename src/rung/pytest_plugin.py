"""The `rung_bench` fixture: a project's benchmarks live in its tests.

    def test_attention(rung_bench):
        rung_bench(lambda: attention(q, k, v))

    pytest --rung-save base.json          # after the change: pytest --rung-compare base.json --rung-fail-if-slower 5%

Unused, it costs a fixture's name: nothing of ours is imported before the fixture is called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rung.api import Measurement
    from rung.records.bench import Bench, Kept

OURS: pytest.StashKey[list[Bench]] = pytest.StashKey()
BASE: pytest.StashKey[dict[str, Kept]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rung", "benchmarks (the rung_bench fixture)")
    group.addoption(
        "--rung-save",
        type=Path,
        metavar="FILE",
        help="write the session's measurements, every sample included, as JSON",
    )
    group.addoption(
        "--rung-compare", type=Path, metavar="FILE", help="compare with the measurements that --rung-save wrote"
    )
    group.addoption("--rung-fail-if-slower", type=_share, metavar="5%", help="with --rung-compare: fail a test whose median grew by this share and by more than both intervals")  # fmt: skip
    group.addoption(
        "--rung-time", type=float, default=10.0, metavar="SECONDS", help="measure no benchmark longer (default: 10)"
    )
    group.addoption("--rung-skip", action="store_true", help="call each benchmark once and measure nothing")


def _share(text: str) -> float:
    from rung.cli.common import share

    return share(text)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OURS] = []
    if config.getoption("--rung-fail-if-slower") and not config.getoption("--rung-compare"):
        raise pytest.UsageError("--rung-fail-if-slower needs --rung-compare FILE, the measurements to compare with.")
    wanted = next((o for o in ("--rung-save", "--rung-compare") if config.getoption(o)), None)
    if wanted and (config.getoption("--rung-skip") or config.getoption("numprocesses", None)):
        raise pytest.UsageError(
            f"{wanted} needs measurements, and --rung-skip and xdist's -n make none: leave them out (-n 0)."
        )
    if config.getoption("--rung-compare"):
        from rung.errors import RungError
        from rung.timing.saved import read

        try:
            config.stash[BASE] = read(config.getoption("--rung-compare"))
        except RungError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.fixture
def rung_bench(request: pytest.FixtureRequest) -> Callable[..., Measurement | None]:
    """`rung_bench(call, name=None, **options)`: measures a callable without arguments, with the options of `rung.bench`,
    and returns its Measurement; None under --rung-skip and under xdist's -n, where the call is made once."""
    config = request.config
    keys: set[str] = set()

    def measure(call: Callable[[], object], name: str | None = None, **options: Any) -> Measurement | None:
        if config.getoption("--rung-skip") or hasattr(config, "workerinput"):
            # Tests that xdist runs side by side would measure each other.
            call()
            return None
        from msgspec.structs import replace

        from rung.api import bench

        options.setdefault("seconds", config.getoption("--rung-time"))
        found = bench(call, name=name or request.node.name, **options)
        key = _new_key(request.node.nodeid + (f" [{name}]" if name else ""), keys)
        # A test that is run again has its measurement replaced.
        rows = config.stash[OURS] = [row for row in config.stash[OURS] if row.test != key]
        if BASE not in config.stash:
            rows.append(replace(found.document, test=key))
        else:
            from rung.report.benchmarks import change
            from rung.timing.saved import against, kept_of

            seen = against(kept_of(found.document), config.stash[BASE].get(key))
            rows.append(replace(found.document, test=key, against=seen))
            limit = config.getoption("--rung-fail-if-slower")
            if limit and seen and seen.apart and seen.change >= limit:
                pytest.fail(f"{change(seen)} than in the saved run; the limit is {limit:.1%}.", pytrace=False)
        return found

    return measure


def _new_key(wanted: str, keys: set[str]) -> str:
    """A key that no measurement of this test has: "#2" and so on for further ones of one name. It is added to `keys`."""
    count = 1
    while (key := wanted if count == 1 else f"{wanted} #{count}") in keys:
        count += 1
    keys.add(key)
    return key


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash.get(OURS, [])
    if not rows:
        return
    from rung.report.benchmarks import session_lines

    terminalreporter.write_sep("=", "benchmarks")
    base = config.stash.get(BASE, None)
    if base is None:
        lines = session_lines(rows)
    else:
        from rung.timing.saved import beside

        seen = beside(rows, base)
        lines = session_lines(rows, base, seen.differs, seen.warnings)
    for line in lines:
        terminalreporter.write_line(line)
    path = config.getoption("--rung-save")
    if path:
        from rung.runs import write_whole
        from rung.timing.saved import document

        write_whole(path, document(rows))
        terminalreporter.write_line(f"saved: {path}")
