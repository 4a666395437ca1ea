"""The administrator's server: rights, answers, and what is left after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import httpx
import msgspec
import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.security.signatures import new_secret
from arborcast.core.security.web_pages import PageRule
from arborcast.engine.administrator.server import AdministratorApp
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.topology import Beat, MemberRegistration, Registered, Topology

PAGES = PageRule("127.0.0.1")

REGISTRATION = msgspec.json.encode(MemberRegistration("a", "G", "http://a:8080", "1"))


@pytest.fixture
def keys(tmp_path: Path) -> SharedKeys:
    file = tmp_path / "key"
    file.write_text(f"# the federation\n{new_secret()}\n")
    return SharedKeys(str(file))


@pytest.fixture
def app(keys: SharedKeys, tmp_path: Path) -> AdministratorApp:
    return AdministratorApp(keys, tmp_path / "members.json", PAGES)


async def ask(
    app: AdministratorApp, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str], bytes]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.request(method, path, content=body, headers=dict(headers))
        return answer.status_code, answer.headers, answer.content


def asked(app: AdministratorApp, keys: SharedKeys, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    headers = keys.signed(method, path, body)
    status, answered, answer = asyncio.run(ask(app, method, path, body, headers))
    if status == 200:
        keys.check_answer(headers, answered, answer)
    return status, answer


def test_the_life_of_a_member_and_a_crash(keys: SharedKeys, app: AdministratorApp, tmp_path: Path) -> None:
    status, answer = asked(app, keys, "POST", "/members", REGISTRATION)
    assert (status, msgspec.json.decode(answer, type=Registered).number) == (200, 1)
    for number, expected in ((1, 200), (7, 404)):
        beat = msgspec.json.encode(Beat(number))
        assert asked(app, keys, "POST", "/members/a/heartbeat", beat)[0] == expected
    taken = msgspec.json.encode(MemberRegistration("a", "G", "http://b:8080", "1"))
    status, answer = asked(app, keys, "POST", "/members", taken)
    assert (status, b"taken by the engine at http://a:8080" in answer) == (409, True)
    for each in (app, AdministratorApp(keys, tmp_path / "members.json", PAGES)):
        topology = msgspec.json.decode(asked(each, keys, "GET", "/topology?after=0")[1], type=Topology)
        (member,) = topology.members
        assert (topology.version, member.engine, member.number, member.state) == (1, "G/a", 1, "live")
    (tmp_path / "members.json").write_text("nonsense")
    with pytest.raises(ConfigError, match="all engines register again"):
        AdministratorApp(keys, tmp_path / "members.json", PAGES)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/members", b"{}", 400),
        ("POST", "/members", b"\xff", 400),
        ("POST", "/members", b"x" * 20_000, 413),
        ("PUT", "/members", b"", 400),
        ("GET", "/elsewhere", b"", 400),
        ("POST", "/members/-/heartbeat", b'{"number": 1}', 404),
    ],
)
def test_bad_input(keys: SharedKeys, app: AdministratorApp, method: str, path: str, body: bytes, status: int) -> None:
    assert asked(app, keys, method, path, body)[0] == status


def test_strangers_and_web_pages_of_others_are_refused(
    keys: SharedKeys, app: AdministratorApp, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = keys.signed("POST", "/members", REGISTRATION)
    other = keys.signed("POST", "/members/a/heartbeat", REGISTRATION)
    old = SharedKeys(str(tmp_path / "key"), lambda: 1_000.0).signed("POST", "/members", REGISTRATION)
    for headers in ({}, other, old, good | {"webhook-signature": "v1,AAAA"}):
        status, _, answer = asyncio.run(ask(app, "POST", "/members", REGISTRATION, headers))
        assert status == 401, answer
    assert asyncio.run(ask(app, "POST", "/members", REGISTRATION + b" ", good))[0] == 401
    for page in ({"origin": "https://evil.example"}, {"host": "evil.example:8095"}):
        signed = keys.signed("POST", "/members", REGISTRATION) | page
        assert asyncio.run(ask(app, "POST", "/members", REGISTRATION, signed))[0] == 403
        assert asyncio.run(ask(app, "GET", "/health/live", b"", page))[0] == 403
    assert asyncio.run(ask(app, "GET", "/health/live", b"", {}))[0] == 200
    assert not (tmp_path / "members.json").exists()
    assert "was refused" not in caplog.text, "strangers fill no log"
    assert asked(app, keys, "POST", "/members", b"{}")[0] == 400
    assert "was refused" in caplog.text


def test_a_question_waits_for_a_new_topology(keys: SharedKeys, app: AdministratorApp) -> None:
    async def both() -> bytes:
        path = "/topology?after=0"
        waiting = asyncio.create_task(ask(app, "GET", path, b"", keys.signed("GET", path, b"")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await ask(app, "POST", "/members", REGISTRATION, keys.signed("POST", "/members", REGISTRATION))
        return (await waiting)[2]

    assert msgspec.json.decode(asyncio.run(both()), type=Topology).version == 1


def test_a_recorded_heartbeat_or_registration_is_not_taken_again(keys: SharedKeys, app: AdministratorApp) -> None:
    for path, body in (("/members", REGISTRATION), ("/members/a/heartbeat", msgspec.json.encode(Beat(1)))):
        headers = keys.signed("POST", path, body)
        assert asyncio.run(ask(app, "POST", path, body, headers))[0] == 200
        status, _, answer = asyncio.run(ask(app, "POST", path, body, headers))
        assert (status, b"taken before" in answer) == (401, True)
        assert asked(app, keys, "POST", path, body)[0] == 200, "signed again"
