"""What a climb says of the machine before it measures anything."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from rung.ladder.climb import baseline


@pytest.mark.parametrize(("busy", "said"), [(2.0, ["processes wanted to run"]), (0.1, [])], ids=["crowded", "quiet"])
def test_a_machine_whose_cpus_are_taken_is_named_before_anything_is_timed(
    busy: float, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"load": [busy * (os.cpu_count() or 1), 0.0, 0.0]}
    facts = {"gpu": False, "workload": {}, "environment": {"time": "", "now": now}}
    worker = SimpleNamespace(receive=lambda *_: None, call=lambda *_: facts)
    monkeypatch.setattr(baseline, "open_worker", lambda *_: worker)
    events: list[tuple[str, Any]] = []
    state: Any = SimpleNamespace(
        run=SimpleNamespace(maybe=lambda _: None, write=lambda *_: None, data=dict, directory=None),
        request=SimpleNamespace(target="t", numerics="exact", options={}, command=[], as_dict=dict),
        setup=SimpleNamespace(limits=SimpleNamespace(prepare=1.0)),
        side=lambda rungs: None,
        say=lambda event, data: events.append((event, data)),
    )
    baseline.survey(state, [])
    warnings = [data["text"] for event, data in events if event == "warning"]
    assert len(warnings) == len(said)
    assert all(words in text for words, text in zip(said, warnings, strict=True))
