"""Rung's commands as tools of the Model Context Protocol. Needs the package `mcp`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from rung.agents.bounded import cut_to_fit, slice_of, text_of
from rung.agents.jobs import Job, Jobs, of_the_target, options
from rung.agents.root import Root
from rung.errors import RungError, UsageError
from rung.plan import Numerics
from rung.records.job import Refused
from rung.records.record import plain

WAIT = 50.0  # seconds: many clients give up a call after a minute
LOOK = 0.02, 0.5  # seconds between two looks at a command: the first, and the most
SAY = 2.0  # seconds between two lines of progress

INSTRUCTIONS = """\
Rung measures, explains and improves the speed of PyTorch code on GPUs and CPUs. Begin with `doctor`. `bench` times a workload, `profile`
records it, `analyze`, `query` and `diff` read traces, `climb` makes it faster and proves it, `compare` judges a change of your own. Report no
speedup that no tool printed, and say its status or interval with it. Paths are relative to {root}; nothing outside of it is read
or written. A target is a function in a file that returns a rung.Workload, as model.py:make; or a model by name, as hf:Qwen/Qwen3-0.6B.
What takes longer than a tool waits goes on as a job: job_result waits for it, job_cancel ends it. One timing runs at a time."""

Target = Annotated[
    str, Field(description="model.py:make, tiny-transformer, kernelbench:path.py, hf:NAME, timm:NAME or diffusers:NAME")
]
Options = Annotated[
    dict[str, bool | int | float | str] | None,
    Field(description='Parameters of the target\'s function, as {"batch": 8}'),
]
TracePath = Annotated[str, Field(description="A trace or a folder of traces, relative to the root")]
Device = Annotated[str | None, Field(description="cpu, cuda or cuda:N (default: the best there is)")]
Rungs = Annotated[list[str] | None, Field(description='Rungs to apply, as ["compile"]')]
Recipe = Annotated[str | None, Field(description="Path of a recipe.toml that a climb wrote")]
Page = Annotated[str | None, Field(description="Also write a page to this path (.html)")]
Wait = Annotated[
    float, Field(ge=0, le=600, description="Seconds to wait for the answer before a job id is returned instead")
]
Seconds = Annotated[float | None, Field(gt=0)]
Count = Annotated[int | None, Field(ge=1)]


def refusals_as_answers(
    tool: Callable[..., Awaitable[CallToolResult]],
) -> Callable[..., Awaitable[CallToolResult]]:
    """What is refused is an error document, as that of a command."""

    @functools.wraps(tool)
    async def answered(*given: Any, **named: Any) -> CallToolResult:
        try:
            return await tool(*given, **named)
        except RungError as error:
            return result(plain(Refused(error=str(error), exit_code=error.exit_code)), failed=True)

    return answered


def result(document: Any, note: str = "", failed: bool = False) -> CallToolResult:
    """A document as JSON, and a sentence about it."""
    texts = [text_of(document), *([note] if note else [])]
    return CallToolResult(content=[TextContent(type="text", text=text) for text in texts], is_error=failed)


class Tools:
    """What an agent can call. flags: those of a command, by its name; read_only: nothing that runs code, and no file is written."""

    def __init__(self, root: Root, jobs: Jobs, flags: Callable[[str], Collection[str]], read_only: bool) -> None:
        self._root, self._jobs, self._flags, self._read_only = root, jobs, flags, read_only

    def server(self) -> MCPServer[Any]:
        from rung import __version__

        server: MCPServer[Any] = MCPServer(
            "rung",
            version=__version__,
            instructions=INSTRUCTIONS.format(root=self._root.folder),
            log_level="WARNING",
        )
        Offered = list[Callable[..., Awaitable[CallToolResult]]]
        reading: Offered = [self.doctor, self.analyze, self.diff, self.query, self.estimate]
        running: Offered = [] if self._read_only else [self.bench, self.compare, self.profile, self.climb]
        jobs: Offered = [self.job_status, self.job_result, self.job_cancel]
        for tool in (*reading, *running, *jobs):
            code = tool in running
            hints = ToolAnnotations(read_only_hint=self._read_only, destructive_hint=code, open_world_hint=False)
            about = " ".join(str(tool.__doc__).split())
            server.add_tool(refusals_as_answers(tool), description=about, annotations=hints, structured_output=False)
        return server

    # -- what only reads ----------------------------------------------------------------------------------------------

    async def doctor(self, ctx: Context) -> CallToolResult:
        """Check whether this machine is set up to be fast and to measure honestly: GPU, driver, torch, clocks, memory. Each check says what
        to mend. Call it first. Example: doctor()"""
        return await self._run(ctx, ["doctor"])

    async def analyze(
        self,
        ctx: Context,
        path: TracePath,
        show: Annotated[
            list[str] | None,
            Field(description='Names of analyses, as ["ops", "idle"]; ["list"] lists them (default: the overview)'),
        ] = None,
        step: Annotated[str | None, Field(description="Only these recorded steps, as 15,16; or all")] = None,
        steps: Annotated[
            int | None, Field(ge=1, description="How many steps were recorded (default: as the trace says)")
        ] = None,
        partial: Annotated[bool, Field(description="Of a damaged file, read what is whole")] = False,
        html: Page = None,
    ) -> CallToolResult:
        """Say where the time of a recorded trace went: torch.profiler, rocprofv3, rocpd, Nsight Systems, Perfetto. Without `show` you get an
        overview with findings, each with what to do; with it, tables. Example: analyze(path="trace.json.gz", show=["findings", "ops"])"""
        words = [
            self._root.trace(path),
            *options(show=show, step=step, steps=steps, partial=partial, html=self._page(html)),
        ]
        return await self._run(ctx, ["analyze", *words])

    async def diff(
        self,
        ctx: Context,
        base: TracePath,
        new: TracePath,
        by: Annotated[
            list[Literal["category", "op", "shape", "module", "instance", "kernel"]] | None,
            Field(description="Tables (default: category, op, module)"),
        ] = None,
        base_steps: Count = None,
        new_steps: Count = None,
        html: Page = None,
    ) -> CallToolResult:
        """Say what changed between two traces, per step of one GPU: by category, operator, module. One run each: use `compare` to learn whether
        a difference is real. Example: diff(base="before.json.gz", new="after.json.gz", by=["op"])"""
        words = options(by=by, base_steps=base_steps, new_steps=new_steps, html=self._page(html))
        return await self._run(ctx, ["diff", self._root.trace(base), self._root.trace(new), *words])

    async def query(
        self,
        ctx: Context,
        path: TracePath,
        sql: Annotated[
            str | None, Field(description="A SELECT over the events and every analysis (default: list the tables)")
        ] = None,
        steps: Count = None,
        timeout: Seconds = None,
    ) -> CallToolResult:
        """Ask a recorded trace in SQL (that of polars). Use limit and offset: answers are cut. Example: query(path="trace.json.gz",
        sql="select name, sum(dur) as total_ns from events where kind = 'kernel' group by name order by total_ns desc limit 10")"""
        # With a space before it, no statement reads as an option.
        words = [self._root.trace(path), *([f" {sql}"] if sql else []), *options(steps=steps, timeout=timeout)]
        return await self._run(ctx, ["query", *words])

    async def estimate(
        self,
        ctx: Context,
        hf: Annotated[str | None, Field(description="Path of a model's config.json, or of its folder")] = None,
        hidden: Count = None,
        layers: Count = None,
        heads: Count = None,
        kv_heads: Count = None,
        ffn: Count = None,
        vocab: Count = None,
        seq: Count = None,
        batch: Count = None,
        mode: Literal["train", "infer", "decode"] | None = None,
        dtype: Literal["fp32", "tf32", "fp16", "bf16", "fp8"] | None = None,
        gpu: Annotated[str | None, Field(description="The GPU whose roof to show, as in MI300X or H100")] = None,
        tensor_parallel: Count = None,
        data_parallel: Count = None,
        sharding: Literal["ddp", "fsdp", "zero1", "zero2", "zero3"] | None = None,
    ) -> CallToolResult:
        """Estimate a model's work, memory and least time by its configuration; nothing is run. Give `hf`, or the numbers of a decoder.
        Example: estimate(hf="config.json", mode="decode", seq=8192, batch=64, gpu="MI300X")"""
        words = options(
            hf=self._path(hf), hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, ffn=ffn, vocab=vocab, seq=seq,
            batch=batch, mode=mode, dtype=dtype, gpu=gpu, tensor_parallel=tensor_parallel, data_parallel=data_parallel,
            sharding=sharding,
        )  # fmt: skip
        return await self._run(ctx, ["estimate", *words])

    # -- what runs code -----------------------------------------------------------------------------------------------

    async def bench(
        self,
        ctx: Context,
        target: Target,
        options: Options = None,
        recipe: Recipe = None,
        rungs: Rungs = None,
        call: Annotated[bool, Field(description="The target is a plain function, and no workload")] = False,
        preset: Literal["sanity", "quick", "proper", "compile"] | None = None,
        time: Annotated[
            float | None, Field(gt=0, description="Measure no longer than so many seconds (default: 30)")
        ] = None,
        device: Device = None,
        wait: Wait = WAIT,
    ) -> CallToolResult:
        """Time a workload in a fresh process, with an interval and with notes on what makes the figure doubtful. Runs the target's code.
        Times are nanoseconds a step. Example: bench(target="model.py:make", options={"batch": 8}, time=10)"""
        words = self._on("bench", [target], options, recipe=self._path(recipe), rungs=rungs, call=call, preset=preset,
                         time=time, device=device)  # fmt: skip
        return await self._run(ctx, words, wait, alone=True)

    async def compare(
        self,
        ctx: Context,
        a: Annotated[
            str,
            Field(description="A target as for `bench`; or a measurement that `bench` printed, kept as a .json file"),
        ],
        b: Annotated[
            str | None, Field(description="The other one (default: A again, under `recipe` or `rungs`)")
        ] = None,
        options: Options = None,
        recipe: Annotated[str | None, Field(description="B runs under this recipe.toml")] = None,
        rungs: Annotated[list[str] | None, Field(description="B runs with these rungs")] = None,
        base: Annotated[str | None, Field(description="A is taken from this git revision")] = None,
        verify: Annotated[bool, Field(description="First show that B computes what A computes")] = False,
        call: Annotated[bool, Field(description="A and B are plain functions")] = False,
        inputs: Annotated[
            str | None,
            Field(
                description="With call: the function that makes the arguments from a seed, as ops.py:inputs; both are verified"
            ),
        ] = None,
        gradients: Annotated[bool, Field(description="With inputs: verify the inputs' gradients, too")] = False,
        budget: Annotated[
            float | None, Field(gt=0, description="Begin no further restart after so many seconds")
        ] = None,
        device: Device = None,
        wait: Wait = WAIT,
    ) -> CallToolResult:
        """Judge whether B is faster than A, and with verify or inputs whether it computes the same. The verdict is B's: faster, slower, same,
        inconclusive or not equal. Use it before you claim that a change of yours helps. Runs the targets' code.
        Example: compare(a="ops.py:old", b="ops.py:new", call=True, inputs="ops.py:inputs", gradients=True)"""
        targets = [one for one in (a, b) if one is not None]
        words = self._on("compare", targets, options, recipe=self._path(recipe), rungs=rungs, verify=verify, call=call,
                         base=self._root.revision(base) if base else None, inputs=self._root.target(inputs) if inputs else None,
                         gradients=gradients, budget=budget, device=device)  # fmt: skip
        return await self._run(ctx, words, wait, alone=True)

    async def profile(
        self,
        ctx: Context,
        target: Target,
        options: Options = None,
        rungs: Rungs = None,
        preset: Annotated[
            str | None, Field(description="What to collect: trace, compute, memory, ... (default: torch.profiler)")
        ] = None,
        steps: Annotated[int | None, Field(ge=1, description="Steady steps to record (default: 3)")] = None,
        stacks: bool = False,
        modules: bool = False,
        memory: bool = False,
        flops: bool = False,
        out: Annotated[str | None, Field(description="A new folder for it (default: below .rung/profiles)")] = None,
        device: Device = None,
        wait: Wait = WAIT,
    ) -> CallToolResult:
        """Record a few steps of a workload, and say what they show. Runs the target's code. The trace is kept below .rung/profiles for
        `analyze`, `query` and `diff`. Example: profile(target="model.py:make", steps=3)"""
        self._writable(".rung/profiles")
        words = self._on("profile", [target], options, rungs=rungs, preset=preset, steps=steps, stacks=stacks,
                         modules=modules, memory=memory, flops=flops, out=self._path(out), device=device)  # fmt: skip
        return await self._run(ctx, words, wait, alone=True)

    async def climb(
        self,
        ctx: Context,
        target: Annotated[str | None, Field(description="As for `bench`; leave it out with resume")] = None,
        options: Options = None,
        numerics: Annotated[
            Numerics | None,
            Field(
                description="What may change: exact (default on a CPU), tf32 (default on a GPU), bf16, fp8. Ask the user if you do not know"
            ),
        ] = None,
        budget: Annotated[float, Field(gt=0, description="Seconds, after which it ends with its best answer")] = 300.0,
        rungs: Annotated[list[str] | None, Field(description="Try only these, in this order")] = None,
        resume: Annotated[str | None, Field(description="Go on with the climb in this run directory")] = None,
        out: Annotated[str | None, Field(description="The run directory (default: a new one in .rung)")] = None,
        device: Device = None,
        wait: Wait = 0.0,
    ) -> CallToolResult:
        """Make a workload faster, step by step, and prove each step. It takes minutes, so you get a job id at once: job_status shows its
        progress, job_result its answer, with the path of recipe.toml. Runs the target's code.
        Example: climb(target="model.py:make", numerics="bf16", budget=300)"""
        if (target is None) == (resume is None):
            raise UsageError("give climb a target, or resume=RUN to go on with one; not both.")
        self._writable(".rung")
        words = self._on("climb", [target] if target else [], options, numerics=numerics, budget=budget, rungs=rungs,
                         resume=self._root.run(resume) if resume else None, out=self._path(out), device=device)  # fmt: skip
        return await self._run(ctx, words, wait, alone=True)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def job_status(self, job: Annotated[str, Field(description="The id that a tool returned")]) -> CallToolResult:
        """Say how a job stands: its status, how long it has been running, the last lines of its progress. Example: job_status(job="1")"""
        return result(self._jobs.get(job).record())

    async def job_result(
        self,
        ctx: Context,
        job: Annotated[str, Field(description="The id that a tool returned")],
        wait: Wait = WAIT,
        part: Annotated[
            str | None,
            Field(
                description="Only this part of the answer, as a JSON pointer: /tables/ops. An empty text is all of it"
            ),
        ] = None,
        start: Annotated[
            int, Field(ge=0, description="With part: from this entry of a list, or character of a text, on")
        ] = 0,
    ) -> CallToolResult:
        """Wait for a job and return its answer; while it still runs, its status. With `part` and `start` you get what was cut from an
        answer. Example: job_result(job="1", wait=60) or job_result(job="2", part="/tables/ops", start=20)"""
        return await self._waited(ctx, self._jobs.get(job), wait, part, start)

    async def job_cancel(self, job: Annotated[str, Field(description="The id that a tool returned")]) -> CallToolResult:
        """End a job and all its processes. A climb keeps what it found so far; job_result returns it. Example: job_cancel(job="1")"""
        found = self._jobs.get(job)
        await anyio.to_thread.run_sync(found.end)
        return result(found.record())

    # -- how --------------------------------------------------------------------------------------------------------

    def _on(self, command: str, targets: list[str], given: dict[str, Any] | None, **more: Any) -> list[str]:
        """The words of a command about targets, which come first: its own options follow, then those of the targets."""
        files = command == "compare" and all(name.endswith(".json") for name in targets)
        named = [self._root.path(name) if files else self._root.target(name) for name in targets]
        return [command, *named, *options(**more), *of_the_target(given or {}, self._flags(command))]

    def _path(self, text: str | None) -> str | None:
        return None if text is None else self._root.path(text)

    def _page(self, text: str | None) -> str | None:
        if text is None:
            return None
        if self._read_only:
            raise UsageError("this server was started with --read-only, so no page is written: leave html out.")
        return self._root.page(text)

    def _writable(self, folder: str) -> None:
        """Raises UsageError where a folder that a command writes to by default is a link that leads out."""
        self._root.path(folder)

    async def _run(self, ctx: Context, words: list[str], wait: float = WAIT, alone: bool = False) -> CallToolResult:
        """Starts a command. A client that gives up the call before it was answered ends the command, too."""
        while alone and self._jobs.ending():
            await anyio.sleep(LOOK[1])
        job = self._jobs.start(words, alone)
        try:
            return await self._waited(ctx, job, wait)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(job.end)
            raise

    async def _waited(
        self, ctx: Context, job: Job, wait: float, part: str | None = None, start: int = 0
    ) -> CallToolResult:
        """The answer of a job, or how it stands after `wait` seconds."""
        until, pause, told = anyio.current_time() + wait, LOOK[0], anyio.current_time()
        while job.running and anyio.current_time() < until:
            await anyio.sleep(min(pause, max(0.0, until - anyio.current_time())))
            pause = min(LOOK[1], 1.5 * pause)
            if anyio.current_time() - told > SAY:
                told = anyio.current_time()
                await ctx.report_progress(round(job.seconds, 1), None, " ".join(job.said(1)))
        if job.running:
            return result(job.record())
        document, failed = job.document(), job.status() == "failed"
        if part is not None:
            return result(slice_of(document, part, start))
        return result(*cut_to_fit(document, job.name), failed)


async def serve(tools: Tools) -> None:
    """Answers on stdin and stdout until the client closes them."""
    await tools.server().run_stdio_async()
