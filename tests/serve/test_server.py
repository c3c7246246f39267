"""`rung serve` over HTTP: what each address answers, who is refused, and that others may write meanwhile."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_history import CLIMBED, COMPARED, EVIL, MEASURED, OF_A_STRANGER, bench, climbed, history, serving

from rung.cli.main import main
from rung.runs.sqlite import SqliteHistory
from rung.serve.server import Server

TOKEN = "0123456789abcdef"
Reply = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(history(tmp_path_factory.mktemp("served"))) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> Reply:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)) as connection:
        connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()


def text_of(server: Server, path: str, code: int = 200) -> str:
    status, _, body = ask(server, path)
    assert status == code, body[-800:]
    return re.sub(r"<(style|script)\b.*?</\1>", "", body.decode(), flags=re.DOTALL)


def test_the_list_leads_to_every_page(server: Server) -> None:
    listed = text_of(server, "/")
    assert listed.count('href="entry?id=') == CLIMBED
    assert "1.30×" in listed
    entry = text_of(server, f"/entry?id={CLIMBED}")
    assert f'href="files/{CLIMBED}/report.html"' in entry
    status, headers, body = ask(server, f"/files/{CLIMBED}/report.html")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"</html>" in body
    status, headers, body = ask(server, f"/files/{CLIMBED}/traces/baseline.json.gz")
    assert (status, headers["content-disposition"], body) == (200, "attachment", b"a trace")
    assert "from entry 7 on" in text_of(server, f"/trend?id={MEASURED}")
    assert "from entry 7 on" in text_of(server, "/trends")


def test_a_file_with_any_name_is_found_by_its_link(tmp_path: Path) -> None:
    store = SqliteHistory(tmp_path / "history.sqlite")
    climbed(store, tmp_path / "run")
    for name in (b"a b.json", b"?#&%2e%2e.json", b"\xff.json", "<ü>.json".encode()):
        (tmp_path / "run" / "traces" / os.fsdecode(name)).write_bytes(name)
    with serving(store) as server:
        links = re.findall(r'href="(files/1/traces/[^"]*json)"', text_of(server, "/entry?id=1"))
        assert {ask(server, f"/{link}")[2] for link in links} == {
            b"a b.json",
            b"?#&%2e%2e.json",
            b"\xff.json",
            "<ü>.json".encode(),
        }


def test_the_list_is_narrowed_to_a_command_or_a_tag(server: Server) -> None:
    assert text_of(server, "/?of=climb").count('href="entry?id=') == 1
    assert text_of(server, "/?tag=before").count('href="entry?id=') == 1
    none = text_of(server, "/?tag=none")
    assert "No run in the history matches." in none
    assert "Nothing is here yet" not in none
    assert text_of(server, "/?" + urlencode({"tag": EVIL})).count('href="entry?id=') == 1


def test_two_entries_are_compared_the_older_one_first(server: Server) -> None:
    for path in ("/compare?entry=9&entry=2", "/compare?entry=2&entry=9"):
        said = text_of(server, path)
        assert "B is slower" in said
        assert "Differs in torch: 2.13 and 2.14" in said
        assert said.index("entry 2<") < said.index("entry 9<")


def test_two_climbs_are_shown_side_by_side(tmp_path: Path) -> None:
    store = SqliteHistory(tmp_path / "history.sqlite")
    for name in ("a", "b"):
        climbed(store, tmp_path / name)
    with serving(store) as server:
        assert "2 climbs" in text_of(server, "/compare?entry=1&entry=2")
        (tmp_path / "a" / "manifest.json").unlink()
        assert "No time of B is told apart" in text_of(server, "/compare?entry=1&entry=2")


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/nothing", 404, "There is no such page"),
        ("/entry", 404, "This page needs one id"),
        ("/entry?id=999", 404, "There is no entry 999"),
        ("/entry?id=before", 404, "not the number of an entry"),
        ("/entry?id=1&id=2", 404, "This page needs one id"),
        ("/compare?entry=1", 404, "1 entry is ticked; tick two"),
        (f"/compare?entry=1&entry={CLIMBED}", 404, "no time of the same thing"),
        (f"/trend?id={COMPARED + 99}", 404, "There is no entry"),
        ("/trends?figure=x", 404, "there are time, memory, speedup"),
        ("/files/1/report.html", 404, "no such file"),
        (f"/files/{CLIMBED}/model.pt", 404, "no such file"),
        (f"/files/{CLIMBED}", 404, "no such file"),
        ("/?" + "&".join("a=1" for _ in range(200)), 400, "too many parts"),
    ],
)
def test_what_is_not_there_is_one_sentence(server: Server, path: str, code: int, said: str) -> None:
    assert said.lower() in text_of(server, path, code).lower()


def test_names_of_a_stranger_are_text_on_every_page(server: Server) -> None:
    for path in ("/", f"/entry?id={OF_A_STRANGER}", f"/trend?id={OF_A_STRANGER}", "/trends", f"/compare?entry={OF_A_STRANGER}&entry=1"):  # fmt: skip
        body = ask(server, path)[2].decode()
        assert "<script>alert" not in body
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", body)


@pytest.mark.parametrize("path", ["/", "/nothing", f"/files/{CLIMBED}/report.html", f"/files/{CLIMBED}/recipe.toml"])
def test_every_answer_has_a_strict_policy(server: Server, path: str) -> None:
    headers = ask(server, path)[1]
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert re.fullmatch(r"('sha256-[\w+/=]{44}' ?)+", policy["script-src"])
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get"])
def test_it_only_reads(server: Server, method: str) -> None:
    status, headers, _ = ask(server, "/", method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_head_says_what_get_would(server: Server) -> None:
    for path in ("/", f"/files/{CLIMBED}/report.html"):
        _, headers, body = ask(server, path)
        with closing(socket.create_connection(("127.0.0.1", server.server_port))) as connection:
            connection.sendall(f"HEAD {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            said = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert said.endswith(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}\r\n".encode() in said
        assert headers["content-length"] == str(len(body))


def test_a_request_by_another_name_is_refused(server: Server) -> None:
    assert ask(server, "/", host="evil.example")[0] == 421
    assert ask(server, "/", host="localhost:1")[0] == 200
    with closing(socket.create_connection(("127.0.0.1", server.server_port))) as connection:
        connection.sendall(b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b"421" in connection.recv(100)


@given(
    st.lists(
        st.sampled_from(["..", "%2e%2e", "%2E.", ".", "%00", "%2f", "%5c", "etc", "passwd", "traces", "model.pt", "..%2f..", "report.html"]) | st.text("abc%./\\", max_size=4),
        max_size=7,
    ),
    st.booleans(),
)  # fmt: skip
def test_no_address_reads_another_file(server: Server, parts: list[str], below: bool) -> None:
    status, _, body = ask(server, (f"/files/{CLIMBED}/" if below else "/") + "/".join(parts))
    assert status in (200, 404)
    assert b"a pickle" not in body
    assert b"root:" not in body
    if status == 200:
        assert b"</html>" in body or body == b"a trace"


@pytest.mark.parametrize("data", [b"", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
                                  b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n", b"\xff\xfe\x00\r\n\r\n", b"GET /\x00\xff HTTP/1.1\r\nHost: localhost\r\n\r\n"])  # fmt: skip
def test_what_is_no_request_ends_no_server(server: Server, data: bytes) -> None:
    with closing(socket.create_connection(("127.0.0.1", server.server_port))) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while chunk := connection.recv(4096):
            said += chunk
    assert not said or b"Content-Security-Policy" in said or not said.startswith(b"HTTP")
    assert ask(server, "/")[0] == 200


def test_a_token_is_asked_for_and_kept_by_the_browser(tmp_path: Path) -> None:
    store = SqliteHistory(tmp_path / "history.sqlite")
    store.add(bench(1, 1.0))
    with serving(store, "0.0.0.0", TOKEN) as server:
        assert server.url.endswith(f":{server.server_port}/?token={TOKEN}")
        for path in ("/", "/entry?id=1", "/files/1/report.html", "/?token=wrong", f"/?token={TOKEN[:-1]}", "/nothing"):
            status, headers, body = ask(server, path)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert b"model.py" not in body
        status, headers, _ = ask(server, f"/entry?id=1&token={TOKEN}")
        assert (status, headers["location"]) == (303, "./entry?id=1")
        cookie, *how = headers["set-cookie"].split("; ")
        assert set(how) == {"Path=/", "HttpOnly", "SameSite=Strict"}
        assert ask(server, "/", cookie=f"other=1; {cookie}")[0] == 200
        assert ask(server, "/", cookie=cookie[:-1])[0] == 401
        assert ask(server, "/", authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(server, "/", authorization=f"Basic {TOKEN}")[0] == 401
        assert TOKEN.encode() not in ask(server, "/", cookie=cookie)[2]


def test_nothing_is_lost_or_refused_while_others_write(tmp_path: Path) -> None:
    store, done = SqliteHistory(tmp_path / "history.sqlite"), threading.Event()

    def write() -> None:
        while not done.is_set():
            store.add(bench(1, 2e6))

    writers = [threading.Thread(target=write) for _ in range(3)]
    with serving(store) as server:
        assert "Nothing is here yet" in text_of(server, "/")
        for writer in writers:
            writer.start()
        try:
            counts = [text_of(server, "/").count('href="entry?id=') for _ in range(15)]
        finally:
            done.set()
            for writer in writers:
                writer.join()
        assert counts == sorted(counts)
        assert text_of(server, "/").count('href="entry?id=') == min(500, len(store.entries()))


def test_a_history_of_a_newer_rung_is_a_sentence_on_the_page(tmp_path: Path) -> None:
    store = SqliteHistory(tmp_path / "history.sqlite")
    store.add(bench(1, 2e6))
    with serving(store) as server:
        with closing(sqlite3.connect(store.path)) as db:
            db.execute("PRAGMA user_version = 99")
        assert "was written by a newer Rung" in text_of(server, "/", 500)


def test_of_a_long_history_the_newest_are_shown_and_all_on_request(tmp_path: Path) -> None:
    store = SqliteHistory(tmp_path / "history.sqlite")
    store.add(bench(1, 2e6))
    with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        columns = "created, command_kind, target, status, answer, command, host, device, folder, environment, document"
        db.execute(f"WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n WHERE k < 600) INSERT INTO entries ({columns}) SELECT {columns} FROM entries, n")  # fmt: skip
    with serving(store) as server:
        listed = text_of(server, "/")
        assert listed.count('href="entry?id=') == 500
        assert "The newest 500 runs" in listed
        assert text_of(server, "/?most=all").count('href="entry?id=') == 601


def started(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    env = os.environ | {"RUNG_DATA": str(tmp_path)}
    code = "import sys; from rung.cli.main import command; sys.argv[0] = 'rung'; command()"
    return subprocess.Popen([sys.executable, "-c", code, "serve", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_where_it_is_and_ends_quietly(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "--port", "0") as process:
        assert process.stdout
        assert process.stderr
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ ", process.stdout.readline())
        assert found
        with closing(http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)) as connection:
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert out == ""
        assert err.splitlines() == [f"nothing in {tmp_path}/history.sqlite yet; `rung bench`, `compare`, `climb` and `profile` add to it."]  # fmt: skip


def test_a_port_that_is_in_use_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"rung: port {port} of 127.0.0.1 is in use: give another --port, or --port 0 for any that is free."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "is not a port"),
        (["--host", "no.such.name.invalid", "--port", "0"], "cannot listen on port 0 of no.such.name.invalid"),
        (["--token", "short"], "a token has at least 16"),
        (["--json"], "leave --json out"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_damaged_history_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"no database " * 500)
    with started(tmp_path, "--port", "0") as process:
        assert process.stdout
        assert process.stdout.readline().startswith("http://")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert "is damaged" in err
    assert "and a new one is begun" in err
