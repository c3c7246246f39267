"""Level 2: torch.compile."""

from __future__ import annotations

from dataclasses import replace

from rung.ladder.rungs.proofs import counted
from rung.ladder.rungs.rung import Rung

COMPILE = Rung(
    "compile", 2, "torch.compile", "reassociated", "forward and loss as one compiled function, static shapes",
    lambda c: None,
    lambda c: {"pointwise": (0.25, 0.75), "launch_gap": (0.1, 0.8), "attention": (0.5, 1.0)},
    lambda p: replace(p, compile=True),
    "Inductor compiled the captured graphs", counted("compiled_graphs", "graphs compiled"),
    core=True, prepares=40.0,
)  # fmt: skip
