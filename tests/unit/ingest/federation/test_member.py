"""A member's registration, what it sends to the others, and where they take datagrams."""

from __future__ import annotations

from concurrent.futures import Future
from unittest.mock import Mock

import pytest

from arborcast.ingest.federation.member import _InterestSender, _Membership, address_of
from arborcast.ingest.federation.topology import AdministratorRefused, Member, MemberRegistration, Registered


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1"),
        ("https://[::1]/below", "::1"),
        ("http://", ""),
        ("http://[::1", ""),
        (f"http://{'a' * 70}/", ""),
    ],
)
def test_the_address_of_a_member(url: str, address: str) -> None:
    assert address_of(Member("b", "G", url, "1", 1, datagram_port=9)) == address


def settled(outcome: object) -> Future[object]:
    made: Future[object] = Future()
    if isinstance(outcome, Exception):
        made.set_exception(outcome)
    else:
        made.set_result(outcome)
    return made


@pytest.mark.parametrize(("status", "numbers"), [(404, [1, 1, 2]), (409, [1, 1, 2]), (500, [1, 1, 1])])
async def test_a_member_that_was_removed_registers_again(status: int, numbers: list[int]) -> None:
    administrator = Mock()
    administrator.register.side_effect = [settled(Registered(number, 1)) for number in (1, 2)]
    administrator.beat.side_effect = map(settled, (None, AdministratorRefused("gone", status), None))
    membership = _Membership(MemberRegistration("a", "G", "http://a/", "1", 0), administrator)
    await membership.renew()
    with pytest.raises(AdministratorRefused):
        await membership.renew()
    await membership.renew()
    assert [call.args[1] for call in administrator.beat.call_args_list] == numbers


def test_when_an_interest_is_sent() -> None:
    told = _InterestSender("G/a", Mock(), Mock())
    one, other = (("a",), ()), (("b",), ())
    assert told.is_due("G/b", one, 1, 100.0)
    assert told.is_due("G/b", one, 1, 101.0), "until it is taken"
    version = told._sent["G/b"].version
    told._sent["G/b"] = told._sent["G/b"]._replace(taken=True)
    assert not told.is_due("G/b", one, 1, 131.0)
    assert told.is_due("G/b", one, 1, 131.1)
    assert told._sent["G/b"].version == version
    told._sent["G/b"] = told._sent["G/b"]._replace(taken=True)
    assert told.is_due("G/b", one, 2, 132.0), "a member that registered again has lost it"
    assert told.is_due("G/b", other, 2, 132.0)
    told._under_way.add("G/b")
    assert not told.is_due("G/b", one, 3, 500.0)
    assert told.is_due("G/c", one, 1, 500.0)


def test_versions_grow_after_the_clock_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2_000, 1_000, 1_500])
    monkeypatch.setattr("arborcast.ingest.federation.member.time_ms", lambda: next(times))
    sender, versions = _InterestSender("G/a", Mock(), Mock()), []
    for topic in ("a", "b", "c"):
        assert sender.is_due("G/b", ((topic,), ()), 1, 100.0)
        versions.append(sender._sent["G/b"].version)
    assert versions == [2_000, 2_001, 2_002]
