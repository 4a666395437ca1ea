"""Members, and representatives of groups."""

from __future__ import annotations

import msgspec
import pytest

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
from arborcast.ingest.federation.topology import MemberRegistration


def registration(name: str, group: str = "G", url: str = "") -> MemberRegistration:
    return MemberRegistration(name, group, url or f"http://{name}:8080", "1.0")


def representative(members: MemberRegister, now: float, group: str = "G") -> str:
    found = members.topology(now).representative(group)
    return found.name if found is not None else ""


def test_silence_makes_suspect_then_gone_and_a_return_a_new_number() -> None:
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
    assert states[int(SUSPECT_S) - 1] == ("suspect", True, "b"), "a pause changes nobody's links"
    assert states[int(GONE_S) - 2] == ("suspect", False, "b")
    assert states[int(GONE_S) - 1] == ("gone", True, "a")
    assert members.topology(19.0).members[0].silent_ms == 19_000
    with pytest.raises(UnknownMember):
        members.beat("b", first.number, 19.0)
    again = members.register(registration("b"), 20.0)
    assert again.number == 4
    assert again.topology > first.topology
    assert representative(members, 20.0) == "a"


def test_a_name_belongs_to_its_engine_until_that_is_gone() -> None:
    members = MemberRegister(StoredMembers(), 0.0, 0)
    members.register(registration("a"), 0.0)
    for other in (registration("a", url="http://elsewhere"), registration("a", "H")):
        with pytest.raises(NameTaken, match="taken by the engine at http://a:8080, of the group G"):
            members.register(other, 1.0)
    members.check(SUSPECT_S)
    assert members.register(registration("a"), SUSPECT_S + 1).number == 1, "an engine that was started again"
    assert members.topology(SUSPECT_S + 1).members[0].state == "live"
    gone = SUSPECT_S + 1 + GONE_S
    members.check(gone)
    assert members.register(registration("a", "H"), gone).number == 2
    members.check(gone + GONE_S)
    members.check(gone + FORGOTTEN_S)
    assert members.topology(gone + FORGOTTEN_S).members == ()
    assert members.register(registration("a"), gone + FORGOTTEN_S).number == 3


@pytest.mark.parametrize(
    "wrong", [registration("a b"), registration("a", "-G"), registration("a", url="ftp://a"), registration("")]
)
def test_wrong_registrations(wrong: MemberRegistration) -> None:
    members = MemberRegister(StoredMembers(), 0.0, 0)
    with pytest.raises(RegistrationRefused):
        members.register(wrong, 0.0)
    assert members.topology(0.0).members == ()


def test_after_a_start_members_have_time_to_be_heard() -> None:
    members = MemberRegister(StoredMembers(), 0.0, 0)
    members.register(registration("a"), 0.0)
    members.register(registration("b"), 0.0)
    stored = members.stored(10.0, 1_010_000)
    # The administrator was away for an hour, by a clock that began anew.
    later = MemberRegister(stored, 5.0, 1_010_000 + 3_600_000)
    assert later.version == members.version
    later.check(5.0 + GONE_S - 1)
    assert {each.state for each in later.topology(5.0 + GONE_S - 1).members} == {"suspect"}
    later.beat("b", 2, 5.0 + GONE_S - 1)
    later.check(5.0 + GONE_S)
    a, b = later.topology(5.0 + GONE_S).members
    assert (a.state, b.state) == ("gone", "live")
    assert a.silent_ms == 10_000 + 3_600_000 + int(GONE_S * 1000), "as long as nobody has heard of it"
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
    changed = msgspec.structs.replace(registration("a"), datagram_port=8096)
    assert members.register(changed, 0.0).number == 1
    after = members.topology(0.0)
    assert after.version > before.version
    assert [each.datagram_port for each in after.members] == [8096]
    again = MemberRegister(members.stored(0.0, 0), 0.0, 0)
    assert [each.datagram_port for each in again.topology(0.0).members] == [8096]
    with pytest.raises(RegistrationRefused, match="is no port"):
        members.register(msgspec.structs.replace(registration("a"), datagram_port=65_536), 0.0)
