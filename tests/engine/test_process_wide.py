"""A setting for the process that several hold, and that is set aside meanwhile: at the end it is as it was, in whatever order."""

from contextlib import AbstractContextManager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.engine.process_wide import Setting


class Held:
    def __init__(self) -> None:
        self.now = "before"
        self.setting = Setting(lambda: self.now, self.write, "wanted")

    def write(self, value: str) -> None:
        self.now = value


@given(st.lists(st.sampled_from(["hold", "release", "drop", "aside", "back"]), max_size=12))
def test_it_is_in_effect_where_it_is_held_and_not_set_aside(steps: list[str]) -> None:
    held, holders, asides = Held(), 0, list[tuple[AbstractContextManager[None], bool]]()
    for step in steps:
        if step == "hold":
            held.setting.hold()
            holders += 1
        elif step == "release" and holders:
            held.setting.release()
            holders -= 1
        elif step == "drop" and holders:
            held.setting.drop()
            holders -= 1
        elif step == "aside":
            asides.append((held.setting.aside(), holders > 0))
            asides[-1][0].__enter__()
        elif step == "back" and asides:
            asides.pop(0)[0].__exit__(None, None, None)
        hidden = any(counts for _, counts in asides)
        assert held.now == ("wanted" if holders and not hidden else "before")
    for one, _ in asides:
        one.__exit__(None, None, None)
    for _ in range(holders):
        held.setting.release()
    assert held.now == "before"


def test_what_cannot_be_set_is_not_held() -> None:
    held = Held()

    def refuses(value: str) -> None:
        raise RuntimeError("frozen")

    setting = Setting(lambda: held.now, refuses, "wanted")
    with pytest.raises(RuntimeError, match="frozen"), setting.held():
        pass
    with setting.aside():  # nobody holds it, and nothing is written
        pass


@pytest.mark.parametrize("called", ["hold", "release"])
def test_a_holder_that_is_freed_while_the_lock_is_held_does_not_wait_for_it(called: str) -> None:
    """As where the garbage collector runs inside of either."""
    held, doomed = Held(), [1]

    def write(value: str) -> None:
        while doomed:
            doomed.pop()
            setting.drop()
        held.now = value

    setting = Setting(lambda: held.now, write, "wanted")
    if called == "release":
        gone, doomed = doomed, []
        setting.hold()
        setting.hold()
        doomed = gone
        setting.release()
        assert held.now == "wanted"
        setting.drop()
    else:
        doomed, gone = [], doomed
        setting.hold()
        doomed = gone
        with setting.aside():  # which writes, and so frees the only holder
            pass
    assert held.now == "before"
