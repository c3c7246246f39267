"""Level 5: linear layers by the kernels that aiter's tables name for their shapes (AMD gfx942 and gfx950)."""

from __future__ import annotations

from rung.records.workload import LookedUp, TunedProducts
from rung.rungs.graph_rewrites import graph_rewrite
from rung.rungs.requirements import BFLOAT16, GPU, INFERENCE
from rung.rungs.rung import NOT_FOUND, Context, Inapplicable, Requirement, TimeFactors, already

JOINS = ("fused-qkv", "fused-gate-up")
BEST, WORST = 0.85, 1.03  # of the time of the products that are tuned, as a first guess


def _known(c: Context) -> Inapplicable | None:
    if not c.facts.aiter:
        return Inapplicable("the graph could not be captured, so its products are not known.")
    return Inapplicable(f"{c.facts.aiter.missing}.") if c.facts.aiter.missing else None


def _tuned(c: Context) -> Inapplicable | None:
    products = c.facts.aiter
    if products and products.tuned:
        return None
    if products and products.left:
        return already(_nothing_tuned(products))
    return Inapplicable("no linear layer found in the captured graph.", group=NOT_FOUND)


def _nothing_tuned(products: TunedProducts) -> str:
    """Why aiter would change nothing: reasons that differ are told with how many products each concerns."""
    reasons = [shape.said for shape in products.left or ()]
    counts = ", ".join(f"{reasons.count(why)}: {why}" for why in dict.fromkeys(reasons))
    return (
        f"aiter would not compute any of the {len(reasons)} shapes of linear layers with a tuned kernel on "
        f"{products.chip} ({counts}){tuning_hint(products)}."
    )


def tuning_hint(products: TunedProducts) -> str:
    return f"; to tune those without a row: {products.command}" if products.command else ""


def _factors(c: Context) -> TimeFactors:
    products, joined = c.facts.aiter, any(name in c.plan.passes for name in JOINS)
    tuned, untuned = (
        sum(_flop(shape, joined) for shape in shapes or ())
        for shapes in (products and products.tuned, products and products.left)
    )
    share = tuned / (tuned + untuned or 1)
    return {"gemm": (1 - share * (1 - BEST), 1 + share * (WORST - 1))}


def _flop(shape: LookedUp, joined: bool) -> int:
    """Of all layers of a shape; a layer that is joined counts as what it was or as what it became, and not as both."""
    m, n, k, _ = shape.sizes
    return m * n * k * shape.layers[joined]


AITER_GEMM = graph_rewrite(
    name="aiter-gemm",
    level=5,
    title="tuned matrix products of aiter",
    contract="reassociated",
    changes="linear layers whose shape is in aiter's tables use the kernel that was fastest in tuning",
    requires=(
        INFERENCE,
        GPU,
        Requirement("aiter, and a chip that it has tables for", _known),
        BFLOAT16,
        Requirement("linear layers of tuned shapes", _tuned),
    ),
    remaining=_factors,
    effect="products by the kernels that aiter's tables name",
    prepare_seconds=30.0,
)
