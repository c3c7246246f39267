"""The server: it only reads, asks every request who it is, and has no page run a script or load a thing that is not Rung's own."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode

from rung.errors import UsageError
from rung.report.embedded import served_policy
from rung.serve.door import Door
from rung.serve.pages import Answer, Pages, sentence

log = logging.getLogger(__name__)


class Server(ThreadingHTTPServer):
    """A request a thread, none of which keeps the program from ending."""

    daemon_threads = True

    def __init__(self, host: str, port: int, door: Door, pages: Pages) -> None:
        """Listens from now on; `serve_forever` answers. port: 0 for any that is free.

        Raises:
            UsageError: It cannot listen there.
        """
        self.door, self.pages = door, pages
        self.headers = {
            "Content-Security-Policy": served_policy(),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        try:
            self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            super().__init__((str(address[0]), port), Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"port {port} of {host} is in use: give another --port, or --port 0 for any that is free."
                ) from None
            raise UsageError(
                f"cannot listen on port {port} of {host}: {error.strerror}; give another --host or --port."
            ) from None
        self.cookie = f"rung-{self.server_port}"  # a browser has one jar for all ports of a machine

    def server_bind(self) -> None:
        """Asks no name server, as the base class does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def url(self) -> str:
        """Where it is found, with its token."""
        unspecified = ipaddress.ip_address(self.server_name).is_unspecified
        host = socket.gethostname() if unspecified else self.server_name
        query = f"?token={self.door.token}" if self.door.token else ""
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/{query}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Of a thread. A browser that has gone is no error."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            log.exception("a request was not answered")


class Handler(BaseHTTPRequestHandler):
    """One request. Each answer ends its connection."""

    server: Server
    server_version, sys_version = "rung", ""
    timeout = 60.0  # seconds for a request to come

    def do_GET(self) -> None:
        self._send(self._answer())

    do_HEAD = do_GET

    def __getattr__(self, name: str) -> Any:
        """Every other method is refused."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        return lambda: self._send(sentence(405, "Pages are only read here", "use GET or HEAD.", headers={"Allow": "GET, HEAD"}))  # fmt: skip

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong with a request."""
        self._send(sentence(code, "This is not a request that can be answered", message or responses.get(code, "")))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: an address may hold the token."""

    def _answer(self) -> Answer:
        path, _, text = self.path.partition("?")
        door = self.server.door
        if not door.answers_to(self.headers.get_all("Host", [])):
            names = ", ".join(sorted(door.names))
            return sentence(421, "This server has another name", f"it answers to {names}, and to its address.", path)
        try:
            query = parse_qs(text, keep_blank_values=True, max_num_fields=100)
        except ValueError:
            return sentence(400, "This is not a request that can be answered", "its address has too many parts.", path)
        if not door.admits([*query.get("token", ()), *self._tokens()]):
            said = (
                "open the whole address that `rung serve` printed, or send its token as `Authorization: Bearer TOKEN`."
            )
            return sentence(401, "A token is needed", said, path, {"WWW-Authenticate": "Bearer"})
        if door.token and query.pop("token", []):
            return self._let_in(path, query)
        try:
            return self.server.pages.answer(path, query)
        except Exception:
            log.exception("%s was not answered", path)
            return sentence(500, "This is a bug in Rung", "the terminal of `rung serve` shows where.", path)

    def _tokens(self) -> list[str]:
        """Those of the cookie and of the header."""
        pairs = (part.strip().partition("=") for part in self.headers.get("Cookie", "").split(";"))
        scheme, _, bearer = self.headers.get("Authorization", "").partition(" ")
        found = [value for name, _, value in pairs if name == self.server.cookie]
        return [*found, bearer.strip()] if scheme.lower() == "bearer" else found

    def _let_in(self, path: str, query: Mapping[str, Sequence[str]]) -> Answer:
        """The same address without the token, which the browser keeps instead: no page's script can read it, no other site can use it."""
        rest = urlencode(query, doseq=True)
        headers = {
            "Location": f"./{path.rpartition('/')[2]}{'?' if rest else ''}{rest}",
            "Set-Cookie": f"{self.server.cookie}={self.server.door.token}; Path=/; HttpOnly; SameSite=Strict",
        }
        return sentence(303, "Welcome", "your browser goes on by itself.", path, headers)

    def _send(self, answer: Answer) -> None:
        with answer.body:
            self.send_response(answer.status)
            sized = {"Content-Type": answer.kind, "Content-Length": str(answer.size)}
            for name, value in {**sized, **self.server.headers, **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            left = (
                0 if self.command == "HEAD" else answer.size
            )  # a file that grows meanwhile is cut, so that it is as long as was said
            while left and (data := answer.body.read(min(left, 1 << 16))):
                self.wfile.write(data)
                left -= len(data)
