"""Who may ask: hosts, origins, tokens, cookies, codes; the rules alone and through a real socket."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import anyio
import pytest
from service_parts import JSON, TOKEN, open_client

from patience import PATIENCE
from repertory.errors import ConfigurationError
from repertory.service import Access
from repertory.service.tokens import read_or_make_token
from repertory.testing import ScriptedModel

TCP = Access(port=8137, token=TOKEN)
UNIX = Access()
BEARER = ("authorization", f"Bearer {TOKEN}")
HOST = ("host", "localhost:8137")
TYPE = ("content-type", "application/json")

Headers = list[tuple[str, str]]

# access, method, path, headers, status; 0 for "goes on"
RULES: list[tuple[Access, str, str, Headers, int]] = [
    # hosts
    (TCP, "GET", "/runs", [HOST, BEARER], 0),
    (TCP, "GET", "/runs", [("host", "127.0.0.1:8137"), BEARER], 0),
    (TCP, "GET", "/runs", [("host", "[::1]:8137"), BEARER], 0),
    (TCP, "GET", "/runs", [("host", "LOCALHOST:8137"), BEARER], 0),
    *[
        (TCP, "GET", "/", [("host", host)], 421)
        for host in (
            "evil.example", "localhost", "localhost:80", "localhost:8137.evil.example", "localhost.evil.example:8137",
            "evil.example:8137", "127.0.0.1.evil.example:8137", "0.0.0.0:8137", "127.0.0.2:8137", "user@localhost:8137",
            "localhost:08137", "", "[::]:8137", "2130706433:8137", "lоcalhost:8137",
        )
    ],
    (TCP, "GET", "/", [], 421),
    (Access(port=80, token=TOKEN), "GET", "/runs", [("host", "localhost"), BEARER, ("origin", "http://localhost")], 0),
    (Access(port=80, token=TOKEN), "GET", "/", [("host", "evil.example")], 421),
    (TCP, "GET", "/", [HOST, ("host", "evil.example")], 400),
    (UNIX, "GET", "/runs", [("host", "localhost")], 0),
    (UNIX, "GET", "/runs", [("host", "localhost:9999")], 0),
    (UNIX, "GET", "/runs", [("host", "127.0.0.1")], 0),
    (UNIX, "GET", "/runs", [("host", "evil.example")], 421),
    (UNIX, "GET", "/runs", [("host", "localhost:x")], 421),
    (UNIX, "GET", "/runs", [("host", "localhost:²")], 421),
    (UNIX, "GET", "/runs", [("host", "localhost:")], 421),
    (UNIX, "GET", "/runs", [("host", ":80")], 421),
    # origins
    (TCP, "GET", "/runs", [HOST, BEARER, ("origin", "http://localhost:8137")], 0),
    *[
        (TCP, "POST", "/runs", [HOST, BEARER, TYPE, ("origin", origin)], 403)
        for origin in (
            "null", "", "http://evil.example", "https://localhost:8137", "http://localhost", "http://localhost:8138",
            "http://127.0.0.1:8137", "http://localhost:8137.evil.example", "file://",
        )
    ],
    (TCP, "GET", "/events", [HOST, BEARER, ("origin", "http://localhost:3000")], 403),
    (UNIX, "POST", "/runs", [("host", "localhost"), TYPE, ("origin", "http://evil.example")], 403),
    (TCP, "GET", "/runs", [HOST, BEARER, ("sec-fetch-site", "cross-site")], 403),
    (TCP, "GET", "/runs", [HOST, BEARER, ("sec-fetch-site", "same-site")], 403),
    (TCP, "GET", "/runs", [HOST, BEARER, ("sec-fetch-site", "same-origin")], 0),
    (TCP, "GET", "/", [HOST, ("sec-fetch-site", "none")], 0),
    # tokens
    (TCP, "GET", "/runs", [HOST], 401),
    (TCP, "GET", "/healthz", [HOST], 401),
    (TCP, "GET", "/events", [HOST], 401),
    (TCP, "GET", "/", [HOST], 0),
    (TCP, "HEAD", "/", [HOST], 0),
    (TCP, "POST", "/", [HOST, TYPE], 401),
    (TCP, "POST", "/session", [HOST, TYPE], 0),
    (TCP, "GET", "/session", [HOST], 401),
    *[
        (TCP, "GET", "/runs", [HOST, ("authorization", shown)], 401)
        for shown in ("", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}",
                      "Bearer \u00e9", f"Bearer {TOKEN} {TOKEN}")
    ],
    (TCP, "GET", "/runs", [HOST, BEARER, ("authorization", "Bearer other")], 400),
    (TCP, "GET", "/runs", [HOST, ("cookie", f"{TCP.cookie_name}={TCP.cookie}")], 0),
    (TCP, "GET", "/runs", [HOST, ("cookie", f"a=b; {TCP.cookie_name}={TCP.cookie}; c=d")], 0),
    (TCP, "GET", "/runs", [HOST, ("cookie", f"{TCP.cookie_name}={TOKEN}")], 401),
    (TCP, "GET", "/runs", [HOST, ("cookie", f"repertory-1={TCP.cookie}")], 401),
    (TCP, "GET", "/runs", [HOST, ("cookie", f"{TCP.cookie_name}=\u00e9")], 401),
    (TCP, "GET", "/runs", [HOST, ("cookie", ";;=;\"")], 401),
    (UNIX, "POST", "/runs", [("host", "localhost"), TYPE, ("content-type", "text/plain")], 400),
]  # fmt: skip


@pytest.mark.parametrize(("access", "method", "path", "headers", "status"), RULES)
def test_a_request_is_refused_by_what_it_brings(
    access: Access, method: str, path: str, headers: Headers, status: int
) -> None:
    """The table of evil headers, and of good ones, so that a guard that refuses everything fails too."""
    raw = [(name.encode("latin-1"), value.encode("utf-8")) for name, value in headers]
    refusal = access.refusal(method, path, raw)
    assert (0 if refusal is None else refusal.status) == status, refusal


# What a foreign page can send without asking first.
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "text/plain; application/json",
         "application/jsonx")  # fmt: skip


@pytest.mark.parametrize("token", [None, "", "t" * 42, "t" * 42 + "\n"])
def test_a_port_without_a_real_token_is_refused(token: str | None) -> None:
    """Otherwise an empty variable would let everybody in: who shows no token shows just that one."""
    with pytest.raises(ConfigurationError, match="token"):
        Access(port=8137, token=token)


def test_evil_requests_fail_on_the_wire_and_change_nothing(short: Path, run_async: Any) -> None:
    """The same through a real port: refused with a reason in JSON, the safety headers, and never a CORS header."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([]), tcp=True) as client:
            body = b'{"agent": "clerk", "task": "Be evil."}'
            simple = {"content-type": "text/plain", "origin": "http://evil.example"}
            evil: list[tuple[dict[str, str], int]] = [
                ({**JSON, "host": "evil.example"}, 421),
                ({**JSON, "origin": "http://evil.example"}, 403),
                ({**JSON, "origin": "null"}, 403),
                ({**JSON, "sec-fetch-site": "cross-site"}, 403),
                (simple, 403),
                ({**JSON, "authorization": "Bearer wrong"}, 401),
                *(({"content-type": kind}, 415) for kind in FORMS),
            ]
            for headers, status in evil:
                answer = await client.http.post("/runs", content=body, headers=headers)
                assert answer.status_code == status, headers
                assert answer.json()["error"]
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["cache-control"] == "no-store"
                assert not [name for name in answer.headers if name.startswith("access-control-")]
            preflight = {"origin": "http://evil.example", "access-control-request-method": "POST"}
            assert (await client.http.options("/runs", headers=preflight)).status_code == 403
            assert (await client.http.post("/runs/x/stop", content=b"")).status_code == 415
            assert (await client.get("/runs"))["runs"] == []
            kind = {"content-type": "Application/JSON; charset=utf-8"}
            assert (await client.http.post("/runs", content=body, headers=kind)).status_code == 201

    run_async(main)


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
def test_a_connection_changes_to_no_other_protocol(short: Path, run_async: Any, protocol: bytes) -> None:
    """Who asks for HTTP/2 or a web socket is answered in HTTP/1.1, and the next request on the connection as well."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client, await client.connect() as connection:
            await connection.send(
                b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, http2-settings\r\n"
                b"upgrade: %b\r\nhttp2-settings: AAMAAABkAAQAAAAA\r\nsec-websocket-version: 13\r\n"
                b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" % protocol
            )
            assert (await connection.receive()).startswith(b"HTTP/1.1 200")
            await connection.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await connection.receive()).startswith(b"HTTP/1.1 200")

    run_async(main)


def test_a_browser_gets_a_cookie_for_the_code_in_its_link_once(short: Path, run_async: Any) -> None:
    """The code works once; the cookie is for this site's own requests and no script's; the token works instead."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([]), tcp=True) as client:
            code = client.access.new_code()
            answer = await client.http.post("/session", headers={**JSON, "authorization": f"Bearer {code}"})
            assert answer.status_code == 204
            cookie = answer.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert TOKEN not in cookie
            shown = {"authorization": "", "cookie": cookie.partition(";")[0]}
            assert (await client.http.get("/runs", headers=shown)).status_code == 200
            for secret, status in ((code, 401), ("x", 401), ("x" * 43, 401), (TOKEN, 204)):
                answer = await client.http.post("/session", headers={**JSON, "authorization": f"Bearer {secret}"})
                assert answer.status_code == status, secret

    run_async(main)


