"""Tests that shard weights over ranks on a CPU."""

import pytest

from rung.hardware.torch_versions import shards_on_cpu

NEEDS_SHARDS = pytest.mark.skipif(not shards_on_cpu(), reason="fully_shard of this torch does not run on a CPU")
