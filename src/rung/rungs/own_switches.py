"""Level 3: what a model can do by a switch of its own is switched, not rewritten (rung.engine.switches)."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.proofs import reported
from rung.rungs.rung import Context, Inapplicable, Requirement, Rung, already


def _eager_attention(c: Context) -> Inapplicable | None:
    now = (c.facts.switches or {}).get("attention")
    if now is None:
        return Inapplicable("the model has no switch for its attention.")
    if now != "eager":
        return already(f"the model's attention is {now}.")
    return None if c.facts.takes_sdpa is not False else Inapplicable("the model's class says that it has no SDPA.")


def _growing_cache(c: Context) -> Inapplicable | None:
    now = (c.facts.switches or {}).get("cache")
    if now is None or not c.facts.generates:
        return Inapplicable("the workload does not call a model's `generate`.")
    return already(f"the cache of `generate` is {now}.") if now != "dynamic" else None


ATTENTION = Rung(
    name="model-sdpa",
    level=3,
    title="the model's own switch to SDPA",
    contract="reassociated",
    changes='model.set_attn_implementation("sdpa")',
    requires=(Requirement("a model of transformers with eager attention", _eager_attention),),
    remaining=lambda c: {"attention": (0.15, 0.8), "pointwise": (0.85, 1.0), "launch_gap": (0.7, 1.0)},
    change=lambda p: replace(p, switches=(*p.switches, ("attention", "sdpa"))),
    effect="attention by F.scaled_dot_product_attention",
    proof=reported("switch attention", "sdpa", "the model's attention"),
)

STATIC_CACHE = Rung(
    name="static-cache",
    level=3,
    title="a cache of fixed size",
    contract="reassociated",
    changes='model.generation_config.cache_implementation = "static"',
    requires=(Requirement("a call of `generate` with a growing cache", _growing_cache),),
    # One shape for every token: transformers then compiles the decoding step by itself.
    remaining=lambda c: {"launch_gap": (0.2, 1.05), "pointwise": (0.5, 1.0), "copy": (0.3, 1.0)},
    change=lambda p: replace(p, switches=(*p.switches, ("cache", "static"))),
    effect="keys and values written in place",
    proof=reported("switch cache", "static", "the cache"),
    prepare_seconds=60.0,
)

OWN_SWITCHES = (ATTENTION, STATIC_CACHE)
