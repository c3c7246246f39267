"""Who may ask the server: by the name that it is called by, and by a token."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from rung.errors import UsageError

_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)
_TOKEN = re.compile(r"[\w.~-]{16,200}", re.ASCII)


@dataclass(frozen=True)
class Door:
    """names: by which the machine may be called; addresses: whether any IP address is taken for it, else only loopback; token: "" where none
    is asked for."""

    names: frozenset[str]
    addresses: bool
    token: str

    @classmethod
    def of(cls, host: str, token: str | None) -> Door:
        """
        Args:
            host: The address to listen on. Beyond loopback there is always a token.
            token: "" makes a random one, None has none where that may be.

        Raises:
            UsageError: The token is too short, or cannot stand in a URL.
        """
        local = is_loopback(host)
        if token and not _TOKEN.fullmatch(token):
            raise UsageError("a token has at least 16 letters, digits or ._~-; leave it out for a random one.")
        if token == "" or (token is None and not local):
            token = secrets.token_urlsafe(32)
        own = {"localhost"} if local else {"localhost", host, socket.gethostname(), socket.getfqdn()}
        return cls(frozenset(name.lower() for name in own), not local, token or "")

    def answers_to(self, hosts: Sequence[str]) -> bool:
        """Whether a request is meant for this server. A page of a stranger's can have its own name lead to this machine (DNS rebinding);
        the browser then says that name. The port may be another one, as of a tunnel.

        hosts: every Host header of the request.
        """
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if not found:
            return False
        name = (found[1] or found[2]).lower().removesuffix(".")
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return self.addresses or address.is_loopback

    def admits(self, offered: Sequence[str]) -> bool:
        """Whether one of the tokens that a request offers is the right one. Each is compared in a time that says nothing of it."""
        right = self.token.encode()
        return not right or any(hmac.compare_digest(one.encode("utf-8", "replace"), right) for one in offered)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
