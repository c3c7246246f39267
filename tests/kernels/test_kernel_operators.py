"""The kernels as operators: traced without a graph break, with fakes that tell the truth, and gradients through both ways."""

import ast
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_agreement import HAS_TRITON, error, run, tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from rung import kernels
from rung.errors import UsageError
from rung.kernels import ops


def cases(device: str) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    def t(*shape: int, grad: bool = True) -> torch.Tensor:
        return tensor(*shape, device=device, grad=grad)

    target = torch.tensor([1, -100, 3, 7]).to(device)
    seed = torch.tensor([5]).to(device)
    return {
        "rope": (kernels.rope, (t(2, 4, 3, 8).transpose(1, 2), t(4, 4, grad=False), t(4, 4, grad=False))),
        "cross_entropy": (kernels.cross_entropy, (t(4, 10), target)),
        "decode_attention": (kernels.decode_attention, tuple(t(2, 4, n, 16, grad=False) for n in (1, 70, 70))),
        "gemv": (kernels.gemv, (t(1, 40, grad=False), t(9, 40, grad=False), t(9, grad=False))),
        "biased_attention": (
            kernels.biased_attention,
            (*(t(5, 2, n, 16) for n in (9, 13, 13)), t(1, 2, 9, 13)),
        ),
        "biased_attention_dropout": (
            lambda *given: kernels.biased_attention(*given, dropout_p=0.3, seed=seed),
            (*(t(5, 2, n, 16) for n in (9, 13, 13)), t(1, 2, 9, 13)),
        ),
    }


