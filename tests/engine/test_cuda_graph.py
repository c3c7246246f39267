"""A whole step as one graph: needs a GPU, and skips, saying so, without one."""

import copy
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rung
from rung.engine.cuda_graph import PROOFS, WARM_CALLS, GraphedStep, why_not
from rung.engine.optimizer import rebuild
from rung.errors import WorkloadError
from rung.hardware import pick


def reads_the_loss(x: torch.Tensor) -> float:
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore of it")


def test_what_a_backend_raised_is_said_behind_its_name() -> None:
    assert "backend='x' raised: RuntimeError: no room; something" in why_not(
        RuntimeError("backend='x' raised:\nRuntimeError: no room\n\nwhile capturing")
    )


def test_a_step_that_cannot_be_captured_says_where_and_why() -> None:
    try:
        reads_the_loss(torch.ones(1))
    except RuntimeError as error:
        said = why_not(error)
    assert "test_cuda_graph.py" in said
    assert "in reads_the_loss" in said
    assert "operation not permitted" in said
    assert ".item()" in said
    assert "\n" not in said
    assert why_not(ValueError("odd")) == "the step cannot be captured as a graph: ValueError: odd"


def test_what_broke_a_capture_off_is_named_and_not_that_it_was_broken_off() -> None:
    ending: dict[str, Any] = {}
    source = "def end():\n    raise RuntimeError('CUDA error: operation failed due to a previous error during capture')"
    exec(compile(source, "/site-packages/torch/cuda/graphs.py", "exec"), ending)
    try:
        try:
            reads_the_loss(torch.ones(1))
        finally:
            ending["end"]()
    except RuntimeError as error:
        said = why_not(error)
    assert "in reads_the_loss" in said
    assert ".item()" in said


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="capture needs a GPU")


def test_a_cpu_refuses_in_a_sentence() -> None:
    with pytest.raises(WorkloadError, match="capture needs a GPU"):
        GraphedStep(lambda batch: batch, pick("cpu"), nn.Identity())


@needs_gpu
def test_slices_are_captured_as_they_were_compiled() -> None:
    run = GraphedStep(torch.compile(lambda x: x.sin().sum(-1), dynamic=False), pick("cuda"), nn.Identity())
    for k in range(WARM_CALLS + 3):
        x = torch.full((4, 6), float(k), device="cuda")[:, :-1]
        torch.testing.assert_close(run(x), x.sin().sum(-1))
    assert run.shapes == 1


@needs_gpu
def test_a_number_on_the_host_is_read_at_every_call() -> None:
    run, x = GraphedStep(lambda batch: batch[0] * batch[1], pick("cuda"), nn.Identity()), torch.ones(4, device="cuda")
    for k in range(WARM_CALLS + 3):
        assert float(run((x, torch.tensor(float(k))))[0]) == k
    assert run.shapes == 0