async def test_looking_never_changes_anything(short: Path) -> None:
    """No GET leaves a record, whatever its path."""
    async with open_client(short, ScriptedModel([])) as client:
        for path in ("/", "/runs", "/agents", "/healthz", "/runs/x", "/runs/x/stop", "/session", "/runs/x/resume"):
            await client.http.get(path)
            await client.http.head(path)
        assert await client.control.journal.last_event() == 0
        assert await client.control.journal.read_runs() == []


async def test_a_body_that_never_comes_is_not_waited_for(short: Path, autojump_clock: object) -> None:
    """A client that announces more than it sends gets an answer, not a place for ever."""
    async with open_client(short, ScriptedModel([])) as client, await client.connect() as connection:
        await connection.send(
            b"POST /runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
        )
        with anyio.fail_after(30):
            assert (await connection.receive()).startswith(b"HTTP/1.1 408")


def test_the_token_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    """256 random bits, mode 0600, the same at the next start."""
    path = tmp_path / "state" / "token"
    token = read_or_make_token(path)
    assert len(token) >= 43
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    assert read_or_make_token(path) == token
    assert read_or_make_token(tmp_path / "other") != token


def test_services_that_begin_at_once_have_the_same_token(tmp_path: Path) -> None:
    """None reads what another has only half written."""
    with ThreadPoolExecutor(8) as services:
        for number in range(50):
            start = Barrier(8)

            def begin(path: Path = tmp_path / f"{number}", start: Barrier = start) -> str:
                start.wait(PATIENCE)
                return read_or_make_token(path)

            assert len({service.result() for service in [services.submit(begin) for _ in range(8)]}) == 1


