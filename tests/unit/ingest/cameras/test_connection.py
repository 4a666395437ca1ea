"""HTTP to one camera: limits, kept connections, and invalid answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from arborcast.core.errors import NoAnswer, OutboundRefused
from arborcast.core.http_client import HttpAnswer
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.ingest.cameras.connection import MAX_ANSWER, CameraConnection
from arborcast.ingest.cameras.credentials import Credentials
from tests.support.certificates import make_certificates
from tests.support.outbound import THIS_MACHINE, unresponsive_port
from tests.support.scripted_server import ScriptedServer, request_on

NONE = Credentials()

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def answer_ok(connection: socket.socket) -> None:
    request_on(connection, b"</x>")
    connection.sendall(OK)


async def exchange(
    *answers: bytes, posts: int = 1, total_s: float = 60.0, closes: bool = False, credentials: Credentials = NONE
) -> tuple[list[HttpAnswer], int]:
    """The results of posts to a server with these answers, one per request, and the number of connections."""
    left = list(answers)

    def serve(connection: socket.socket) -> None:
        while left and request_on(connection, b"</x>"):
            connection.sendall(left.pop(0))
            if closes:
                return
        if answers[-1].endswith(b"..."):
            connection.recv(1)  # the rest never arrives

    connection, headers = CameraConnection(THIS_MACHINE, credentials), {"Content-Type": "text/xml"}
    with ScriptedServer(serve) as server:
        try:
            posted = [await connection.post(f"{server.url}/onvif", headers, b"<x></x>", total_s) for _ in range(posts)]
        finally:
            connection.close()
    return posted, server.connections


@pytest.mark.parametrize("closes", [False, True])
async def test_a_connection_is_kept_until_the_camera_closes_it(closes: bool) -> None:
    answers, connections = await exchange(OK, OK, OK, posts=3, closes=closes)
    assert [each.body for each in answers] == [b"ok"] * 3
    assert connections == (3 if closes else 1)


async def test_renewed_authorities_apply_to_the_next_connection(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    authorities = tmp_path / "authorities.pem"
    authorities.write_text(Path(certificates.certificate("stranger")).read_text())
    connection = CameraConnection(THIS_MACHINE, NONE, ca_file=str(authorities))
    with ScriptedServer(answer_ok, tls=certificates.server()) as server:
        with pytest.raises(NoAnswer, match="certificate"):
            await connection.post(server.url, {}, b"<x></x>", 60)
        authorities.write_text(Path(certificates.authority).read_text() + "\n")
        assert (await connection.post(server.url, {}, b"<x></x>", 60)).body == b"ok"
    connection.close()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.0 500 Error\r\n\r\n<fault/>", b"<fault/>"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
async def test_answers_of_cameras(answer: bytes, body: bytes) -> None:
    (found,), _ = await exchange(answer)
    assert found.body == body
    assert str(found.status).encode() in answer


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"<html>", OK[:-1], b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n"),
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * (MAX_ANSWER + 1),
    ],
)
async def test_invalid_answers(answer: bytes) -> None:
    with pytest.raises(NoAnswer, match="no answer from http"):
        await exchange(answer)


async def test_digest_is_preferred_to_other_challenges() -> None:
    digest = b'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth", algorithm=md5\r\n'
    basic = b'WWW-Authenticate: Basic realm="r"\r\n'
    for headers in (digest + basic, basic + digest):
        refusal = b"HTTP/1.1 401 Unauthorized\r\n" + headers + b"Content-Length: 0\r\n\r\n"
        (found,), _ = await exchange(refusal, OK, credentials=Credentials("user", "password"))
        assert found.status == 200
    (found,), _ = await exchange(refusal, refusal, credentials=Credentials("user", "wrong"))
    assert found.status == 401, "one attempt per challenge"


async def test_a_slow_answer_times_out() -> None:
    with pytest.raises(NoAnswer):
        await exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n...", total_s=0.2)


async def test_the_outbound_policy_checks_each_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[object]:
        return [(2, 1, 6, "", ("10.0.0.1", 80)), (2, 1, 6, "", ("169.254.169.254", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for settings, url in (
        (OutboundSettings(), "http://127.0.0.1:9/"),
        (OutboundSettings(scope="loopback", deny="127.0.0.0/8"), "http://127.0.0.1:9/"),
        (OutboundSettings(), "http://camera.example/"),
    ):
        with pytest.raises(OutboundRefused, match="outbound rule"):
            await CameraConnection(AddressPolicy(settings), NONE).post(url, {}, b"", 60.0)


async def test_an_unreachable_address_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[object]:
        return [(2, 1, 6, "", ("127.0.0.1", each)) for each in (dead, live)]

    monkeypatch.setattr("arborcast.ingest.cameras.connection._CONNECT_S", 2.0)
    with unresponsive_port() as dead, ScriptedServer(answer_ok) as server:
        live = server.port
        connection = CameraConnection(THIS_MACHINE, NONE)
        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", resolve)
            answer = await connection.post("http://localhost/", {}, b"<x></x>", 60.0)
        connection.close()
        assert answer.status == 200


async def test_lookups_without_an_answer_do_not_delay_other_cameras(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, ended, looked_up = socket.getaddrinfo, threading.Event(), list[str]()

    def resolve(host: str, *rest: int, **more: int) -> object:
        if host.endswith(".example"):
            looked_up.append(host)
            ended.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    away = [CameraConnection(THIS_MACHINE, NONE) for _ in range(40)]  # asyncio has up to 32 threads
    there = CameraConnection(THIS_MACHINE, NONE)
    with ScriptedServer(answer_ok) as server:
        url = f"http://localhost:{server.port}/"
        try:
            for _ in range(2):
                posts = (each.post(f"http://c{n}.example/", {}, b"", 0.1) for n, each in enumerate(away))
                assert {type(each) for each in await asyncio.gather(*posts, return_exceptions=True)} == {NoAnswer}
            assert (await there.post(url, {}, b"<x></x>", 60.0)).status == 200
            assert len(looked_up) == len(set(looked_up)), "a camera has one lookup at a time"
        finally:
            ended.set()
            while any(len(each._lookups) for each in away):
                await asyncio.sleep(0.01)
            there.close()
