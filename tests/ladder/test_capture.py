"""A whole step as one graph: needs a GPU, and skips, saying so, without one."""

import pytest
import torch
from torch import nn

from rung.errors import WorkloadError
from rung.hardware import pick
from rung.ladder.capture import WARM_CALLS, Captured

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="capture needs a GPU")


def test_a_cpu_refuses_in_a_sentence() -> None:
    with pytest.raises(WorkloadError, match="capture needs a GPU"):
        Captured(lambda batch: batch, pick("cpu"))


@needs_gpu
def test_replayed_steps_train_as_plain_ones_do_at_every_shape_and_learning_rate() -> None:
    device = pick("cuda")

    def trained(captured: bool) -> tuple[list[torch.Tensor], list[float]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=captured)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = Captured(step, device, optimizer) if captured else step
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
