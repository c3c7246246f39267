"""What a real worker said, for the tests whose workers say it again."""

import pytest
from climbing import MICRO
from replayed import record


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables under which `replayed.Replayed` answers."""
    return record(MICRO, tmp_path_factory.mktemp("recorded") / "said")
