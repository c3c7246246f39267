"""A climb as its record, with every verdict in it: a small transformer, trained on one GPU."""

from __future__ import annotations

import random
from typing import Any

from rung.records.climb import Attempt, ClimbRun, DryRun
from rung.records.record import plain, record_of

VERDICTS = ("kept", "reverted", "no-op", "inapplicable", "inconclusive", "failed")
FACTS: dict[str, Any] = {
    "gpu": True, "mode": "train", "rates": {}, "matches": {}, "skipped": [], "graph_breaks": [], "without_gradient": [],
}  # fmt: skip
PARTS = ("gemm", "attention", "pointwise", "optimizer", "convolution", "communication", "copy", "other")


def estimate(value: float, spread: float = 0.02) -> dict[str, float]:
    return {"value": value, "low": value * (1 - spread), "high": value * (1 + spread)}


def memory(gib: float) -> dict[str, int]:
    return {"allocated": int(gib * 2**30), "reserved": int(gib * 1.3 * 2**30)}


def breakdown(step: float, **shares: float) -> dict[str, Any]:
    parts = {name: step * shares.get(name, 0.0) for name in (*PARTS, "launch_gap", "idle")}
    most = max(parts, key=lambda name: parts[name])
    return {
        "clock": "gpu",
        "step_ns": step,
        "parts": parts,
        "kernels": 412.0,
        "launches": 420.5,
        "gemms": 97.0,
        "bottleneck": most,
        "share": parts[most] / step,
        "notes": ["Three kernels were launched before the window began and are counted."],
        "top": [
            (
                "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
                "gemm",
                step * 0.2,
                48.0,
            ),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::GeluFunctor>",
                "pointwise",
                step * 0.06,
                16.0,
            ),
        ],
    }


def attempt(
    number: int,
    rung: str,
    verdict: str,
    why: str,
    before: float | None = None,
    after: float | None = None,
    **more: Any,
) -> Attempt:
    """before, after: ns a step of the best so far and of the candidate, where it was timed."""
    noise = random.Random(number)
    record: dict[str, Any] = {
        "number": number,
        "rung": rung,
        "level": 1,
        "title": f"The rung called {rung}",
        "contract": "reassociated",
        "changes": "Changes how the step is run, not what it computes.",
        "prediction": {"low": 1.2, "high": 2.0, "shares": {"pointwise": 0.3, "launch_gap": 0.12, "attention": 0.01}},
        "verdict": verdict,
        "why": why,
        "comparison": None,
        "against": "baseline",
        "times": None,
        "restarts": [],
        "memory": None,
        "first_run_seconds": None,
        "verification": None,
        "matches": {},
        "graph_breaks": [],
        "breakdown": None,
        "forecast": "",
        "seconds": 34.2,
        "log": f"workers/{number:02}-{rung}.log",
    }
    if before is not None and after is not None:
        speedup = before / after
        answer = "faster" if speedup > 1.02 else "slower" if speedup < 0.98 else "undecided"
        record |= {
            "comparison": {
                "answer": answer,
                "speedup": estimate(speedup, 0.03),
                "restarts": 3,
                "confidence": 0.985,
                "margin": None,
                "visible": 0.01,
                "final": True,
                "cut": False,
            },
            "times": {"best": estimate(before), "candidate": estimate(after)},
            "restarts": [
                {
                    "best": [before * noise.gauss(1.0, 0.01) for _ in range(90)],
                    "candidate": [after * noise.gauss(1.0, 0.012) for _ in range(89)] + [after * 1.9],
                }
                for _ in range(3)
            ],
            "memory": {"best": memory(3.1), "candidate": memory(3.1 * after / before)},
            "first_run_seconds": {"best": 0.4, "candidate": 24.7},
            "verification": {
                "passed": True,
                "cases": 3,
                "checks": 231,
                "reference": "float64",
                "worst": {
                    "what": "gradient blocks.0.attention.key.weight",
                    "case": "first shape",
                    "why": "",
                    "error": 1e-3,
                    "noise": 8e-4,
                    "tolerance": 2.4e-3,
                    "ratio": 1.25,
                    "precision": "bf16",
                },
                "failures": [],
                "precisions": ["exact", "bf16"],
            },
            "matches": {"sdpa": 8},
            "breakdown": breakdown(after, gemm=0.5, attention=0.2, pointwise=0.12, optimizer=0.1, idle=0.08),
            "forecast": "inside" if 1.2 <= speedup <= 2.0 else "above" if speedup > 2.0 else "below",
        }
    return record_of(Attempt, record | more)


