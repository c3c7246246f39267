"""A workload under a recipe, as a worker process loads it for the climb; nothing of its model is made yet."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rung.engine.step import Step
from rung.hardware import Device, affinity, environment, pick
from rung.hardware.device import release_cache, reset_peak_memory, synchronize, to_device
from rung.hardware.ranks import Ranks
from rung.launch.fork_server import spared
from rung.plan import Original, Plan
from rung.rungs import plan_of
from rung.timing.compile_cache import remove_cut_off
from rung.workload import Workload, load, of_rank, seeded_model, shapes
from rung.workload.load import find
from rung.workload.model_cache import read_from, try_saved

READ_AT_IMPORT = re.compile("TORCH|TRITON")  # variables that torch's compiler reads when it is imported


class LoadedWorkload:
    """workload: that of this rank, which runs on `inputs`; plan: what the recipe adds up to; made_for: what the recipe was made for."""

    device: Device
    workload: Workload
    inputs: Callable[[int], Any]
    plan: Plan
    made_for: dict[str, str]
    _of_one: Workload  # which all ranks make alike, on whatever GPU each of them is
    _loaded: tuple[str, dict[str, str], Workload] | None = None  # target and options; ahead of `open`

    def preload(self, target: str, device: str | None) -> None:
        """Imports what running the target takes, before it is known under which recipe; nothing of it is made."""
        importlib.import_module("torch._inductor.compile_fx")
        with contextlib.suppress(Exception):  # what is wrong with the target is said when it is opened
            find(target)
        if pick(device).is_gpu:
            torch.cuda.init()

    def load_ahead(self, target: str, options: dict[str, str], device: str | None) -> None:
        """Calls the target's function before it is known under which recipe it is opened. What is wrong with it is said then."""
        with contextlib.suppress(Exception, SystemExit):
            if pick(device).index == 0:  # to make another one the current one takes its memory
                self._loaded = target, options, load(target, options)

    def open(
        self,
        target: str,
        options: dict[str, str],
        rungs: list[str],
        device: str | None,
        shape: int = 0,
        original: dict[str, int] | None = None,
        made_for: dict[str, str] | None = None,
        one_shape: bool = False,
        saved_model: str = "",
        gpu_draws: bool = False,
        briefly: bool = False,
    ) -> dict[str, Any]:
        """Loads the workload; nothing of the model is made yet. shape: which of its input shapes is run; original: inputs
        that are left to the workload as it is (`rung.plan.Original`); made_for: what its recipe was made for; one_shape: it
        runs on inputs of the measured shape alone; saved_model: a file to read the model from (`rung.workload.model_cache`); gpu_draws: where it is
        made, a GPU draws its random numbers; briefly: of the environment (`rung.hardware.environment`)."""
        ranks = Ranks.here
        self.device = pick(ranks.device(device, torch.cuda.device_count()))
        if self.device.is_gpu:  # streams, events and graphs belong to the current device
            torch.cuda.set_device(self.device.index)
        ranks.join(self.device.is_gpu)
        remove_cut_off()
        before = dict(os.environ)
        found, self._loaded = self._loaded, None
        self.workload = found[2] if found and found[:2] == (target, options) else load(target, options)
        changed = [
            name for name, value in os.environ.items() if before.get(name) != value and READ_AT_IMPORT.search(name)
        ]
        if one_shape:
            self.workload = replace(self.workload, one_shape=True, other_shapes=())
        self._of_one = self.workload
        taken = torch.cuda.memory_reserved(self.device.index) if self.device.is_gpu else 0
        if saved_model or gpu_draws:
            path = Path(saved_model) if saved_model else None
            gpu = torch.device(self.device.torch_name) if self.device.is_gpu else None
            if path:
                try_saved(path, self._runs)
            self.workload = read_from(self.workload, path, gpu)
        if ranks.world > 1:
            self.workload = of_rank(self.workload, ranks.rank, ranks.world)
        self.inputs = shapes(self.workload)[shape] if shape else self.workload.inputs
        self.plan = replace(plan_of(rungs), original=Original(**original or {}))
        if self.plan.exchange.cores and ranks.world > 1:
            affinity.bind(self.device)
        self.made_for = made_for or {}
        w = self.workload
        if w.mode == "train":  # torch's optimizers load it when they are made; here no garbage is looked for meanwhile
            importlib.import_module("torch._dynamo")
        return {"name": w.name, "mode": w.mode, "samples": w.samples, "tokens": w.tokens, "steps": w.steps,
                "environment": environment(self.device, briefly=briefly), "parallel": w.parallel if w.mode == "train" else "none",
                "too_late": changed if spared else [],
                "gpu_bytes": taken}  # fmt: skip

    def _runs(self, model: Callable[[], torch.nn.Module]) -> None:
        """One step of the untouched workload with another model, as far as its loss. It leaves no memory behind."""
        workload = replace(self.workload, model=model)
        try:
            step = Step(workload, seeded_model(workload).to(self.device.torch_name), Plan(), self.device)
            with torch.set_grad_enabled(step.training):
                step.forward(to_device(workload.inputs(0), self.device))
            synchronize(self.device)
            del step
        finally:
            gc.collect()  # a step and its model hold one another
            release_cache(self.device)
            reset_peak_memory(self.device)
