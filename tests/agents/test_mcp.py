"""`rung mcp` as a client of the official SDK sees it, over stdin and stdout."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

HERE = Path(__file__).parents[2]
WORK = """
import os, time
import torch

def inputs(seed):
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))

def old(x):
    return torch.relu(x)

def wrong(x):
    return x

def short():
    print("printed by the target")
    return sum(range(1000))

def endless():
    open("worker", "w").write(str(os.getpid()))
    time.sleep(600)
"""
TRACE = {
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": f"kernel{k}", "pid": 0, "tid": 7, "ts": 10.0 * k, "dur": 5.0 + k % 7,
         "args": {"device": 0, "stream": 7, "correlation": k}}
        for k in range(400)
    ]
}  # fmt: skip

try:
    import anyio
    from mcp import Client, StdioServerParameters
except ImportError:
    pytest.skip("the SDK is not installed: pip install 'rung[mcp]'", allow_module_level=True)

Call = Callable[..., Awaitable[tuple[Any, str, bool]]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "work.py").write_text(WORK)
    (folder / "trace.json").write_text(json.dumps(TRACE))
    (tmp_path / "secret.json").write_text(json.dumps(TRACE))
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    return folder


def served(folder: Path, *words: str) -> "StdioServerParameters":
    paths = os.pathsep.join([str(HERE / "src"), os.environ.get("PYTHONPATH", "")])
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "rung", "mcp", "--root", str(folder), *words],
        env={**os.environ, "PYTHONPATH": paths},
    )


def with_client(folder: Path, talk: Callable[["Client", Call], Awaitable[None]], *words: str) -> None:
    async def run() -> None:
        async with Client(served(folder, *words)) as client:

            async def call(tool: str, **arguments: Any) -> tuple[Any, str, bool]:
                found = await client.call_tool(tool, arguments)
                text, *notes = [part.text for part in found.content if part.type == "text"]
                document = json.loads(text) if text.startswith("{") else text
                return document, " ".join(notes), bool(found.is_error)

            await talk(client, call)

    anyio.run(run)


async def eventually(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.05)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_traces_are_read_and_answers_fit_with_the_rest_to_be_had(project: Path) -> None:
    async def talk(client: "Client", call: Call) -> None:
        document, note, _ = await call(
            "query", path="trace.json", sql="select name, ts, dur, stream, device from events"
        )
        rows = document["rows"]
        assert len(rows) < 400
        assert f"{len(rows)} of 400 entries are shown" in note
        rest, _, _ = await call("job_result", job="1", part="/rows", start=len(rows))
        assert rest["value"][0]["name"] == f"kernel{len(rows)}"
        document, _, failed = await call("analyze", path="trace.json", show=["kernels"])
        assert (document["kind"], failed) == ("analyze", False)
        document, _, _ = await call("diff", base="trace.json", new="trace.json", by=["kernel"])
        assert document["kind"] == "diff"
        document, _, failed = await call("analyze", path="trace.json", show=["nothing"])
        assert failed
        assert "there is no analysis 'nothing'" in document["error"]
        for path in ("link.json", "../secret.json", "."):
            document, _, failed = await call("analyze", path=path)
            assert failed
            assert "leads outside of" in document["error"]

    with_client(project, talk)


def test_no_tool_reads_what_lies_beside_a_trace_and_leads_outside(project: Path) -> None:
    (project / "capture_bs32.json").symlink_to(project.parent / "secret.json")

    async def talk(client: "Client", call: Call) -> None:
        for tool, arguments in (
            ("analyze", {"path": "trace.json"}),
            ("diff", {"base": "trace.json", "new": "trace.json"}),
            ("query", {"path": "trace.json"}),
        ):
            document, _, failed = await call(tool, **arguments)
            assert failed, tool
            assert "capture_bs32.json leads outside of" in document["error"]

    with_client(project, talk)


def test_code_is_measured_and_judged_and_what_it_prints_breaks_nothing(project: Path) -> None:
    async def talk(client: "Client", call: Call) -> None:
        document, _, _ = await call("bench", target="work.py:short", call=True, preset="quick")
        assert document["time"]["value"] > 0
        document, _, failed = await call(
            "compare", a="work.py:old", b="work.py:wrong", call=True, inputs="work.py:inputs", budget=1, device="cpu"
        )
        assert (document["verdict"], failed) == ("not equal", False)
        for name, arguments in (
            ("bench", {"target": "work.py:short", "call": True, "options": {"csv": "out.csv"}}),
            ("bench", {"target": "os:getcwd", "call": True}),
            ("bench", {"target": "work.py:short", "call": True, "recipe": "../recipe.toml"}),
            ("climb", {"target": "work.py:old", "out": "../run"}),
            ("climb", {}),
        ):
            assert (await call(name, **arguments))[2]
        assert not (project.parent / "run").exists()

    with_client(project, talk)


def test_a_job_goes_on_while_others_are_asked_and_ends_when_it_is_cancelled(project: Path) -> None:
    async def talk(client: "Client", call: Call) -> None:
        job, _, _ = await call("bench", target="work.py:endless", call=True, wait=0)
        assert (job["kind"], job["status"]) == ("job", "running")
        await eventually((project / "worker").exists)
        status, _, _ = await call("job_status", job=job["job"])
        assert status["seconds"] > 0
        refused, _, failed = await call("bench", target="work.py:short", call=True)
        assert failed
        assert "disturb each other" in refused["error"]
        assert not (await call("doctor"))[2]
        worker = int((project / "worker").read_text())
        ended, _, _ = await call("job_cancel", job=job["job"])
        assert ended["status"] == "cancelled"
        await eventually(lambda: gone(worker))

    with_client(project, talk)


def test_a_climb_gives_a_job_at_once_and_its_answer_later(project: Path) -> None:
    (project / "model.py").write_text(
        "import torch, rung\n\ndef make():\n    return rung.Workload('m', lambda: torch.nn.Linear(8, 8), "
        "lambda seed: torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)))\n"
    )

    async def talk(client: "Client", call: Call) -> None:
        job, _, _ = await call("climb", target="model.py:make", budget=1, device="cpu", rungs=["channels-last"])
        assert job["status"] == "running"
        document, _, failed = await call("job_result", job=job["job"], wait=300)
        assert (document["kind"], failed) == ("run", False)
        assert Path(project, document["directory"], "report.html").is_file()

    with_client(project, talk)


def test_a_call_that_is_given_up_and_a_client_that_goes_end_what_they_began(project: Path) -> None:
    workers: list[int] = []

    async def begun() -> None:
        await eventually(lambda: (project / "worker").exists() and bool((project / "worker").read_text()))
        workers.append(int((project / "worker").read_text()))
        (project / "worker").unlink()

    async def talk(client: "Client", call: Call) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: call("bench", target="work.py:endless", call=True, wait=600))
            await begun()
            group.cancel_scope.cancel()
        await eventually(lambda: gone(workers[0]))
        await call("bench", target="work.py:endless", call=True, wait=0)
        await begun()

    with_client(project, talk)
    end = time.monotonic() + 30
    while not gone(workers[1]):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_progress_is_told_while_a_tool_waits(project: Path) -> None:
    said: list[str] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        said.append(message or "")

    async def talk(client: "Client", call: Call) -> None:
        await client.call_tool(
            "climb",
            {"target": "tiny-transformer", "options": {"size": "tiny"}, "wait": 6, "device": "cpu"},
            progress_callback=heard,
        )

    with_client(project, talk)
    assert any("tiny-transformer" in text for text in said)


def test_read_only_leaves_out_what_runs_code_or_writes(project: Path) -> None:
    async def talk(client: "Client", call: Call) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert not {"bench", "compare", "profile", "climb"} & set(tools)
        assert {"doctor", "analyze", "query", "estimate"} < set(tools)
        assert (await call("bench", target="work.py:short", call=True))[2]
        refused, _, failed = await call("analyze", path="trace.json", html="page.html")
        assert failed
        assert "--read-only" in refused["error"]
        assert not (project / "page.html").exists()

    with_client(project, talk, "--read-only")


def test_every_tool_says_what_it_is_for_with_an_example_that_its_arguments_take(project: Path) -> None:
    async def talk(client: "Client", call: Call) -> None:
        tools = (await client.list_tools()).tools
        assert sum(len(tool.model_dump_json(exclude_none=True)) for tool in tools) < 20_000
        for tool in tools:
            assert f"Example: {tool.name}(" in str(tool.description)
            given = set()
            eval(  # of our own description
                str(tool.description).partition("Example: ")[2].partition(" or job_result")[0],
                {tool.name: lambda given=given, **named: given.update(named)},
            )
            assert given <= set(tool.input_schema["properties"])
            assert set(tool.input_schema.get("required", ())) <= given

    with_client(project, talk)


def test_stdout_carries_the_protocol_alone_and_a_signal_ends_the_server(project: Path) -> None:
    server = served(project)
    process = subprocess.Popen(
        [server.command, *server.args], env=server.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    assert process.stdout
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}}  # fmt: skip
    process.stdin.write(json.dumps(hello) + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "rung"
    process.terminate()
    assert process.wait(timeout=30) == 143
    assert process.stdout.read() == ""
