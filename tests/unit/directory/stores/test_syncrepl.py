from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.directory.entries.dn import Dn, fold, parse_dn
from arborcast.directory.entries.entries import Entry
from arborcast.directory.stores import syncrepl
from arborcast.directory.stores.syncrepl import EntryState, Mirror, ReloadNeeded, SyncDecodeError, SyncInfo, SyncState

ONE, TWO = bytes(range(16)), bytes(range(16, 32))


def test_the_request_as_rfc_4533_has_it() -> None:
    assert syncrepl.request_value() == b"\x30\x03\x0a\x01\x03"
    assert syncrepl.request_value(b"abc") == b"\x30\x08\x0a\x01\x03\x04\x03abc"
    assert syncrepl.request_value(b"c" * 200) == b"\x30\x81\xce\x0a\x01\x03\x04\x81\xc8" + b"c" * 200
    assert syncrepl.cookie_at((b"2#1#", b"1#0#")) == b"rid=000,csn=1#0#;2#1#"


def test_the_state_of_an_entry() -> None:
    value = b"\x30\x15\x0a\x01\x02\x04\x10" + ONE
    assert syncrepl.parse_state(value) == EntryState(SyncState.MODIFY, ONE)
    with_cookie = b"\x30\x18\x0a\x01\x03\x04\x10" + ONE + b"\x04\x01x"
    assert syncrepl.parse_state(with_cookie) == EntryState(SyncState.DELETE, ONE)


@pytest.mark.parametrize(
    ("value", "info"),
    [
        (b"\x80\x03abc", SyncInfo()),
        (b"\xa1\x00", SyncInfo(refresh_done=True)),
        (b"\xa1\x03\x01\x01\x00", SyncInfo(refresh_done=False)),
        (b"\xa2\x05\x04\x03abc", SyncInfo(refresh_done=True, absent_are_deleted=True)),
        (b"\xa3\x17\x01\x01\xff\x31\x12\x04\x10" + ONE, SyncInfo(uuids=(ONE,), deleted=True)),
        (b"\xa3\x14\x31\x12\x04\x10" + ONE, SyncInfo(uuids=(ONE,))),
    ],
)
def test_what_is_said_about_a_phase(value: bytes, info: SyncInfo) -> None:
    assert syncrepl.parse_info(value) == info


@pytest.mark.parametrize(
    "value",
    [b"", b"\x30", b"\x30\x05\x0a", b"\x30\x03\x0a\x01\x02", b"\x30\x06\x0a\x01\x09\x04\x01x", b"\x30\x80\x00\x00"],
)
def test_what_is_no_state(value: bytes) -> None:
    with pytest.raises(SyncDecodeError):
        syncrepl.parse_state(value)


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_raise_the_typed_error(value: bytes) -> None:
    with contextlib.suppress(SyncDecodeError):
        syncrepl.parse_state(value)
    with contextlib.suppress(SyncDecodeError):
        syncrepl.parse_info(value)


# -- the mirror --------------------------------------------------------------------------------------------------------


def key(dn: str) -> Dn:
    return fold(parse_dn(dn))


def entry(dn: str, uuid: bytes | None = None, **attributes: str) -> Entry:
    values = {name: (value.encode(),) for name, value in attributes.items()}
    if uuid is not None:
        values["entryuuid"] = (str(UUID(bytes=uuid)).encode(),)
    return Entry.of(parse_dn(dn), values)


def test_entries_come_change_and_go() -> None:
    mirror = Mirror([entry("ou=t", ONE)])
    assert mirror.apply(entry("cn=a,ou=t", cn="a"), EntryState(SyncState.ADD, TWO), False)
    assert not mirror.apply(entry("cn=a,ou=t", cn="a"), EntryState(SyncState.ADD, TWO), False)
    assert mirror.apply(entry("cn=a,ou=t", cn="b"), EntryState(SyncState.MODIFY, TWO), False)
    assert mirror.apply(entry("cn=a,ou=t"), EntryState(SyncState.DELETE, TWO), False)
    assert not mirror.apply(entry("cn=a,ou=t"), EntryState(SyncState.DELETE, TWO), False)
    assert [e.key for e in mirror.entries] == [key("ou=t")]


def test_a_renamed_entry_takes_those_below_it_along_and_they_are_still_known() -> None:
    three = bytes(16)
    mirror = Mirror([entry("ou=t", ONE), entry("cn=a,ou=t", TWO), entry("cn=x,cn=a,ou=t", three)])
    assert mirror.apply(entry("cn=b,ou=t"), EntryState(SyncState.MODIFY, TWO), True)
    assert {e.key for e in mirror.entries} == {key("ou=t"), key("cn=b,ou=t"), key("cn=x,cn=b,ou=t")}
    assert mirror.inform(SyncInfo(uuids=(three,), deleted=True))
    assert {e.key for e in mirror.entries} == {key("ou=t"), key("cn=b,ou=t")}


def test_an_entry_that_appears_with_others_below_it_needs_a_new_read() -> None:
    mirror = Mirror([entry("ou=t", ONE)])
    with pytest.raises(ReloadNeeded):
        mirror.apply(entry("cn=a,ou=t"), EntryState(SyncState.ADD, TWO), True)


def test_what_a_refresh_does_not_mention_is_gone_when_it_says_so_and_was_there_before() -> None:
    mirror, other = (Mirror([entry("ou=t", ONE), entry("cn=a,ou=t", TWO)]) for _ in range(2))
    mirror.entries.put(entry("cn=ours,ou=t"))
    mirror.apply(entry("ou=t"), EntryState(SyncState.PRESENT, ONE), False)
    assert mirror.inform(SyncInfo(refresh_done=True, absent_are_deleted=True))
    assert {e.key for e in mirror.entries} == {key("ou=t"), key("cn=ours,ou=t")}
    assert not other.inform(SyncInfo(refresh_done=True)), "a refresh by deletions"
    assert len(other.entries) == 2
