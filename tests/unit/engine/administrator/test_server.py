"""The administrator's server: rights, answers, and recovery after a crash. Members and representatives."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from pathlib import Path

import httpx
import msgspec
import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.security.signatures import new_secret
from arborcast.core.security.web_pages import PageRule
from arborcast.engine.administrator.members import (
    FORGOTTEN_S,
    GONE_S,
    SUSPECT_S,
    MemberRegister,
    NameTaken,
    RegistrationRefused,
    StoredMembers,
    UnknownMember,
)
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


async def request(
    app: AdministratorApp, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str], bytes]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.request(method, path, content=body, headers=dict(headers))
        return answer.status_code, answer.headers, answer.content


def asked(app: AdministratorApp, keys: SharedKeys, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    headers = keys.signed(method, path, body)
    status, answered, answer = asyncio.run(request(app, method, path, body, headers))
    if status == 200:
        keys.check_answer(headers, answered, answer)
    return status, answer


def test_the_life_of_a_member_and_a_crash(keys: SharedKeys, app: AdministratorApp, tmp_path: Path) -> None:
    status, answer = asked(app, keys, "POST", "/members", REGISTRATION)
    assert (status, msgspec.json.decode(answer, type=Registered).number) == (200, 1)
    for number, expected in ((1, 200), (7, 404)):
        assert asked(app, keys, "POST", "/members/a/heartbeat", msgspec.json.encode(Beat(number)))[0] == expected
    taken = msgspec.json.encode(MemberRegistration("a", "G", "http://b:8080", "1"))
    status, answer = asked(app, keys, "POST", "/members", taken)
    assert (status, b"taken by the engine at http://a:8080" in answer) == (409, True)
    for each in (app, AdministratorApp(keys, tmp_path / "members.json", PAGES)):
        topology = msgspec.json.decode(asked(each, keys, "GET", "/topology?after=0")[1], type=Topology)
        (member,) = topology.members
        assert (topology.version, member.engine, member.number, member.state) == (1, "G/a", 1, "live")
    stored = (tmp_path / "members.json").read_bytes()
    for damaged in (b"nonsense", stored.replace(b"http://a", b"http://\xff")):
        (tmp_path / "members.json").write_bytes(damaged)
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


def test_unauthenticated_requests_and_web_pages_are_refused(
    keys: SharedKeys, app: AdministratorApp, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = keys.signed("POST", "/members", REGISTRATION)
    other = keys.signed("POST", "/members/a/heartbeat", REGISTRATION)
    old = SharedKeys(str(tmp_path / "key"), lambda: 1_000.0).signed("POST", "/members", REGISTRATION)
    for headers in ({}, other, old, good | {"webhook-signature": "v1,AAAA"}):
        status, _, answer = asyncio.run(request(app, "POST", "/members", REGISTRATION, headers))
        assert status == 401, answer
    assert asyncio.run(request(app, "POST", "/members", REGISTRATION + b" ", good))[0] == 401
    for page in ({"origin": "https://evil.example"}, {"host": "evil.example:8095"}):
        signed = keys.signed("POST", "/members", REGISTRATION) | page
        assert asyncio.run(request(app, "POST", "/members", REGISTRATION, signed))[0] == 403
        assert asyncio.run(request(app, "GET", "/health/live", b"", page))[0] == 403
    assert asyncio.run(request(app, "GET", "/health/live", b"", {}))[0] == 200
    assert not (tmp_path / "members.json").exists()
    assert "was refused" not in caplog.text, "unauthenticated requests fill no log"
    assert asked(app, keys, "POST", "/members", b"{}")[0] == 400
    assert "was refused" in caplog.text


def test_a_full_disk_refuses_registrations_until_it_has_space(
    keys: SharedKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    now = [0.0]
    app = AdministratorApp(keys, tmp_path / "members.json", PAGES, lambda: now[0])

    def members() -> list[tuple[str, int, str]]:
        topology = msgspec.json.decode(asked(app, keys, "GET", "/topology?after=-1")[1], type=Topology)
        return [(each.name, each.number, each.state) for each in topology.members]

    async def check() -> None:
        checking = asyncio.create_task(app.check_forever())
        await asyncio.sleep(0)
        assert not checking.done()
        checking.cancel()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    beat, other = msgspec.json.encode(Beat(1)), msgspec.json.encode(MemberRegistration("b", "G", "http://b:8080", "1"))
    assert asked(app, keys, "POST", "/members", REGISTRATION)[0] == 200
    with monkeypatch.context() as patched:
        patched.setattr("arborcast.engine.administrator.server.write_atomically", full)
        for _ in range(2):
            status, answer = asked(app, keys, "POST", "/members", other)
            assert (status, b"the disk is full: make room" in answer) == (503, True)
        assert asked(app, keys, "POST", "/members/a/heartbeat", beat)[0] == 200
        assert members() == [("a", 1, "live")]
        now[0] = GONE_S
        asyncio.run(check())
        assert members() == [("a", 1, "gone")]
    assert caplog.text.count("cannot be stored") == 1
    assert asked(app, keys, "POST", "/members", other)[0] == 200
    assert members() == [("a", 1, "gone"), ("b", 2, "live")]
    assert "are stored in" in caplog.text


async def test_a_stopped_administrator_loses_no_member(
    keys: SharedKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All engines would register again, with other numbers, and representatives would change."""
    monkeypatch.setattr("arborcast.engine.administrator.server._CHECK_S", 0)
    now = [0.0]
    app = AdministratorApp(keys, tmp_path / "members.json", PAGES, lambda: now[0])
    await request(app, "POST", "/members", REGISTRATION, keys.signed("POST", "/members", REGISTRATION))
    checking = asyncio.create_task(app.check_forever())

    async def member(passed_s: float) -> tuple[str, float]:
        now[0] += passed_s
        for _ in range(3):
            await asyncio.sleep(0)
        (found,) = app._members.topology(now[0]).members
        return found.state, found.silent_ms / 1000

    assert await member(0.5) == ("live", 0.5)
    assert await member(60.0) == ("live", 60.5), "a takeover counts the whole silence"
    states = [(await member(1.0))[0] for _ in range(int(GONE_S))]
    assert (states[0], states[5], states[-1]) == ("live", "suspect", "gone")
    checking.cancel()


