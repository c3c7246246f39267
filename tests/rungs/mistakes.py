"""What an implementation of each rung could get wrong, injected where the rung works.

Rewrites of the graph have a table of their own: tests/rewrites/test_rewrites_gone_wrong.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import small
import torch
import torch.nn.functional as F
from torch import fx, nn

from rung.engine import compiled, step
from rung.engine.linears import EightBits
from rung.engine.step import Step
from rung.plan import Numerics
from rung.rewrites import RewriteBackend
from rung.workload import Workload

Patch = pytest.MonkeyPatch
Change = Callable[[Step], None]


@dataclass(frozen=True)
class Mistake:
    """A slip in what `rung` hands back. slip: what is patched before the candidate's step is made; what it returns, if
    anything, is done to that step. says: words of the refusal; precision: at which it is looked for."""

    rung: str
    what: str
    slip: Callable[[Patch], Change | None]
    says: str
    workload: Workload = small.PRODUCTS
    precision: Numerics = "exact"


# -- of the compiler: what it hands back is another function of the same graph -----------------------------------


def graph(change: Callable[[fx.Graph], Any]) -> Callable[[Patch], None]:
    """Hands back the captured graph, changed."""

    def compile_(backend: Any, gm: fx.GraphModule, inputs: Any) -> Any:
        before = str(gm.graph)
        change(gm.graph)
        assert str(gm.graph) != before
        gm.recompile()
        return gm.forward

    return lambda patch: patch.setattr(RewriteBackend, "compiled", compile_)


def called(change: Callable[[Any, list[Any]], Any]) -> Callable[[Patch], None]:
    """Hands back what calls the captured graph otherwise: `(run, arguments) -> results`."""
    return lambda patch: patch.setattr(
        RewriteBackend, "compiled", lambda backend, gm, inputs: lambda *given: change(gm.forward, list(given))
    )


def nodes(graph: fx.Graph, *targets: Any) -> list[fx.Node]:
    return [node for node in graph.nodes if node.target in targets]


def left_out(target: Any) -> Callable[[fx.Graph], None]:
    def change(graph: fx.Graph) -> None:
        for node in nodes(graph, target):
            node.replace_all_uses_with(node.args[0])

    return change


def exchanged(graph: fx.Graph) -> None:
    left, right = nodes(graph, F.linear, torch._C._nn.linear)[-2:]
    for user in (*left.users, *right.users):
        user.args = tuple({left: right, right: left}.get(item, item) for item in user.args)


def sharing_memory(graph: fx.Graph) -> None:
    left, right = nodes(graph, F.linear, torch._C._nn.linear)[-2:]
    for user in list(left.users):
        user.args = tuple(right if item is left else item for item in user.args)


def through(target: Any, new: Callable[..., Any]) -> Callable[[fx.Graph], None]:
    def change(graph: fx.Graph) -> None:
        for node in nodes(graph, *(target if isinstance(target, tuple) else (target,))):
            node.target = new

    return change


def constant(old: float, new: float) -> Callable[[fx.Graph], None]:
    def change(graph: fx.Graph) -> None:
        for node in graph.nodes:
            node.args = tuple(new if item == old and isinstance(item, float) else item for item in node.args)

    return change


def remembers(weights: bool) -> Callable[[Patch], None]:
    """The weights, or everything else, of the first call for ever."""

    def patched(patch: Patch) -> None:
        kept: dict[Any, list[Any]] = {}

        def change(run: Any, given: list[Any]) -> Any:
            key = "all" if weights else tuple(t.shape for t in given)
            first = kept.setdefault(key, [t.detach().clone() for t in given])
            return run(*(a if isinstance(b, nn.Parameter) is weights else b for a, b in zip(first, given, strict=True)))

        called(change)(patch)
        patch.setattr(compiled.Compiled, "renewed", lambda self: compiled.Renewed.NOTHING)

    return patched


def tail(run: Any, given: list[Any]) -> Any:
    results = run(*given)
    return [torch.cat([t.flatten()[:-4], t.new_zeros(4)]).view(t.shape) if t.dim() > 1 else t for t in results]


def reading_early(patch: Patch) -> None:
    """The last elements of a result are those of the call before: what they were computed of was not written yet."""
    before: dict[Any, list[Any]] = {}

    def change(run: Any, given: list[Any]) -> Any:
        results = list(run(*given))
        old = before.get(key := tuple(t.shape for t in results), results)
        before[key] = [t.detach().clone() for t in results]
        return [
            torch.cat([t.flatten()[:-4], o.flatten()[-4:]]).view(t.shape) for t, o in zip(results, old, strict=True)
        ]

    called(change)(patch)


def one_shape(run: Any, given: list[Any]) -> Any:
    rows = next(t for t in given if type(t) is torch.Tensor).shape[0]
    return [t if rows == 4 else t * 1.01 for t in run(*given)]


def low(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A product in bfloat16 that looks like one in float32."""
    made = F.linear(x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16())
    return made.to(x.dtype)


