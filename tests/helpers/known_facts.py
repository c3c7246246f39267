"""Facts of a workload out of the few that a test is about."""

from collections.abc import Mapping
from typing import Any

from rung.records.record import record_of
from rung.records.workload import Facts


def facts_of(known: Mapping[str, Any], **more: Any) -> Facts:
    """These, as plain values; of a workload in inference on a CPU where they do not say otherwise."""
    values = {"gpu": False, "mode": "infer", "rates": {}, **known, **more}
    assert values.keys() <= set(Facts.__struct_fields__), "no fact has such a name"
    return record_of(Facts, values)
