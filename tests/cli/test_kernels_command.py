"""`rung kernels`: what stdout has, whatever a compiler prints."""

import json
import subprocess
import sys

import pytest


def test_what_triton_prints_of_a_failure_is_no_part_of_the_answer() -> None:
    pytest.importorskip("triton")
    words = ["kernels", "inspect", "rope_half_split", "--arch", "sm95", "--json"]
    done = subprocess.run([sys.executable, "-m", "rung", *words], capture_output=True, text=True)
    document = json.loads(done.stdout)  # one document and nothing else
    assert done.returncode == document["exit_code"] != 0
    assert "does not compile for sm95: ptxas fatal" in document["error"]
    assert "sm_95a" in document["error"]
