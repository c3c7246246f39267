"""SiLU * mul and GELU * mul against float64."""

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_agreement import agree, error, run, strided, tensor, wide

from rung import kernels
from rung.errors import UsageError
from rung.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
NAMES = ["silu", "gelu_tanh", "gelu_erf"]


def pair(name: str):
    if name == "silu":
        return kernels.silu_mul, reference.silu_mul
    approximate = "tanh" if name == "gelu_tanh" else "none"
    return partial(kernels.gelu_mul, approximate=approximate), partial(reference.gelu_mul, approximate=approximate)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_gate_and_its_gradients_agree_with_float64(name: str, dtype: torch.dtype, device: str) -> None:
    agree(*pair(name), *(tensor(3, 5, 129, dtype=dtype, device=device) for _ in range(2)))


@pytest.mark.parametrize("kind", ["slice", "swapped", "columns"])
@pytest.mark.parametrize("name", NAMES)
def test_strides_of_a_gate_do_not_matter(name: str, kind: str, device: str) -> None:
    gate, up = (tensor(4, 3, 33, device=device) for _ in range(2))
    agree(*pair(name), strided(kind, gate), up)
    agree(*pair(name), gate, strided(kind, up))


@pytest.mark.parametrize("name", NAMES)
def test_both_halves_in_one_tensor(name: str, device: str) -> None:
    ours, truth = pair(name)
    agree(ours, truth, tensor(3, 4, 66, dtype=torch.bfloat16, device=device))
    agree(lambda x: ours(*x.chunk(2, -1)), truth, tensor(3, 4, 66, device=device))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 5), columns=st.integers(1, 3000), name=st.sampled_from(NAMES))
def test_any_shape_of_a_gate(rows: int, columns: int, name: str, device: str) -> None:
    wide_gate = tensor(rows, columns + 3, device=device, grad=False)
    agree(*pair(name), wide_gate[:, 2:-1].requires_grad_(), tensor(rows, columns, device=device))


def test_large_arguments_overflow_nowhere(device: str) -> None:
    gate = torch.tensor([-1e4, -200.0, -20.0, -0.0, 20.0, 200.0, 1e4], device=device, requires_grad=True)
    for name in NAMES:
        ours, truth = pair(name)
        for a, b in zip(run(ours, (gate, torch.ones_like(gate))), run(truth, (wide(gate), torch.ones_like(wide(gate)))), strict=True):  # fmt: skip
            assert error(a, b) < 1e-6, name


def test_a_gate_is_no_less_precise_than_eager(device: str) -> None:
    given = tuple(tensor(64, 96, dtype=torch.float16, device=device) for _ in range(2))
    for name in NAMES:
        ours, truth = pair(name)
        for a, b, c in zip(run(ours, given), run(truth, given), run(truth, tuple(map(wide, given))), strict=True):
            assert (a.double() - c).square().mean() <= 1.05 * (b.double() - c).square().mean()


def test_gates_that_do_not_fit_are_refused(device: str) -> None:
    with pytest.raises(UsageError, match="one shape and one dtype"):
        kernels.silu_mul(tensor(2, 4, device=device), tensor(2, 5, device=device))
    with pytest.raises(UsageError, match="must be even"):
        kernels.silu_mul(tensor(2, 5, device=device))
    with pytest.raises(UsageError, match="'tanh' or 'none'"):
        kernels.gelu_mul(tensor(2, 4, device=device), approximate="erf")
