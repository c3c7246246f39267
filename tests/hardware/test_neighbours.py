"""One GPU of several, as a process is shown it alone."""

import pytest

from rung.cli.main import main
from rung.hardware.device import cpu
from rung.hardware.neighbours import idle_like, shown_alone


@pytest.mark.parametrize(
    ("index", "vendor", "variables", "shown"),
    [
        (2, "nvidia", {}, {"CUDA_VISIBLE_DEVICES": "2"}),
        (1, "nvidia", {"CUDA_VISIBLE_DEVICES": "4, 6"}, {"CUDA_VISIBLE_DEVICES": "6"}),
        (0, "nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-1f,GPU-2e"}, {"CUDA_VISIBLE_DEVICES": "GPU-1f"}),
        (1, "amd", {}, {"HIP_VISIBLE_DEVICES": "1"}),
        (1, "amd", {"CUDA_VISIBLE_DEVICES": "2,3"}, {"CUDA_VISIBLE_DEVICES": "3"}),
        (1, "amd", {"HIP_VISIBLE_DEVICES": "5,7", "ROCR_VISIBLE_DEVICES": "0,1"}, {"HIP_VISIBLE_DEVICES": "7"}),
    ],
)
def test_a_gpu_is_named_as_its_process_will_count_it(
    index: int, vendor: str, variables: dict[str, str], shown: dict[str, str]
) -> None:
    assert shown_alone(index, vendor, variables) == shown


def test_a_cpu_has_no_idle_gpus_beside_it() -> None:
    assert idle_like(cpu()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "some"], "is neither auto nor numbers of GPUs"),
        (["--devices", "0,0"], "is neither auto nor numbers of GPUs"),
        (["--devices", "0,1", "--device", "cuda:1"], "leave one out"),
        (["--devices", "auto", "--device", "cpu"], "--devices is for GPUs"),
    ],
)
def test_gpus_that_cannot_be_meant_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["climb", "tiny-transformer", *words]) == 2
    assert said in capsys.readouterr().err