def climb() -> ClimbRun:
    ms = 1e6
    attempts = [
        attempt(1, "tf32", "kept", "Matrix products run on tensor cores.", 26.6 * ms, 19.1 * ms),
        attempt(2, "bf16", "kept", "Faster, and within the tolerance of bf16.", 19.1 * ms, 9.7 * ms),
        attempt(3, "fused-attention", "kept", "Eight attention blocks became one kernel each.", 9.7 * ms, 5.9 * ms),
        attempt(4, "fused-optimizer", "kept", "One kernel updates all 74 parameters.", 5.9 * ms, 5.0 * ms),
        attempt(
            5,
            "compile",
            "kept",
            "Pointwise kernels were fused: 412 kernels became 160.",
            5.0 * ms,
            3.3 * ms,
            graph_breaks=["call to print() in blocks.0.forward (model.py:41)"],
        ),
        attempt(6, "channels-last", "inapplicable", "The model has no convolution.", prediction=None),
        attempt(7, "flash-setting", "no-op", "The setting is already the default of torch 2.13."),
        attempt(8, "max-autotune", "inconclusive", "No difference of 1 % could be shown.", 3.3 * ms, 3.29 * ms),
        attempt(9, "fused-projections", "reverted", "It is slower: the wide product is split.", 3.3 * ms, 3.9 * ms),
        attempt(10, "cuda-graphs", "kept", "The step no longer waits for launches.", 3.3 * ms, 2.83 * ms),
        attempt(
            11,
            "custom-norm",
            "failed",
            "Refused: 73 of 74 parameters have no gradient.",
            verification={
                "passed": False,
                "cases": 1,
                "checks": 77,
                "reference": "float64",
                "worst": None,
                "failures": [
                    "gradient of blocks.0.attention.key.weight is missing",
                    "the loss does not fall",
                ],
                "precisions": ["exact"],
            },
        ),
    ]
    kept = [a.rung for a in attempts if a.verdict == "kept"]
    before = breakdown(
        26.6 * ms,
        gemm=0.42,
        attention=0.2,
        pointwise=0.19,
        optimizer=0.07,
        copy=0.03,
        other=0.01,
        launch_gap=0.05,
        idle=0.03,
    )
    after = breakdown(2.83 * ms, gemm=0.55, attention=0.18, pointwise=0.12, optimizer=0.1, idle=0.05)
    run = {
        "directory": "runs/2026-01-02-tiny-transformer",
        "running": False,
        "plan": None,
        "manifest": {
            "schema": 1,
            "kind": "climb",
            "status": "complete",
            "why": "",
            "target": "tiny-transformer",
            "options": {"numerics": "bf16"},
            "numerics": "bf16",
            "request": {},
            "facts": FACTS,
            "command": "rung climb tiny-transformer --numerics bf16",
            "created": "2026-01-02T03:04:05+00:00",
            "workload": {
                "name": "tiny-transformer",
                "mode": "train",
                "samples": 8,
                "tokens": 2048,
                "parameters": 31_500_000,
                "flops": 3.9e11,
            },
            "environment": {
                "device": {
                    "name": "Example GPU 80GB",
                    "kind": "cuda",
                    "vendor": "example",
                    "arch": "sm_90",
                    "memory": 80 * 2**30,
                    "units": 132,
                },
                "torch": "2.13.0",
                "cuda": "13.0",
                "rocm": None,
                "python": "3.12.1",
                "platform": "Linux-6.8-x86_64",
                "threads": 16,
                "variables": {"OMP_NUM_THREADS": "16"},
                "git": "0123456789ab+",
            },
        },
        "baseline": {
            "time": estimate(26.6 * ms),
            "samples": [26.6 * ms] * 40,
            "first_run_seconds": 1.9,
            "warm_up_runs": 12,
            "steady": True,
            "memory": memory(3.1),
            "breakdown": before,
            "without_gradient": [],
            "floor": {"precision": "bf16", "seconds": 0.0004, "share": 0.015},
        },
        "attempts": [plain(a) for a in attempts],
        "result": {
            "kept": kept,
            "speedup": {"value": 9.4, "low": 9.2, "high": 9.6},
            "confidence": 0.985,
            "times": {"baseline": estimate(26.6 * ms), "best": estimate(2.83 * ms)},
            "memory": {"baseline": memory(3.1), "best": memory(1.2)},
            "breakdown": after,
            "recipe": "recipe.toml",
            "recipe_text": 'schema = 1\nrungs = ["tf32", "bf16", "fused-attention"]\n',
            "seconds": 725.0,
        },
    }
    return record_of(ClimbRun, {"kind": "run"} | run)


def unfinished() -> ClimbRun:
    """The least that a run directory can give: a manifest, and nothing measured."""
    workload = {"name": "make", "mode": "infer"}
    manifest = {
        "schema": 1, "status": "interrupted", "why": "", "target": "model.py:make", "numerics": "exact", "request": {}, "facts": FACTS,
        "workload": workload, "environment": {"device": {"name": "a CPU", "memory": 0}},
    }  # fmt: skip
    nothing = {"kind": "run", "running": False, "baseline": None, "attempts": [], "plan": None, "result": None}
    return record_of(ClimbRun, nothing | {"manifest": manifest, "directory": "runs/x y"})


def nothing_kept() -> ClimbRun:
    run = climb()
    run.attempts = [a for a in run.attempts if a.verdict != "kept"]
    assert run.result is not None
    run.result.kept, run.result.speedup = [], None
    return run


def planned() -> ClimbRun:
    """A dry run: one rung would be tried, two would not, for one reason."""
    run = unfinished()
    run.manifest.status = "planned"
    rungs = [attempt(1, "sdpa", "", "")]
    rungs += [
        attempt(1, name, "inapplicable", "There is none.", log="") for name in ("channels-last", "cudnn-attention")
    ]
    run.plan = DryRun(rungs=rungs)
    return run