def test_a_token_that_others_may_know_is_refused(tmp_path: Path) -> None:
    """A file that others can read, that is a link, that is no file or that holds too little is no secret."""
    path = tmp_path / "token"
    read_or_make_token(path)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="mode 0600, not 0644"):
        read_or_make_token(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_or_make_token(tmp_path / "link")
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigurationError, match="must be a file"):
        read_or_make_token(tmp_path / "fifo")
    for text in ("short", "t" * 64 + "\n" + "t" * 64, "é" * 64):  # the last two could not be sent
        path.write_text(text)
        with pytest.raises(ConfigurationError, match="43 or more printable ASCII"):
            read_or_make_token(path)
    with pytest.raises(ConfigurationError, match="cannot keep"):
        read_or_make_token(tmp_path / ("x" * 300))


def test_a_token_that_cannot_be_written_leaves_no_empty_file(tmp_path: Path) -> None:
    """On a full disk the error names the file, and the next start can make a token."""
    code = (
        "import resource, sys; from pathlib import Path; from repertory.service.tokens import read_or_make_token\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        "read_or_make_token(Path(sys.argv[1]))"
    )
    path = tmp_path / "token"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert f"ConfigurationError: cannot keep the token in {path}: File too large" in done.stderr
    assert len(read_or_make_token(path)) >= 43
