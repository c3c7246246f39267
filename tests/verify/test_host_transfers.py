"""What is compared of a large model goes to the host's memory and back: bit for bit, whatever its layout and dtype."""

from collections.abc import Iterator

import pytest
import torch

from rung.verify import host_transfers
from rung.verify.distances import distances

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.fixture(autouse=True)
def buffers_of_its_own() -> Iterator[None]:
    held = host_transfers._buffers
    held.cache_clear()
    yield
    held.cache_clear()


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("rows", [0, 1, 4097])
def test_a_tensor_is_the_same_there_and_back(
    device: str, dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_transfers, "SMALL", 1 << 10)
    monkeypatch.setattr(host_transfers, "CHUNK", 1 << 16)  # many turns of both buffers
    given = torch.randn(rows, 33, device=device).mul(100).to(dtype)
    for t in (given, given.T, given[::2]):
        there = host_transfers.to_host(t)
        assert there.device.type == "cpu"
        assert there.shape == t.shape
        assert torch.equal(there, t.cpu())
        if rows:
            assert there.data_ptr() != t.data_ptr()
        back = host_transfers.to_device(there, device)
        assert back.device.type == device
        assert torch.equal(back, t)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_buffer_is_not_written_to_while_another_stream_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_transfers, "SMALL", 0)
    held = [torch.full((1 << 20,), float(k)) for k in range(8)]
    streams = [torch.cuda.Stream() for _ in held]
    made = []
    for t, stream in zip(held, streams, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            made.append(host_transfers.to_device(t, "cuda"))
    torch.cuda.synchronize()
    assert all(torch.equal(there.cpu(), t) for there, t in zip(made, held, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_without_page_locked_memory_torch_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_transfers, "_buffers", lambda index: ())
    given = torch.rand(1 << 22, device="cuda")
    assert torch.equal(host_transfers.to_device(host_transfers.to_host(given), "cuda"), given)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_distances_on_a_gpu_are_those_on_the_host() -> None:
    right = torch.randn(3_000_000)
    others = [right + 1e-3, right * 2]
    assert distances(others, right, "cuda") == pytest.approx(distances(others, right), rel=1e-9)
