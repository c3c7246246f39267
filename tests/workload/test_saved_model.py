"""A model that is made once and read back by others: the same weights, or it is made as ever."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from rung.workload import Workload, load, seeded_model
from rung.workload.model_cache import forget_saved, read_from, save_model, try_saved
from rung.workload.random_on_gpu import LARGE, RandomOn


class Tied(nn.Module):
    """An embedding that is the last layer's weight, too; a buffer that is kept, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 4), nn.Linear(4, 16, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.head.weight = self.embedding.weight
        self.register_buffer("angles", torch.randn(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(x)) + self.angles)


class Counted:
    """Makes the model, and knows how often it did."""

    def __init__(self, make: Callable[[], nn.Module] = Tied) -> None:
        self.make, self.count = make, 0

    def __call__(self) -> nn.Module:
        self.count += 1
        return self.make()


def workload(model: Callable[[], nn.Module]) -> Workload:
    return Workload("saved", model, lambda seed: torch.arange(8) + seed)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    assert save_model(seeded_model(workload(Tied)), path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]
    return tried(path)


def tried(path: Path) -> Path:
    """The same file, once a process has run the model in it."""
    try_saved(path, lambda read: read())
    return path


def equal(a: nn.Module, b: nn.Module) -> bool:
    """Whether parameters and buffers are the same, those that no checkpoint keeps among them."""
    ours, theirs = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (a, b))
    return {*ours} == {*theirs} and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_is_read_back_has_the_same_weights_and_buffers(saved: Path) -> None:
    maker = Counted()
    read = seeded_model(read_from(workload(maker), saved))
    assert maker.count == 0
    made = seeded_model(workload(Tied))
    assert equal(read, made)
    assert read.training == made.training
    x = torch.arange(8)
    torch.testing.assert_close(read(x), made(x), rtol=0, atol=0)


def test_tied_weights_stay_tied(saved: Path) -> None:
    read = seeded_model(read_from(workload(Tied), saved))
    assert isinstance(read, Tied)
    assert read.head.weight is read.embedding.weight
    assert len(list(read.parameters())) == len(list(Tied().parameters()))


def test_what_is_done_to_one_that_was_read_is_not_done_to_the_file(saved: Path) -> None:
    """It is mapped into memory, by many processes."""
    given = read_from(workload(Tied), saved)
    first = seeded_model(given)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    assert equal(seeded_model(given), seeded_model(workload(Tied)))


def test_another_seed_is_made_anew(saved: Path) -> None:
    maker = Counted()
    given = read_from(workload(maker), saved)
    other = seeded_model(given, 1)
    assert maker.count == 1
    assert equal(other, seeded_model(workload(Tied), 1))
    assert not equal(other, seeded_model(given))


@pytest.mark.parametrize("damage", ["cut", "no pickle", "gone"])
def test_a_damaged_file_costs_the_making(saved: Path, damage: str) -> None:
    whole = saved.read_bytes()
    if damage == "gone":
        saved.unlink()
    else:
        saved.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"no pickle")
    maker = Counted()
    model = seeded_model(read_from(workload(maker), saved))
    assert maker.count == 1
    assert equal(model, seeded_model(workload(Tied)))


