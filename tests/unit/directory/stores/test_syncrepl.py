from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.directory.entries.dn import format_dn, parse_dn
from arborcast.directory.entries.entries import Entry
from arborcast.directory.stores import syncrepl
from arborcast.directory.stores.syncrepl import Mirror, ReloadNeeded, SyncDecodeError, SyncInfo, SyncState

ONE, TWO, THREE = bytes(range(16)), bytes(range(16, 32)), bytes(16)


def test_requests_and_states_of_rfc_4533() -> None:
    assert syncrepl.request_value() == b"\x30\x03\x0a\x01\x03"
    assert syncrepl.request_value(b"abc") == b"\x30\x08\x0a\x01\x03\x04\x03abc"
    assert syncrepl.request_value(b"c" * 200) == b"\x30\x81\xce\x0a\x01\x03\x04\x81\xc8" + b"c" * 200
    assert syncrepl.cookie_at((b"2#1#", b"1#0#")) == b"rid=000,csn=1#0#;2#1#"
    assert syncrepl.parse_state(b"\x30\x15\x0a\x01\x02\x04\x10" + ONE) == (SyncState.MODIFY, ONE)
    with_cookie = b"\x30\x18\x0a\x01\x03\x04\x10" + ONE + b"\x04\x01x"
    assert syncrepl.parse_state(with_cookie) == (SyncState.DELETE, ONE)
    cut = (b"", b"\x30", b"\x30\x05\x0a", b"\x30\x03\x0a\x01\x02", b"\x30\x06\x0a\x01\x09\x04\x01x", b"\x30\x80\0\0")
    for value in cut:
        with pytest.raises(SyncDecodeError):
            syncrepl.parse_state(value)


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
def test_sync_info_messages(value: bytes, info: SyncInfo) -> None:
    assert syncrepl.parse_info(value) == info


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_raise_the_typed_error(value: bytes) -> None:
    for parse in (syncrepl.parse_state, syncrepl.parse_info):
        with contextlib.suppress(SyncDecodeError):
            parse(value)


def entry(dn: str, uuid: bytes | None = None, **attributes: str) -> Entry:
    values = {name: (value.encode(),) for name, value in attributes.items()}
    if uuid is not None:
        values["entryuuid"] = (str(UUID(bytes=uuid)).encode(),)
    return Entry.of(parse_dn(dn), values)


def dns(mirror: Mirror) -> set[str]:
    return {format_dn(each.key) for each in mirror.entries}


def test_entries_are_added_changed_and_deleted() -> None:
    mirror = Mirror([entry("ou=t", ONE)])
    assert mirror.apply(entry("cn=a,ou=t", cn="a"), SyncState.ADD, TWO, False)
    assert not mirror.apply(entry("cn=a,ou=t", cn="a"), SyncState.ADD, TWO, False)
    assert mirror.apply(entry("cn=a,ou=t", cn="b"), SyncState.MODIFY, TWO, False)
    assert mirror.apply(entry("cn=a,ou=t"), SyncState.DELETE, TWO, False)
    assert not mirror.apply(entry("cn=a,ou=t"), SyncState.DELETE, TWO, False)
    assert dns(mirror) == {"ou=t"}
    with pytest.raises(ReloadNeeded):
        mirror.apply(entry("cn=a,ou=t"), SyncState.ADD, TWO, True)  # with children that are not known


def test_a_renamed_entry_moves_its_children() -> None:
    mirror = Mirror([entry("ou=t", ONE), entry("cn=a,ou=t", TWO), entry("cn=x,cn=a,ou=t", THREE)])
    assert mirror.apply(entry("cn=b,ou=t"), SyncState.MODIFY, TWO, True)
    assert dns(mirror) == {"ou=t", "cn=b,ou=t", "cn=x,cn=b,ou=t"}
    assert mirror.inform(SyncInfo(uuids=(THREE,), deleted=True)), "still found by their ids"
    assert dns(mirror) == {"ou=t", "cn=b,ou=t"}


