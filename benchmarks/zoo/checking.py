"""Makes cases at toy size on the CPU, and steps once, or verifies them under all rewrites."""

from __future__ import annotations

import argparse
import importlib.util

from choosing import cases, chosen
from making import INFER, Case


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