@needs_gpu
@pytest.mark.parametrize("made_in", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("used_in", [torch.no_grad, torch.inference_mode])
def test_a_compiled_call_with_one_input_twice_is_captured_in_either_mode(made_in: Any, used_in: Any) -> None:
    run = GraphedStep(torch.compile(lambda b: b["x"].sin() + b["y"], dynamic=False), pick("cuda"), nn.Identity())
    for k in range(WARM_CALLS + 3):
        with made_in():
            x = torch.full((4, 6), float(k), device="cuda")
        with used_in():
            torch.testing.assert_close(run({"x": x, "y": x}).clone(), x.sin() + x)
            torch.testing.assert_close(run({"x": x, "y": x + 1}).clone(), x.sin() + x + 1)
    with torch.no_grad():
        torch.testing.assert_close(run({"x": x, "y": x}).clone(), x.sin() + x)
    assert run.shapes == 2


def trainer(
    kind: type[torch.optim.Optimizer], captured: bool
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[torch.Tensor], torch.Tensor]]:
    """A model on the GPU, its optimizer, and its step, which gives the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
    optimizer = kind(model.parameters(), lr=1e-2)  # type: ignore[call-arg]
    optimizer = rebuild(optimizer, fused=False, capturable=captured)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, GraphedStep(step, pick("cuda"), model, optimizer) if captured else step


@needs_gpu
@pytest.mark.parametrize(
    "kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop], ids=lambda kind: kind.__name__
)
def test_replayed_steps_train_as_plain_ones_do_at_every_shape_and_learning_rate(
    kind: type[torch.optim.Optimizer],
) -> None:

    def trained(captured: bool) -> tuple[list[torch.Tensor], list[float]]:
        model, optimizer, run = trainer(kind, captured)
        losses = []
        for k in range(4 * (WARM_CALLS + 3)):
            generator = torch.Generator().manual_seed(k)
            x = torch.randn(8 if k % 2 else 5, 16, generator=generator).cuda()
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + k)
            losses.append(float(run(x)))
            assert all(p.grad is not None for p in model.parameters())
        return [p.detach() for p in model.parameters()], losses

    plain, captured = trained(False), trained(True)
    assert captured[1] == pytest.approx(plain[1], rel=1e-4)
    for a, b in zip(plain[0], captured[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("cleared", [False, True])
def test_gradients_of_what_is_not_stepped_are_added_up_until_they_are_cleared(cleared: bool) -> None:
    def trained(captured: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4)).cuda()
        optimizer = rebuild(torch.optim.AdamW(model[1].parameters()), fused=False, capturable=captured)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        run = GraphedStep(step, pick("cuda"), model, optimizer) if captured else step
        found = []
        for k in range(WARM_CALLS + 4):
            if cleared:
                model.zero_grad()
                torch.full((32, 16), 7.0, device="cuda")  # in the memory that was let go
            run(torch.full((8, 16), 1.0 + k, device="cuda"))
            found.append(model[0].weight.grad.clone())
        return found

    for a, b in zip(trained(False), trained(True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def one_cycle(optimizer: torch.optim.Optimizer, k: int) -> None:
    """Learning rate and momentum, as torch.optim.lr_scheduler.OneCycleLR turns them."""
    optimizer.param_groups[0].update(lr=1e-2 / (1 + k), betas=(0.85 + 0.01 * (k % 5), 0.999))


def loaded_again(optimizer: torch.optim.Optimizer, k: int) -> None:
    if k == WARM_CALLS + 3:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for state in optimizer.state.values():
            state["exp_avg"].mul_(-3)


def more_decay(optimizer: torch.optim.Optimizer, k: int) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.5 if k > WARM_CALLS + 2 else 0.01


@needs_gpu
@pytest.mark.filterwarnings("ignore:.*of the optimizer has changed")
@pytest.mark.parametrize("change", [one_cycle, loaded_again, more_decay])
def test_what_is_done_to_the_optimizer_between_replays_counts(
    change: Callable[[torch.optim.Optimizer, int], None],
) -> None:
    def trained(captured: bool) -> list[torch.Tensor]:
        model, optimizer, run = trainer(torch.optim.AdamW, captured)
        for k in range(3 * (WARM_CALLS + 3)):
            change(optimizer, k)
            run(torch.randn(8, 16, generator=torch.Generator().manual_seed(k)).cuda())
        return [p.detach() for p in model.parameters()]

    for a, b in zip(trained(False), trained(True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@needs_gpu
def test_weights_that_are_kept_as_they_were_cast_are_renewed_for_replays() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda().eval(), torch.randn(4, 64).cuda()
    applied = rung.apply(model, ["bf16", "bf16-weights", "capture"])
    with torch.no_grad():
        for scale in (1.0, 0.5, 3.0):
            for p in model.parameters():
                p.mul_(scale)
            with torch.autocast("cuda", torch.bfloat16):
                right = model(x)
            for _ in range(WARM_CALLS + PROOFS + 2):  # so many that replays are launched ahead
                torch.testing.assert_close(applied(x).float(), right.float(), rtol=2e-2, atol=1e-3)


@needs_gpu
def test_dropout_draws_anew_at_every_replay_and_as_the_seed_says() -> None:
    device = pick("cuda")
    model = nn.Dropout(0.5).cuda()
    x = torch.ones(1 << 12, device="cuda")

    def drawn() -> list[torch.Tensor]:
        run = GraphedStep(lambda batch: model(batch), device, model)
        torch.manual_seed(3)
        return [run(x).clone() for _ in range(WARM_CALLS + 4)]

    first, again = drawn(), drawn()
    for a, b in itertools.pairwise(first):
        assert not torch.equal(a, b)
        assert 0.4 < float((b == 0).float().mean()) < 0.6
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)


@needs_gpu
def test_a_step_that_reads_its_result_is_refused_with_the_line() -> None:
    run = GraphedStep(lambda x: x * x.sum().item(), pick("cuda"), nn.Identity())
    for _ in range(WARM_CALLS):
        run(torch.ones(8, device="cuda"))
    with pytest.raises(WorkloadError, match=r"cannot be captured.*test_cuda_graph\.py.*\.item\(\)"):
        run(torch.ones(8, device="cuda"))


@needs_gpu
def test_a_thread_that_pins_memory_does_not_end_a_capture() -> None:
    pinned, failed, stop = 0, [], threading.Event()

    def pin() -> None:
        nonlocal pinned
        kept = []
        while not stop.is_set():
            try:
                kept.append(torch.empty(1 << (10 + pinned % 10)).pin_memory())
            except RuntimeError as error:
                failed.append(error)
                return
            pinned += 1
            if len(kept) > 64:
                kept.clear()

    def slowly(x: torch.Tensor) -> torch.Tensor:
        begun = pinned
        for _ in range(200):
            x = x + 1
            time.sleep(0.001)
        assert pinned > begun or failed
        return x

    run = GraphedStep(slowly, pick("cuda"), nn.Identity())
    thread = threading.Thread(target=pin)
    thread.start()
    try:
        for _ in range(WARM_CALLS + 2):
            assert float(run(torch.ones(8, device="cuda"))[0]) == 201
    finally:
        stop.set()
        thread.join()
    assert not failed


@needs_gpu
def test_another_tensor_as_an_attribute_and_another_setting_are_seen() -> None:
    """A replay would read memory that was let go, and run the kernels of the setting before."""

    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(512, 512, device="cuda")
            self.scale = torch.ones(512, device="cuda")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale

    model, x = Scaled(), torch.randn(512, 512, device="cuda")
    run = GraphedStep(model, pick("cuda"), model)
    before = torch.get_float32_matmul_precision()
    with torch.no_grad():
        for _ in range(WARM_CALLS + 2):
            assert torch.equal(run(x), model(x))
        model.scale = torch.full_like(model.scale, 2)
        torch.full((512,), 7.0, device="cuda")  # in the memory that was let go
        for _ in range(WARM_CALLS + 2):
            assert torch.equal(run(x), model(x))
        try:
            torch.set_float32_matmul_precision("high")
            for _ in range(WARM_CALLS + 2):
                assert torch.equal(run(x), model(x))
        finally:
            torch.set_float32_matmul_precision(before)
        assert torch.equal(run(x), model(x))
    assert run.shapes == 2


@needs_gpu
def test_a_model_that_changes_between_replays_gives_what_it_gives_uncaptured() -> None:
    model, x = (
        nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16)).cuda().eval(),
        torch.randn(4, 16).cuda(),
    )
    applied = rung.apply(model, ["capture"])

    def replayed() -> torch.Tensor:
        with torch.no_grad():
            for _ in range(WARM_CALLS + 2):
                found = applied(x).clone()
        return found

    torch.testing.assert_close(replayed(), model(x))
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()}, assign=True)
    torch.testing.assert_close(replayed(), model(x))
    ran: list[int] = []
    handle = model[0].register_forward_hook(lambda module, given, output: ran.append(1) or 2 * output)
    torch.testing.assert_close(replayed(), model(x))
    assert len(ran) == WARM_CALLS + 3
    handle.remove()
    model.train()
    assert not torch.equal(replayed(), replayed())
    model.eval()
    torch.testing.assert_close(replayed(), model(x))