def test_an_entry_added_at_the_old_place_of_a_moved_one_stays_there() -> None:
    mirror = Mirror([entry("ou=t", ONE), entry("cn=a,ou=t", TWO), entry("cn=x,cn=a,ou=t", THREE)])
    mirror.entries.rename(entry("cn=a,ou=t").key, entry("cn=b,ou=t"))  # as the writer, before the messages
    for dn in ("cn=a,ou=t", "cn=y,cn=a,ou=t"):
        mirror.entries.put(entry(dn))
    expected = dns(mirror)
    assert not mirror.apply(entry("cn=b,ou=t"), SyncState.MODIFY, TWO, True)
    assert not mirror.apply(entry("cn=a,ou=t"), SyncState.ADD, b"a" * 16, True)
    assert not mirror.apply(entry("cn=y,cn=a,ou=t"), SyncState.ADD, b"y" * 16, False)
    assert dns(mirror) == expected == {"ou=t", "cn=b,ou=t", "cn=x,cn=b,ou=t", "cn=a,ou=t", "cn=y,cn=a,ou=t"}
    assert mirror.inform(SyncInfo(uuids=(THREE,), deleted=True)), "the id moved with the entry"
    assert dns(mirror) == expected - {"cn=x,cn=b,ou=t"}


@pytest.mark.parametrize(
    ("late", "state", "uuid"),
    [
        ("cn=a,ou=t", SyncState.MODIFY, TWO),
        ("cn=z,cn=a,ou=t", SyncState.ADD, b"z" * 16),
        ("cn=z,cn=x,cn=a,ou=t", SyncState.ADD, b"z" * 16),
    ],
)
def test_a_change_by_another_client_before_a_move_by_the_writer_reloads(
    late: str, state: SyncState, uuid: bytes
) -> None:
    mirror = Mirror([entry("ou=t", ONE), entry("cn=a,ou=t", TWO), entry("cn=x,cn=a,ou=t", THREE)])
    mirror.entries.rename(entry("cn=a,ou=t").key, entry("cn=b,ou=t"))
    with pytest.raises(ReloadNeeded):
        mirror.apply(entry(late), state, uuid, False)


def test_an_entry_deleted_by_another_client_before_a_move_by_the_writer_reloads() -> None:
    mirror = Mirror([entry("ou=t", ONE), entry("cn=a,ou=t", TWO), entry("cn=x,cn=a,ou=t", THREE)])
    mirror.entries.rename(entry("cn=a,ou=t").key, entry("cn=b,ou=t"))
    mirror.apply(entry("cn=x,cn=a,ou=t"), SyncState.DELETE, THREE, False)
    with pytest.raises(ReloadNeeded):
        mirror.apply(entry("cn=b,ou=t"), SyncState.MODIFY, TWO, False)


def test_entries_missing_in_a_refresh_are_removed() -> None:
    mirror, other = (Mirror([entry("ou=t", ONE), entry("cn=a,ou=t", TWO)]) for _ in range(2))
    mirror.entries.put(entry("cn=ours,ou=t"))
    mirror.apply(entry("ou=t"), SyncState.PRESENT, ONE, False)
    assert mirror.inform(SyncInfo(refresh_done=True, absent_are_deleted=True))
    assert dns(mirror) == {"ou=t", "cn=ours,ou=t"}, "the engine's entry was not there before"
    assert not other.inform(SyncInfo(refresh_done=True)), "a refresh by deletions"
    assert len(other.entries) == 2


@pytest.mark.parametrize(
    "phase", [SyncInfo(uuids=(TWO,), deleted=True), SyncInfo(refresh_done=True, absent_are_deleted=True)]
)
def test_an_entry_that_was_added_again_before_its_deletion_is_reported_stays(phase: SyncInfo) -> None:
    mirror = Mirror([entry("ou=t", ONE), entry("cn=a,ou=t", TWO)])
    mirror.apply(entry("ou=t"), SyncState.PRESENT, ONE, False)
    mirror.apply(entry("cn=a,ou=t", cn="new"), SyncState.ADD, THREE, False)
    assert not mirror.inform(phase)
    assert dns(mirror) == {"ou=t", "cn=a,ou=t"}
    assert mirror.apply(entry("cn=a,ou=t"), SyncState.DELETE, THREE, False)
    assert dns(mirror) == {"ou=t"}