NAMES = ["rope", "cross_entropy", "decode_attention", "gemv", "biased_attention", "biased_attention_dropout"]


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_compiles_as_one_graph(name: str, device: str) -> None:
    """Between other operations, forward and backward. On a GPU through Inductor, which launches the kernel itself."""
    fn, inputs = cases(device)[name]

    def around(*given: Any) -> Any:
        return fn(given[0] * 1.5, *given[1:]) + 1

    torch.compiler.reset()
    compiled = torch.compile(around, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    leaves = tuple(x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs)
    for a, b in zip(run(compiled, leaves), run(around, leaves), strict=True):
        assert a.shape == b.shape
        assert error(a, b.double()) < 1e-5


@pytest.mark.parametrize("name", ["rope", "cross_entropy"])
def test_gradients_in_float64_are_those_of_finite_differences(name: str, device: str) -> None:
    fn, inputs = cases(device)[name]
    wide = tuple(x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs)
    assert torch.autograd.gradcheck(fn, wide, fast_mode=True)


def test_a_second_derivative_is_an_error_and_not_a_part_of_it(device: str) -> None:
    """The slope that comes in needs no gradient here, but the gradient depends on the logits."""
    fn, (logits, target) = cases(device)["cross_entropy"]
    weights = torch.ones(10, device=device, requires_grad=True)
    loss = fn(logits.detach() * weights, target)
    (first,) = torch.autograd.grad(loss, weights, create_graph=True)
    with pytest.raises(RuntimeError, match="no gradient of its own"):
        (loss + first.square().sum()).backward()
    loss = fn(logits.detach() * weights, target)
    with pytest.raises(RuntimeError, match="no gradient of its own"):  # alone, too
        torch.autograd.grad(loss, weights, create_graph=True)[0].sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_forward_mode_is_an_error_and_not_a_result_without_its_derivative(name: str, device: str) -> None:
    fn, (first, *others) = cases(device)[name]
    first = first.detach()

    def by_dual_numbers() -> Any:
        with forward_ad.dual_level():
            return fn(forward_ad.make_dual(first, torch.ones_like(first)), *others)

    def by_torch_func() -> Any:
        return torch.func.jvp(lambda x: fn(x, *others), (first,), (torch.ones_like(first),))

    for derive in (by_dual_numbers, by_torch_func):
        with torch.no_grad(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
            derive()
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            derive()


def test_the_gradient_of_the_rotation_has_one(device: str) -> None:
    fn, inputs = cases(device)["rope"]
    wide = tuple(x.detach().double().requires_grad_(x.requires_grad) for x in inputs)
    assert torch.autograd.gradgradcheck(fn, wide, fast_mode=True)


@pytest.mark.parametrize("name", ["rope", "cross_entropy"])
def test_a_kernel_compiles_once_for_any_number_of_rows(name: str, device: str) -> None:
    def inputs(n: int) -> tuple[Any, ...]:
        def t(*shape: int) -> torch.Tensor:
            return tensor(*shape, device=device, grad=False)

        return {
            "rope": lambda: (t(2, 4, n, 8), t(n, 8), t(n, 8)),
            "cross_entropy": lambda: (t(n, 10), torch.arange(n).remainder(10).to(device)),
        }[name]()

    torch.compiler.reset()
    compiled_for: list[int] = []

    def backend(graph: Any, example: Any) -> Any:
        compiled_for.append(1)
        return torch._dynamo.lookup_backend("inductor" if device == "cuda" else "aot_eager")(graph, example)

    fn = getattr(kernels, name)
    compiled = torch.compile(lambda *given: fn(*given), fullgraph=True, dynamic=True, backend=backend)
    first = 0
    for n in (5, 7, 22):
        given = inputs(n)
        assert error(compiled(*given), fn(*given).double()) < 1e-5
        first = first or len(compiled_for)  # Dynamo may start again while it finds out that the smoothing is a constant
    assert len(compiled_for) == first


@pytest.mark.parametrize("name", NAMES)
def test_fakes_tell_shapes_dtypes_and_strides(name: str, device: str) -> None:
    """torch's own check: the schema, the fake against the real run, and autograd under AOTAutograd."""
    fn, inputs = cases(device)[name]
    seen: list[tuple[Any, tuple[Any, ...]]] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "rung":
                seen.append((func, args))
            return func(*args, **(kwargs or {}))

    with Watch():
        fn(*inputs)
    (op, args), *_ = seen
    grads = tuple(a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args)
    torch.library.opcheck(op, grads, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


def test_a_compiler_sees_the_kernels_themselves() -> None:
    """Away from the interpreter a traced operator comes apart: one kernel forward, one backward (of attention of one
    query: two forward; of one row's product one forward; of attention with gradients a copy more, and a kernel and a copy for each of the three; of attention
    with a bias two backward, where one block does not hold all), and no copies made of what they write to. An opaque operator
    stays whole."""
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    if torch.__version__ < (2, 7):
        pytest.skip("torch 2.6 takes the kernel of float32 attention for one that writes to its keys and values")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = str(Path(__file__).with_name("traced_operators.py"))
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("float32_attention") == {"triton_kernel_wrapper_functional": 8}
    assert found.pop("biased_attention_blocks") == {"triton_kernel_wrapper_functional": 3}
    assert found.pop("k_major") == {"rung.k_major.default": 1}
    assert found.pop("gemv") == {"triton_kernel_wrapper_functional": 1}
    assert set(found) == set(NAMES) - {"gemv"}
    for name, seen in found.items():
        assert seen == {"triton_kernel_wrapper_functional": 2}, name


def test_on_a_cpu_without_the_interpreter_it_says_where_to_go(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.kernels import ops

    monkeypatch.setattr(ops, "INTERPRETED", False)
    with pytest.raises(UsageError, match=r"use rung\.kernels\.reference\.rope"):
        kernels.rope(torch.ones(1, 2, 3, 4), torch.ones(3, 4), torch.ones(3, 4))


def test_importing_the_kernels_loads_neither_torch_nor_triton() -> None:
    code = "import sys, rung.kernels; rung.kernels.available(); print({'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_references_are_there_where_the_error_says_also_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None; import torch; from rung import kernels;"
        "print(kernels.reference.rope(torch.ones(1, 1, 1, 2), torch.ones(1, 2), torch.ones(1, 2)).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "torch.Size([1, 1, 1, 2])\n", done.stderr


def test_without_triton_the_first_use_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "available", lambda: False)
    with pytest.raises(UsageError, match="need Triton"):
        kernels.rope  # noqa: B018
    with pytest.raises(AttributeError):
        kernels.no_such  # noqa: B018


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("index", [0, 1])
def test_a_kernel_is_launched_on_the_device_of_its_tensors(
    index: int, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that is called through the dispatcher is on the current device, as a model on cuda:1 under a recipe finds it."""
    current = [0]

    @contextlib.contextmanager
    def at(device: torch.device) -> Iterator[None]:
        current.append(device.index)
        yield
        current.pop()

    class Launched:
        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            return lambda *arguments, **named: launched.append((current[-1], grid, named))

    launched: list[Any] = []
    monkeypatch.setattr(ops, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", at)
    x = SimpleNamespace(device=torch.device("cuda", index))
    if watched:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.library, "wrap_triton", lambda kernel: kernel)
    with TorchDispatchMode() if watched else contextlib.nullcontext():
        ops.wrap_triton(Launched())[(3,)](x, 1, num_warps=4)
    assert (launched, current) == ([(index, (3,), {"num_warps": 4})], [0])


def test_every_launch_goes_through_the_helper_that_chooses_the_device() -> None:
    """A launch is `kernel[grid](tensor, ...)`: in the families, and nowhere else, the kernel is wrapped."""
    folder = Path(ops.__file__).parent
    launches = [
        (path.name, ast.unparse(call.func.value))
        for path in folder.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript)
    ]
    assert len(launches) > 10
    bare = [(name, kernel) for name, kernel in launches if not kernel.startswith("wrap_triton(")]
    # ops.py has the helper's own launches.
    assert sorted(bare) == [("ops.py", "self._kernel"), ("ops.py", "torch.library.wrap_triton(self._kernel)")]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_operators_run_on_a_gpu_that_is_not_the_current_one() -> None:
    x, table = torch.randn(2, 4, 8, 64, device="cuda:1"), torch.randn(8, 64, device="cuda:1")
    with torch.cuda.device(0):
        found = torch.ops.rung.rope(x, table[None], table[None], False, False)
    with torch.cuda.device(1):
        torch.testing.assert_close(found, torch.ops.rung.rope(x, table[None], table[None], False, False))