def test_what_cannot_be_pickled_is_not_saved_and_leaves_no_file(tmp_path: Path) -> None:
    class Local(nn.Linear):
        pass

    hooked, masked = nn.Linear(2, 2), nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    masked.weight.register_hook(torch.relu)  # which a pickle would leave out
    for model in (Local(2, 2), hooked, masked):
        assert save_model(model, tmp_path / "model.pt") is False
        assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_room_the_earlier_file_stays(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(model: nn.Module, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    assert save_model(nn.Linear(2, 2), saved) is False
    assert saved.read_bytes() == before
    assert {file.name for file in saved.parent.iterdir()} == {"model.pt", "model.runs"}


MINE = """
import torch, rung
class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()
def make():
    return rung.Workload("mine", lambda: Net(4, 4), lambda seed: torch.ones(2, 4))
"""


def test_another_process_reads_the_model_of_a_users_file(tmp_path: Path) -> None:
    """The class in it has the same name there, which pickles go by."""
    file, path = tmp_path / "mine.py", tmp_path / "model.pt"
    file.write_text(MINE)
    model = seeded_model(load(f"{file}:make"))
    assert save_model(model, path)
    tried(path)
    script = f"""
from dataclasses import replace
from pathlib import Path
from rung.workload import load, seeded_model
from rung.workload.model_cache import read_from
def refuse():
    raise SystemExit("it was made, and not read")
workload = replace(load({str(file) + ":make"!r}), model=refuse)
print(type(seeded_model(read_from(workload, Path({str(path)!r})))).__name__)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.returncode) == ("Net", 0), ran.stderr


NOTED: set[str] = set()


class Noting(nn.Linear):
    """Notes where it is made what its forward needs, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        NOTED.add("hidden states")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not NOTED:
            raise TypeError("'NoneType' object is not subscriptable")
        return super().forward(x)


@pytest.mark.parametrize("noted", [True, False])
def test_a_model_that_does_not_run_as_it_was_read_is_made(tmp_path: Path, noted: bool) -> None:
    path, maker = tmp_path / "model.pt", Counted(Noting)
    assert save_model(Noting(), path)
    if not noted:
        NOTED.clear()  # as in another process
    given = read_from(workload(maker), path)
    try_saved(path, lambda read: read()(torch.ones(2, 4)))
    assert path.exists() == noted
    seeded_model(given)(torch.ones(2, 4))
    assert maker.count == (not noted)


def test_a_model_is_not_read_before_it_ran_and_runs_once(saved: Path) -> None:
    ran = []
    try_saved(saved, ran.append)
    assert not ran
    saved.with_suffix(".runs").unlink()
    maker = Counted()
    seeded_model(read_from(workload(maker), saved))
    assert maker.count == 1
    try_saved(saved, ran.append)
    assert len(ran) == 1
    forget_saved(saved)
    assert list(saved.parent.iterdir()) == []
    try_saved(saved, ran.append)
    assert len(ran) == 1


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no room"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")]
)
def test_where_the_gpu_is_full_nothing_is_noted_of_the_model(saved: Path, error: Exception) -> None:
    saved.with_suffix(".runs").unlink()

    def full(read: Callable[[], nn.Module]) -> None:
        raise error

    try_saved(saved, full)
    assert [file.name for file in saved.parent.iterdir()] == ["model.pt"]


def test_what_another_process_has_run_stays(saved: Path) -> None:
    note = saved.with_suffix(".runs")
    note.unlink()

    def beside(read: Callable[[], nn.Module]) -> None:
        note.touch()
        raise ValueError

    try_saved(saved, beside)
    assert saved.exists()


def test_where_no_file_is_the_climbs_own_none_is_read(tmp_path: Path) -> None:
    made = []

    def model() -> nn.Module:
        made.append(1)
        return nn.Linear(2, 2)

    workload = Workload("ranks", model, lambda seed: torch.ones(2, 2))
    seeded_model(read_from(workload, None))
    assert made == [1]


# Random numbers, which another device draws


class Large(nn.Module):
    """A layer that is drawn elsewhere, one that is not, and an attribute that no optimizer knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(LARGE // 64, 64), nn.Linear(8, 8)
        nn.init.normal_(self.large.bias, 3.0, 0.1)
        self.table = torch.arange(4)


def test_large_tensors_are_drawn_elsewhere_from_the_distribution_that_was_asked_for() -> None:
    torch.manual_seed(0)
    with RandomOn(torch.device("cpu")):
        model = Large()
    bound = (LARGE // 64) ** -0.5  # of kaiming_uniform_, as nn.Linear asks for it
    weight = model.large.weight.detach()
    assert isinstance(model.large.weight, nn.Parameter)
    assert model.large.weight.requires_grad
    assert float(weight.abs().max()) == pytest.approx(bound, rel=1e-3)
    assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.01)
    assert float(model.large.bias.detach().mean()) == pytest.approx(3.0, abs=0.1)
    assert model.table.tolist() == [0, 1, 2, 3]
    with RandomOn(torch.device("meta")), pytest.raises(NotImplementedError):  # which has no numbers to give
        Large()


def test_small_tensors_and_what_has_a_generator_of_its_own_are_drawn_as_ever() -> None:
    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(0)
        own = torch.Generator().manual_seed(1)
        return [torch.empty(8).normal_(), torch.empty(LARGE).uniform_(generator=own)]

    plain = drawn()
    with RandomOn(torch.device("meta")):  # where nothing can be drawn
        elsewhere = drawn()
    assert all(torch.equal(a, b) for a, b in zip(plain, elsewhere, strict=True))
