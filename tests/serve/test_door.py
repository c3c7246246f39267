"""Who is let in: by the name that a browser says, and by a token."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import UsageError
from rung.serve.door import Door

TOKEN = "a-token.of_one~own"


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8642", "LOCALHOST:1", "localhost.:80", "127.0.0.1", "127.0.0.1:8642", "127.9.9.9:1", "[::1]:8642", "[::1]"],
)  # fmt: skip
def test_a_local_server_answers_to_this_machine_by_any_port(host: str) -> None:
    assert Door.of("127.0.0.1", None).answers_to([host])


@pytest.mark.parametrize(
    "hosts",
    [[], [""], ["evil.example"], ["localhost.evil.example"], ["127.0.0.1.evil.example"], ["192.168.0.7"], ["[2001:db8::1]"], ["0.0.0.0"], ["localhost", "evil.example"],
     ["localhost:x"], ["localhost@evil.example"], ["[::1"], ["localhost:80:80"], ["2130706433"], [" localhost"], ["[::ffff:1.2.3.4]"]],
)  # fmt: skip
def test_a_name_that_a_stranger_has_lead_here_is_not_answered(hosts: list[str]) -> None:
    assert not Door.of("127.0.0.1", None).answers_to(hosts)


@given(st.text(max_size=9))
def test_any_text_as_a_host_is_taken_or_refused(text: str) -> None:
    assert Door.of("localhost", None).answers_to([text]) in (True, False)


def test_a_server_for_others_answers_to_its_names_and_to_addresses() -> None:
    door = Door.of("gpu-7.example", None)
    for host in ("gpu-7.example", "GPU-7.example:8642", "192.168.0.7:8642", "[2001:db8::1]:8642", socket.gethostname()):
        assert door.answers_to([host]), host
    assert not door.answers_to(["evil.example"])


def test_only_a_server_for_this_machine_may_be_without_a_token() -> None:
    assert Door.of("::1", None).token == Door.of("localhost", None).token == Door.of("127.0.0.1", None).token == ""
    tokens = {Door.of("0.0.0.0", None).token, Door.of("127.0.0.1", "").token, Door.of("gpu-7", "").token, Door.of("::", None).token}  # fmt: skip
    assert len(tokens) == 4
    assert all(len(token) >= 40 for token in tokens)
    assert Door.of("0.0.0.0", TOKEN).token == TOKEN


@pytest.mark.parametrize("token", ["short", "with spaces in its middle", "semicolon;semicolon", "x" * 300, "é" * 20])
def test_a_token_that_is_short_or_stands_in_no_address_is_refused(token: str) -> None:
    with pytest.raises(UsageError, match="leave it out for a random one"):
        Door.of("0.0.0.0", token)


@given(st.lists(st.text(max_size=5), max_size=4))
def test_no_other_token_is_admitted(offered: list[str]) -> None:
    door = Door.of("0.0.0.0", TOKEN)
    assert not door.admits(offered)
    assert door.admits([*offered, TOKEN])
    assert Door.of("127.0.0.1", None).admits(offered)
