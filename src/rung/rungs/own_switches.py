"""Level 3: what a model can do by a switch of its own is switched, not rewritten (rung.engine.switches)."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.proofs import told
from rung.rungs.rung import Context, Inapplicable, Rung, already


def _attention_applies(c: Context) -> Inapplicable | None:
    now = c.facts.get("switches", {}).get("attention")
    if now is None:
        return Inapplicable("the model has no switch for its attention.")
    if now != "eager":
        return already(f"the model's attention is {now}.")
    return None if c.facts.get("takes_sdpa", True) else Inapplicable("the model's class says that it has no SDPA.")


def _cache_applies(c: Context) -> Inapplicable | None:
    now = c.facts.get("switches", {}).get("cache")
    if now is None or not c.facts.get("generates"):
        return Inapplicable("the workload does not call a model's `generate`.")
    return already(f"the cache of `generate` is {now}.") if now != "dynamic" else None


ATTENTION = Rung(
    "model-sdpa", 3, "the model's own switch to SDPA", "reassociated", 'model.set_attn_implementation("sdpa")',
    _attention_applies,
    lambda c: {"attention": (0.15, 0.8), "pointwise": (0.85, 1.0), "launch_gap": (0.7, 1.0)},
    lambda p: replace(p, switches=(*p.switches, ("attention", "sdpa"))),
    "attention by F.scaled_dot_product_attention", told("switch attention", "sdpa", "the model's attention"),
)  # fmt: skip

STATIC_CACHE = Rung(
    "static-cache", 3, "a cache of fixed size", "reassociated", 'model.generation_config.cache_implementation = "static"',
    _cache_applies,
    # One shape for every token: transformers then compiles the decoding step by itself.
    lambda c: {"launch_gap": (0.2, 1.05), "pointwise": (0.5, 1.0), "copy": (0.3, 1.0)},
    lambda p: replace(p, switches=(*p.switches, ("cache", "static"))),
    "keys and values written in place", told("switch cache", "static", "the cache"), prepares=60.0,
)  # fmt: skip

OWN_SWITCHES = (ATTENTION, STATIC_CACHE)