def turned(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    return F.conv2d(x, weight.transpose(2, 3).contiguous(), *rest)


LINEAR, CONVOLUTION = (F.linear, torch._C._nn.linear), (F.conv2d, torch.conv2d)
detached = through(F.gelu, lambda x: F.gelu(x.detach()))

COMPILER = [
    Mistake("compile", "an operation is left out", graph(left_out(torch.sigmoid)), "output is off by"),
    Mistake("compile", "the gradient ends half-way", graph(detached), "parameters get no gradient", small.TRAINED),
    Mistake("compile", "made for the first shape alone", called(one_shape), "shape 2"),
    Mistake("compile", "the first batch's result is kept", remembers(weights=False), "output is off by"),
    Mistake("compile-regions", "the first block's weights in all", remembers(weights=True), "output is off by", small.DEEP),
    Mistake("compile", "weights as they were when it compiled", remembers(weights=True), "output is off by"),
    Mistake("compile", "a bias lost on the way", graph(through(LINEAR, lambda x, w, b=None: F.linear(x, w))), "output is off by"),
    Mistake("coordinate-descent", "the last elements not written", called(tail), "output is off by"),
    Mistake("max-autotune", "the product chosen is in bfloat16", graph(through(LINEAR, low)), "output is off by"),
    Mistake("combo-kernels", "two results exchanged", graph(exchanged), "output is off by"),
    Mistake("shape-padding", "the rows of padding in the place of the last", called(tail), "output is off by"),
    Mistake("eager-rounding", "what eager keeps in float32 rounded, too", graph(through(LINEAR, low)), "output is off by"),
    Mistake("pdl", "a kernel reads what is not written yet", reading_early, "output is off by"),
    Mistake("epilogue-fusion-first", "the activation left out", graph(left_out(F.gelu)), "output is off by"),
    Mistake("layout-optimization", "rows and columns exchanged", graph(through(CONVOLUTION, turned)), "output is off by", small.IMAGES),
    Mistake("cpp-wrapper", "a number passed as an integer", graph(constant(0.7, 1)), "output is off by"),
    Mistake("reduce-overhead", "replayed on the inputs of the recording", remembers(weights=False), "output is off by"),
    Mistake("reduce-overhead", "two results share their memory", graph(sharing_memory), "output is off by"),
    Mistake("dynamic-shapes", "right at the size that was compiled first", called(one_shape), "shape 2"),
]  # fmt: skip


# -- of the whole step as one graph --------------------------------------------------------------------------------


def recorded(**slips: bool) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(step, "GraphedStep", type("Slipped", (small.Recorded,), slips))


CAPTURE = [
    Mistake("capture", "inputs of the recording", recorded(inputs=False), "output is off by", small.RECORDED),
    Mistake("capture", "results of the recording", recorded(result=False), "output is off by", small.RECORDED),
    Mistake("capture", "gradients of the step before", recorded(gradients=False), "gradient of", small.RECORDED),
    Mistake("capture", "the learning rate built in", recorded(rate=False), "change of .* over 5 steps", small.RECORDED),
    Mistake("capture", "one graph for all shapes", recorded(shape=False), "another form|the candidate raised", small.RECORDED),
]  # fmt: skip


# -- of the optimizer ----------------------------------------------------------------------------------------------


def optimizer(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Callable[[Patch], None]:
    """Another optimizer in the place of the fused one, which says of itself what the right one would."""

    def remade(mine: Any, *, fused: bool, capturable: bool) -> torch.optim.Optimizer:
        if not fused:
            return mine
        said = mine.param_groups[0]
        theirs = make(list(said["params"]))
        theirs.param_groups[0].update({k: v for k, v in said.items() if k not in ("params", *SLIPPED)})
        return theirs

    return lambda patch: patch.setattr(step, "rebuild", remade)


SLIPPED = ("betas", "eps", "weight_decay", "decoupled_weight_decay", "amsgrad")
adamw = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)


def uncounted(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    made = adamw(params)

    def hook(optimizer: Any, *_: Any) -> None:
        for held in optimizer.state.values():
            held["step"].zero_()

    made.register_step_pre_hook(hook)
    return made


def idle(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    made = adamw(params)
    made.step = lambda *_: None  # type: ignore[method-assign]
    return made


OPTIMIZER = [
    Mistake("fused-optimizer", what, optimizer(make), says, small.TRAINED)
    for what, make, says in (
        ("weight decay in the gradient", partial(torch.optim.Adam, lr=1e-3, weight_decay=0.1), "change of .* over"),
        ("weight decay forgotten", partial(adamw, weight_decay=0.0), "change of .* over"),
        ("betas exchanged", partial(adamw, betas=(0.999, 0.9)), "change of .* over"),
        ("eps a hundred times", partial(adamw, eps=1e-6), "change of .* over"),
        ("steps not counted", uncounted, "change of .* over"),
        ("one weight left out", lambda params: adamw(params[:-1]), "steps 7 parameters, but the baseline's steps 8|change of"),
        ("no step at all", idle, "change of .* over"),
    )
]  # fmt: skip


# -- of a format: products in fewer bits, and weights that are copied for them -------------------------------------


def eight_bits(slip: Callable[[nn.Linear, Any], Any]) -> Callable[[Patch], None]:
    """Layers in 8 bits whose forward is another: `(layer, right) -> forward`, one layer of them all."""

    class Slipped(EightBits):
        def __init__(self, model: nn.Module, kind: str, arch: str) -> None:
            super().__init__(model, kind, "sm90")
            self._bound[1] = slip(self.layers[1], self._bound[1])

    return lambda patch: patch.setattr(compiled, "EightBits", Slipped)


def row_zeroed(layer: nn.Linear, right: Any) -> Any:
    kept = torch.ones(layer.out_features)
    kept[3] = 0
    return lambda x: right(x) * kept.to(x.dtype)


def scales_rolled(layer: nn.Linear, right: Any) -> Any:
    scales = layer.weight.detach().float().abs().amax(1)
    return lambda x: right(x) * (scales.roll(1) / scales).to(x.dtype)


def never_renewed(patch: Patch) -> None:
    eight_bits(lambda layer, right: right)(patch)
    patch.setattr(compiled.Compiled, "renewed", lambda self: compiled.Renewed.NOTHING)


EIGHT_BITS = [
    Mistake(rung, what, slip, says, small.HALF, "fp8")
    for rung in ("fp8-linears", "int8-weights")
    for what, slip, says in (
        ("a row of zeros", eight_bits(row_zeroed), "blocks.0.left.* row 3"),
        ("a row's scale on the next", eight_bits(scales_rolled), "blocks.0.left.* row"),
        ("the bias missed", eight_bits(lambda layer, right: lambda x: right(x) - layer.bias), "output is off by|blocks.0.left"),
        ("weights as they were before the update", never_renewed, "output is off by"),
    )
]  # fmt: skip


def changed(change: Callable[[nn.Module], None]) -> Callable[[Patch], Change]:
    """The candidate's model, changed when its step is made: what its libraries compute, or its copies of weights."""
    return lambda patch: lambda made: change(made.model)


def library(new: Callable[..., Any], kind: type[nn.Module] = nn.Linear) -> Callable[[Patch], Change]:
    """Products, or convolutions, that the candidate's libraries compute otherwise: `(module, x) -> result`."""

    def change(model: nn.Module) -> None:
        for module in (m for m in model.modules() if type(m) is kind):
            module.forward = partial(new, module)  # type: ignore[method-assign]

    return changed(change)


def weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Patch], Change]:
    def on(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data = change(parameter.detach())

    return changed(on)


def eighth(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return nn.Linear.forward(layer, x.to(torch.float8_e4m3fn).to(x.dtype))


def reread(weight: torch.Tensor) -> torch.Tensor:
    return weight if weight.dim() != 4 else weight.permute(0, 2, 3, 1).contiguous().view(weight.shape)


def unwritten(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return nn.Linear.forward(layer, x) * torch.arange(layer.out_features).lt(layer.out_features - 1)


def attend(new: Callable[..., torch.Tensor]) -> Callable[[Patch], Change]:
    return changed(lambda model: vars(model).update(attend=new))


def writer(**slips: Any) -> Callable[[Patch], Change]:
    return changed(lambda model: vars(model).update(slips))


def slopes(new: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Patch], Change]:
    """One weight's gradient, computed otherwise."""

    def on(model: nn.Module) -> None:
        next(p for p in model.parameters() if p.dim() > 1).register_hook(new)

    return changed(on)


sdpa = F.scaled_dot_product_attention
FORMATS = [
    Mistake("tf32", "products in bfloat16", library(lambda m, x: low(x, m.weight, m.bias)), "output is off by", precision="tf32"),
    Mistake("tf32", "the precision of the process lowered further", changed(lambda model: torch.set_float32_matmul_precision("medium")), "changes float32 matmul precision", precision="tf32"),
    Mistake("bf16", "inputs in 8 bits", library(eighth), "output is off by", precision="bf16"),
    Mistake("bf16", "the weights themselves cast", weights(torch.Tensor.bfloat16), "dtypes of the weights", small.TRAINED, "bf16"),
    Mistake("bf16", "all 2 % too large", library(lambda m, x: m._conv_forward(x, m.weight, m.bias) * 1.02, nn.Conv2d), "scale of output", small.IMAGES, "bf16"),
    Mistake("channels-last", "the weights' memory read in another order", weights(reread), "preparing the candidate changes weights", small.IMAGES),
    Mistake("channels-last", "results in another order", library(lambda m, x: nn.Conv2d.forward(m, x).mT, nn.Conv2d), "output is off by", small.IMAGES),
    Mistake("cudnn-benchmark", "the kernel of another shape", library(lambda m, x: nn.Conv2d.forward(m, x).roll(1, -1), nn.Conv2d), "output is off by", small.IMAGES),
    Mistake("model-sdpa", "the causal mask forgotten", attend(sdpa), "output is off by", small.ATTENTION),
    Mistake("model-sdpa", "another scale", attend(partial(sdpa, is_causal=True, scale=1.0)), "output is off by", small.ATTENTION),
    Mistake("static-cache", "one place late", writer(offset=1), "output", small.WRITER),
    Mistake("static-cache", "too short", writer(size=5), "output", small.WRITER),
    Mistake("cudnn-attention", "the causal mask forgotten", attend(sdpa), "output is off by", small.SDPA),
    Mistake("cudnn-attention", "another scale", attend(partial(sdpa, is_causal=True, scale=1.0)), "output is off by", small.SDPA),
    Mistake("aiter-gemm", "the bias missed", library(lambda m, x: F.linear(x, m.weight)), "output is off by"),
    Mistake("aiter-gemm", "the kernel of another shape", library(lambda m, x: nn.Linear.forward(m, x).roll(1, -1)), "output is off by"),
    Mistake("float32-gradients", "a gradient of other rows", slopes(lambda g: g.roll(1, 0)), "gradient of", small.TRAINED),
    Mistake("float32-gradients", "half of the sum", slopes(lambda g: g / 2), "gradient of", small.TRAINED),
    Mistake("foreach-weight-casts", "weights as they were in the step before", remembers(weights=True), "output is off by"),
    Mistake("foreach-weight-casts", "the last part of a joined weight not written", library(unwritten), "output is off by"),
    Mistake("fused-dgrad", "the parts in another order", slopes(lambda g: g.roll(len(g) // 2, 0)), "gradient of", small.TRAINED),
    Mistake("fused-dgrad", "the last part not written", slopes(lambda g: g * torch.arange(len(g)).lt(len(g) // 2)[:, None]), "gradient of", small.TRAINED),
    Mistake("depthwise-dgrad", "the window not turned around", slopes(lambda g: g.flip(-1)), "gradient of", small.TRAINED),
    Mistake("depthwise-dgrad", "one point aside", slopes(lambda g: g.roll(1, -1)), "gradient of", small.TRAINED),
    Mistake("k-major-wgrad", "a factor read in the order that it had", slopes(lambda g: g.mT.reshape(g.shape)), "gradient of", small.TRAINED),
    Mistake("k-major-wgrad", "the last tile not written", slopes(lambda g: g * torch.arange(len(g)).lt(len(g) - 1)[:, None]), "gradient of", small.TRAINED),
    Mistake("recompute", "activations of other rows", slopes(lambda g: g.flip(1)), "gradient of", small.TRAINED),
    Mistake("recompute", "activations without their last factor", slopes(lambda g: g * 1.1), "gradient of", small.TRAINED),
]  # fmt: skip


# -- of the environment: other libraries, other queues -------------------------------------------------------------


def lagging(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """What the kernel before left there: a queue that did not wait."""
    before = vars(layer).get("before")
    vars(layer)["before"] = now = nn.Linear.forward(layer, x)
    return now if before is None or before.shape != now.shape else before


def half_the_sum(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    half = layer.in_features // 2
    return F.linear(x[..., :half], layer.weight[:, :half], layer.bias)


ENVIRONMENT = [
    Mistake("hw-queues", "a result read before it is there", library(lagging), "output is off by"),
    Mistake("device-kernargs", "the arguments of the launch before", library(lagging), "output is off by"),
    Mistake("keep-scratch", "what spilled is read from another kernel", library(lambda m, x: nn.Linear.forward(m, x).roll(1, 0)), "output is off by"),
    Mistake("hipblaslt", "the bias epilogue left out", library(lambda m, x: F.linear(x, m.weight)), "output is off by"),
    Mistake("rocblas", "half of a split sum lost", library(half_the_sum), "output is off by"),
    Mistake("tunableop", "a solution of lower precision", library(lambda m, x: low(x, m.weight, m.bias)), "output is off by"),
    Mistake("ck-attention", "dropout where none was asked for", attend(partial(sdpa, is_causal=True, dropout_p=0.1)), "output is off by", small.SDPA),
    Mistake("miopen-find", "a solver in half precision", library(lambda m, x: F.conv2d(x.half(), m.weight.half(), m.bias.half(), m.stride, m.padding).to(x.dtype), nn.Conv2d), "output is off by", small.IMAGES),
    Mistake("miopen-nhwc", "results in another order", library(lambda m, x: nn.Conv2d.forward(m, x).mT, nn.Conv2d), "output is off by", small.IMAGES),
    Mistake("hipblaslt-tf32", "products in bfloat16", library(lambda m, x: low(x, m.weight, m.bias)), "output is off by", precision="tf32"),
    Mistake("expandable-segments", "memory given away that is still read", library(lagging), "output is off by"),
]  # fmt: skip

MISTAKES: Iterable[Mistake] = [*COMPILER, *CAPTURE, *OPTIMIZER, *EIGHT_BITS, *FORMATS, *ENVIRONMENT]
