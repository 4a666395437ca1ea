"""Operations on an LDAP server over one bound connection: reads, changes, and the stream of changes by other clients.

Connections use ldap3's synchronous strategy; the stream is read from the socket by our own thread (ldap3's asynchronous
strategies raise in their own thread, out of the caller's reach, and detect a dead server late).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ldap3
from ldap3.operation.search import search_operation
from ldap3.strategy.base import BaseStrategy
from ldap3.utils.asn1 import decode_message_fast

from arborcast.directory.entries.changes import AddEntry, DeleteEntry, Edit, ModifyEntry, RenameEntry
from arborcast.directory.entries.dn import Dn, format_dn, format_rdn, parse_dn
from arborcast.directory.entries.entries import Entry
from arborcast.directory.errors import DirectoryError, DirectoryUnavailable, DnError
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores import syncrepl
from arborcast.directory.stores.ldap_connection import (
    BUSY,
    ENTRY_EXISTS,
    NO_SUCH_OBJECT,
    NOT_ALLOWED,
    RETRY_SECONDS,
    UNSUPPORTED_CRITICAL,
    check,
    connect,
    disconnect,
    translated,
    words,
)

# Servers refuse pages above their size limit, by default 500.
_PAGE_SIZE = 500
_RECEIVE_BYTES = 65_536
# A topic's entry has hundreds of bytes; a message beyond this is not LDAP.
_MAX_MESSAGE_BYTES = 16 << 20

_PAGED = "1.2.840.113556.1.4.319"


class WatchNotSupported(DirectoryError):
    """The server has no syncrepl for this base; it must be polled."""


class EntryRefused(DirectoryError):
    """The server refuses a change of one entry, for a reason of that entry. `exists`: it exists already."""

    def __init__(self, message: str, *, exists: bool) -> None:
        super().__init__(message)
        self.exists = exists


@dataclass(frozen=True, slots=True)
class EntryChanged:
    """A message of the stream: an entry with its UUID, and its change. `has_children` is from the server, False if it
    has no such attribute."""

    entry: Entry
    state: syncrepl.SyncState
    uuid: bytes
    has_children: bool


class LdapSession:
    """One bound connection, used by one thread. The constructor connects, starts TLS and binds.

    All methods raise DirectoryUnavailable for a broken connection, DirectoryRefused for a refusal of the server.
    """

    def __init__(self, settings: DirectorySettings) -> None:
        self._settings = settings
        self._buffer = b""
        self._message_id = 0
        self._connection: Any = connect(settings)

    def read_tree(self, base: Dn) -> Iterator[Entry]:
        """The base and every entry below it, page by page. Raises NoSuchEntry if the base does not exist."""
        cookie: bytes | None = None
        while True:
            result = self._search(base, ldap3.SUBTREE, ["*", "entryUUID"], paged_size=_PAGE_SIZE, paged_cookie=cookie)
            check(self._settings, result, f"reading {format_dn(base)}")
            yield from filter(None, map(_entry, self._connection.response))
            cookie = result.get("controls", {}).get(_PAGED, {}).get("value", {}).get("cookie")
            if not cookie:
                return

    def context_csn(self, base: Dn) -> tuple[bytes, ...]:
        """The change sequence numbers of the database with `base`; () if the server has none.

        The database's suffix has them, which is the base or above it.
        """
        for start in range(len(base)):
            if self._search(base[start:], ldap3.BASE, ["contextCSN"]).get("result") != 0:
                continue
            for entry in filter(None, map(_entry, self._connection.response)):
                if entry.attributes.get("contextcsn"):
                    return entry.attributes["contextcsn"]
        return ()

    def carry_out(self, edit: Edit) -> None:
        """Make a change. Raises EntryRefused."""
        dn = format_dn(edit.entry.dn)
        with translated(self._settings):
            match edit:
                case AddEntry(entry):
                    self._connection.add(dn, None, {name: list(values) for name, values in entry.attributes.items()})
                case ModifyEntry(_, replace):
                    changes = {name: [(ldap3.MODIFY_REPLACE, list(values))] for name, values in replace.items()}
                    self._connection.modify(dn, changes)
                case DeleteEntry():
                    self._connection.delete(dn)
                case RenameEntry(entry, rdn, parent):
                    superior = format_dn(parent) if parent != entry.dn[1:] else None
                    self._connection.modify_dn(dn, format_rdn(rdn), delete_old_dn=True, new_superior=superior)
        result = self._result()
        code = result.get("result")
        if code in BUSY or code in NOT_ALLOWED or code == NO_SUCH_OBJECT:
            check(self._settings, result, f"writing {dn}")
        if code != 0:
            raise EntryRefused(f"the server answered {words(result)}", exists=code == ENTRY_EXISTS)

    def start_stream(self, base: Dn, cookie: bytes) -> None:
        """Request all changes below `base` since `cookie`; afterwards only `receive` and `close` may be called."""
        with translated(self._settings):
            request = search_operation(
                format_dn(base),
                "(objectClass=*)",
                ldap3.SUBTREE,
                ldap3.DEREF_NEVER,
                ["*", "hasSubordinates"],
                0,
                0,
                False,
                False,
                False,
            )
            controls = [(syncrepl.REQUEST_CONTROL, True, syncrepl.request_value(cookie))]
            self._message_id = self._connection.strategy.send("searchRequest", request, controls)

    def receive(self, timeout_s: float) -> EntryChanged | syncrepl.SyncInfo | None:
        """The next message of the stream; None if none arrives within the time, or if it is irrelevant. Raises
        WatchNotSupported without support of the server, NoSuchEntry if the base was deleted."""
        with translated(self._settings):
            message = self._next_message(timeout_s)
            if message is None or message["messageID"] not in (0, self._message_id):
                return None
            response: dict[str, Any] = self._connection.strategy.decode_response_fast(message)
            try:
                return self._read_message(response)
            except syncrepl.SyncDecodeError as error:
                raise DirectoryUnavailable(f"LDAP server {self._settings.url}: {error}", RETRY_SECONDS) from error

    def _read_message(self, response: dict[str, Any]) -> EntryChanged | syncrepl.SyncInfo | None:
        kind = response["type"]
        if kind == "searchResEntry":
            entry = _entry(response)
            control = response.get("controls", {}).get(syncrepl.STATE_CONTROL)
            if entry is None or control is None:
                return None
            has_children = entry.attributes.get("hassubordinates") == (b"TRUE",)
            return EntryChanged(entry, *syncrepl.parse_state(bytes(control["value"])), has_children)
        if kind == "intermediateResponse" and response.get("responseName") == syncrepl.INFO_MESSAGE:
            return syncrepl.parse_info(bytes(response["responseValue"]))
        if kind == "searchResDone":
            if response["result"] == UNSUPPORTED_CRITICAL:
                raise WatchNotSupported(f"LDAP server {self._settings.url} has no syncrepl: {words(response)}")
            check(self._settings, response, "watching the topic tree")
            raise DirectoryUnavailable(f"LDAP server {self._settings.url} has ended the search of changes", 0.0)
        if kind == "extendedResp":
            raise DirectoryUnavailable(
                f"LDAP server {self._settings.url} closes the connection: {words(response)}", 0.0
            )
        return None

    def _next_message(self, timeout_s: float) -> dict[str, Any] | None:
        deadline = time.monotonic() + timeout_s
        while True:
            length = BaseStrategy.compute_ldap_message_size(self._buffer)
            if length > _MAX_MESSAGE_BYTES:
                raise DirectoryUnavailable(
                    f"LDAP server {self._settings.url} sent a message of {length} bytes: not LDAP", RETRY_SECONDS
                )
            if 0 < length <= len(self._buffer):
                data, self._buffer = self._buffer[:length], self._buffer[length:]
                decoded: dict[str, Any] = decode_message_fast(data)
                return decoded
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            self._connection.socket.settimeout(remaining)
            try:
                received = self._connection.socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                return None
            if not received:
                raise DirectoryUnavailable(f"LDAP server {self._settings.url} has closed the connection", 0.0)
            self._buffer += received

    def close(self) -> None:
        """Close the connection; never raises."""
        disconnect(self._connection)

    def _search(self, base: Dn, scope: Any, attributes: list[str], **page: Any) -> dict[str, Any]:
        """The result; the connection has the entries."""
        with translated(self._settings):
            self._connection.search(
                format_dn(base),
                "(objectClass=*)",
                search_scope=scope,
                dereference_aliases=ldap3.DEREF_NEVER,
                attributes=attributes,
                **page,
            )
        return self._result()

    def _result(self) -> dict[str, Any]:
        result: dict[str, Any] | None = self._connection.result
        return result or {}


def _entry(response: Mapping[str, Any]) -> Entry | None:
    if response["type"] != "searchResEntry":
        return None  # a referral to another server: not followed
    try:
        dn = parse_dn(bytes(response["raw_dn"]).decode())
    except (DnError, UnicodeDecodeError):
        return None
    attributes = {name.lower(): tuple(map(bytes, values)) for name, values in response["raw_attributes"].items()}
    return Entry.of(dn, attributes)