async def test_a_request_waits_for_a_new_topology(keys: SharedKeys, app: AdministratorApp) -> None:
    path = "/topology?after=0"
    waiting = asyncio.create_task(request(app, "GET", path, b"", keys.signed("GET", path, b"")))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await request(app, "POST", "/members", REGISTRATION, keys.signed("POST", "/members", REGISTRATION))
    assert msgspec.json.decode((await waiting)[2], type=Topology).version == 1


def test_replayed_heartbeats_and_registrations_are_refused(keys: SharedKeys, app: AdministratorApp) -> None:
    for path, body in (("/members", REGISTRATION), ("/members/a/heartbeat", msgspec.json.encode(Beat(1)))):
        headers = keys.signed("POST", path, body)
        assert asyncio.run(request(app, "POST", path, body, headers))[0] == 200
        status, _, answer = asyncio.run(request(app, "POST", path, body, headers))
        assert (status, b"taken before" in answer) == (401, True)
        assert asked(app, keys, "POST", path, body)[0] == 200, "signed again"


def registration(name: str, group: str = "G", url: str = "") -> MemberRegistration:
    return MemberRegistration(name, group, url or f"http://{name}:8080", "1.0")


def representative(members: MemberRegister, now: float, group: str = "G") -> str:
    found = members.topology(now).representative(group)
    return found.name if found is not None else ""


def test_a_silent_member_is_suspect_then_removed() -> None:
    members = MemberRegister(StoredMembers(), 0.0, 0)
    first = members.register(registration("b"), 0.0)
    members.register(registration("a"), 0.0)
    assert members.register(registration("x", "H"), 0.0).number == 3
    assert (representative(members, 0.0, "H"), representative(members, 0.0, "I")) == ("x", "")
    states = []
    for second in range(1, 20):
        members.beat("a", 2, float(second))
        changed = members.check(float(second))
        states.append((members.topology(float(second)).members[0].state, changed, representative(members, second)))
    assert states[int(SUSPECT_S) - 2] == ("live", False, "b")
    assert states[int(SUSPECT_S) - 1] == ("suspect", True, "b"), "a pause changes no links"
    assert states[int(GONE_S) - 2] == ("suspect", False, "b")
    assert states[int(GONE_S) - 1] == ("gone", True, "a")
    assert members.topology(19.0).members[0].silent_ms == 19_000
    with pytest.raises(UnknownMember):
        members.beat("b", first.number, 19.0)
    again = members.register(registration("b"), 20.0)
    assert again.number == 4
    assert again.topology > first.topology
    assert representative(members, 20.0) == "a"


def test_a_name_belongs_to_its_engine_until_its_removal() -> None:
    members = MemberRegister(StoredMembers(), 0.0, 0)
    members.register(registration("a"), 0.0)
    for other in (registration("a", url="http://elsewhere"), registration("a", "H")):
        with pytest.raises(NameTaken, match="taken by the engine at http://a:8080, of the group G"):
            members.register(other, 1.0)
    members.check(SUSPECT_S)
    assert members.register(registration("a"), SUSPECT_S + 1).number == 1, "a restarted engine"
    assert members.topology(SUSPECT_S + 1).members[0].state == "live"
    lost_at = SUSPECT_S + 1 + GONE_S
    members.check(lost_at)
    assert members.register(registration("a", "H"), lost_at).number == 2
    members.check(lost_at + GONE_S)
    members.check(lost_at + FORGOTTEN_S)
    assert members.topology(lost_at + FORGOTTEN_S).members == ()
    assert members.register(registration("a"), lost_at + FORGOTTEN_S).number == 3


@pytest.mark.parametrize(
    "wrong", [registration("a b"), registration("a", "-G"), registration("a", url="ftp://a"), registration("")]
)
def test_invalid_registrations(wrong: MemberRegistration) -> None:
    members = MemberRegister(StoredMembers(), 0.0, 0)
    with pytest.raises(RegistrationRefused):
        members.register(wrong, 0.0)
    assert members.topology(0.0).members == ()


def test_after_a_start_members_have_time_for_a_heartbeat() -> None:
    members = MemberRegister(StoredMembers(), 0.0, 0)
    members.register(registration("a"), 0.0)
    members.register(registration("b"), 0.0)
    stored = members.stored(10.0, 1_010_000)
    # The administrator was stopped for an hour; its monotonic clock started again.
    later = MemberRegister(stored, 5.0, 1_010_000 + 3_600_000)
    assert later.version == members.version
    later.check(5.0 + GONE_S - 1)
    assert {each.state for each in later.topology(5.0 + GONE_S - 1).members} == {"suspect"}
    later.beat("b", 2, 5.0 + GONE_S - 1)
    later.check(5.0 + GONE_S)
    a, b = later.topology(5.0 + GONE_S).members
    assert (a.state, b.state) == ("gone", "live")
    assert a.silent_ms == 10_000 + 3_600_000 + int(GONE_S * 1000), "with the time of the stop"
    assert later.version > members.version


def test_a_start_with_a_wrong_clock_removes_no_member() -> None:
    members = MemberRegister(StoredMembers(), 0.0, 0)
    members.register(registration("a"), 0.0)
    ahead = MemberRegister(members.stored(0.0, 0), 0.0, int(FORGOTTEN_S * 1000) + 1)
    ahead.check(GONE_S)
    ahead.check(FORGOTTEN_S - 1)
    assert [each.state for each in ahead.topology(FORGOTTEN_S - 1).members] == ["gone"]
    ahead.check(FORGOTTEN_S)
    assert ahead.topology(FORGOTTEN_S).members == ()


def test_the_port_for_datagrams_of_a_member() -> None:
    members = MemberRegister(StoredMembers(), 0.0, 0)
    members.register(registration("a"), 0.0)
    before = members.topology(0.0)
    assert members.register(msgspec.structs.replace(registration("a"), datagram_port=8096), 0.0).number == 1
    after = members.topology(0.0)
    assert after.version > before.version
    assert [each.datagram_port for each in after.members] == [8096]
    again = MemberRegister(members.stored(0.0, 0), 0.0, 0)
    assert [each.datagram_port for each in again.topology(0.0).members] == [8096]
    with pytest.raises(RegistrationRefused, match="is no port"):
        members.register(msgspec.structs.replace(registration("a"), datagram_port=65_536), 0.0)
