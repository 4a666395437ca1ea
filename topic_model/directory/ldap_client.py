"""The one place that knows ldap3: connections, requests, and its exceptions and result codes turned into ours.

ldap3 ships no types, so what leaves this module is typed here. Connections use its synchronous strategy; the stream of
changes is read from the socket by our own thread (ldap3's asynchronous strategies raise in a thread of theirs, where
nobody can catch it, and notice a dead server late).
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import ldap3
from ldap3.core.exceptions import LDAPExceptionError
from ldap3.operation.search import search_operation
from ldap3.strategy.base import BaseStrategy
from ldap3.utils.asn1 import decode_message_fast

from topic_model.directory import syncrepl
from topic_model.directory.dn import Dn, Rdn, format_dn, format_rdn, parse_dn
from topic_model.directory.entries import Entry
from topic_model.directory.errors import DirectoryAway, DirectoryError, DirectoryRefused, DnError
from topic_model.settings import DirectorySettings

# A server on the same network answers in milliseconds; what takes longer than this is not going to happen.
_CONNECT_SECONDS = 5
# A page of 1,000 entries from a busy server with a cold cache may take seconds. ldap3 wants a whole number here.
_ANSWER_SECONDS = 30
_PAGE_SIZE = 500
_RETRY_SECONDS = 2.0
# A watch is silent for hours. These find a server that vanished without a word (power, a firewall) within a minute.
_KEEPALIVE_IDLE_SECONDS, _KEEPALIVE_INTERVAL_SECONDS, _KEEPALIVE_PROBES = 20, 10, 3
_RECEIVE_BYTES = 65_536
# An entry of ours has hundreds of bytes; whoever announces more than this does not speak LDAP.
_MAX_MESSAGE_BYTES = 16 << 20

_PAGED = "1.2.840.113556.1.4.319"

_NO_SUCH_OBJECT, _ENTRY_EXISTS = 32, 68
_UNSUPPORTED_CRITICAL = 12
_LIMITS = frozenset({3, 4, 11})
_BUSY = frozenset({51, 52})
_CREDENTIALS = frozenset({7, 8, 13, 48, 49, 53})
_NO_RIGHTS = 50


class NoSuchEntry(DirectoryError):
    """The entry is not there."""


class WatchNotSupported(DirectoryError):
    """The server has no syncrepl for this base; it must be polled."""


class EntryRefused(DirectoryError):
    """The server refuses one change of one entry, for reasons of that entry. `exists`: it is there already."""

    def __init__(self, message: str, *, exists: bool = False) -> None:
        super().__init__(message)
        self.exists = exists


@dataclass(frozen=True, slots=True)
class Changed:
    """A message of the stream: an entry and what happened to it. `has_children` as the server says, if it does."""

    entry: Entry
    state: syncrepl.EntryState
    has_children: bool


class LdapSession:
    """One bound connection, used by one thread. The constructor connects, secures and binds.

    Everything raises DirectoryAway when the connection is of no more use, DirectoryRefused when the server says no.
    """

    def __init__(self, settings: DirectorySettings) -> None:
        self._settings = settings
        self._buffer = b""
        self._message_id = 0
        url = urlsplit(settings.url)
        if url.scheme not in ("ldap", "ldaps", "ldapi"):
            raise DirectoryRefused(f"directory.url {settings.url!r} must begin with ldap://, ldaps:// or ldapi://")
        if settings.bind == "simple" and not settings.password:
            # LDAP would take this for an anonymous bind that succeeds (RFC 4513, 5.1.2).
            raise DirectoryRefused(f"directory.password is empty; {settings.bind_dn} cannot bind so", settings.bind_dn)
        with self._translated():
            server = ldap3.Server(
                settings.url,
                use_ssl=url.scheme == "ldaps",
                tls=_make_tls(settings, url.hostname or ""),
                get_info=ldap3.NONE,
                connect_timeout=_CONNECT_SECONDS,
            )
            self._connection: Any = ldap3.Connection(
                server,
                **self._identity(),
                client_strategy=ldap3.SYNC,
                check_names=False,
                auto_referrals=False,
                auto_range=False,
                receive_timeout=_ANSWER_SECONDS,
            )
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    def _identity(self) -> dict[str, Any]:
        settings = self._settings
        if settings.bind == "simple":
            return {"authentication": ldap3.SIMPLE, "user": settings.bind_dn, "password": settings.password}
        if settings.bind == "external":
            return {"authentication": ldap3.SASL, "sasl_mechanism": ldap3.EXTERNAL, "sasl_credentials": ""}
        return {"authentication": ldap3.ANONYMOUS}

    def _open(self) -> None:
        self._connection.open(read_server_info=False)
        _keep_alive(self._connection.socket)
        if self._settings.start_tls:
            self._connection.start_tls(read_server_info=False)
        if not self._connection.bind(read_server_info=False):
            result = self._result()
            code = result.get("result")
            if code in _BUSY:
                raise DirectoryAway(f"LDAP server {self._settings.url} is busy: {_words(result)}", _RETRY_SECONDS)
            who = self._who()
            raise DirectoryRefused(
                f"LDAP server {self._settings.url} refuses the bind as {who}: {_words(result)}; check directory.bind, "
                "directory.bind_dn and directory.password",
                self._settings.bind_dn,
            )

    def read_tree(self, base: Dn) -> Iterator[Entry]:
        """The base and every entry below it, page by page. Raises NoSuchEntry when there is no base."""
        cookie: bytes | None = None
        while True:
            with self._translated():
                self._connection.search(
                    format_dn(base),
                    "(objectClass=*)",
                    search_scope=ldap3.SUBTREE,
                    dereference_aliases=ldap3.DEREF_NEVER,
                    attributes=["*", "entryUUID"],
                    paged_size=_PAGE_SIZE,
                    paged_cookie=cookie,
                )
            result = self._result()
            self._check(result, f"reading {format_dn(base)}")
            for response in self._connection.response:
                entry = _entry(response)
                if entry is not None:
                    yield entry
            cookie = result.get("controls", {}).get(_PAGED, {}).get("value", {}).get("cookie")
            if not cookie:
                return

    def context_csn(self, base: Dn) -> tuple[bytes, ...]:
        """The change sequence numbers of the database that holds `base`; () where the server keeps none.

        They stand at the database's suffix, which is the base or above it.
        """
        for start in range(len(base)):
            with self._translated():
                self._connection.search(
                    format_dn(base[start:]),
                    "(objectClass=*)",
                    search_scope=ldap3.BASE,
                    dereference_aliases=ldap3.DEREF_NEVER,
                    attributes=["contextCSN"],
                )
            if self._result().get("result") != 0:
                continue
            for response in self._connection.response:
                entry = _entry(response)
                if entry is not None and entry.attributes.get("contextcsn"):
                    return entry.attributes["contextcsn"]
        return ()

    def add(self, entry: Entry) -> None:
        """Add an entry. Raises EntryRefused."""
        attributes = {name: list(values) for name, values in entry.attributes.items()}
        with self._translated():
            self._connection.add(format_dn(entry.dn), None, attributes)
        self._check_change(entry.dn)

    def modify(self, dn: Dn, replace: Mapping[str, tuple[bytes, ...]]) -> None:
        """Replace attributes; no values means removal. Raises EntryRefused."""
        changes = {name: [(ldap3.MODIFY_REPLACE, list(values))] for name, values in replace.items()}
        with self._translated():
            self._connection.modify(format_dn(dn), changes)
        self._check_change(dn)

    def delete(self, dn: Dn) -> None:
        """Delete an entry without children. Raises EntryRefused."""
        with self._translated():
            self._connection.delete(format_dn(dn))
        self._check_change(dn)

    def rename(self, dn: Dn, rdn: Rdn, parent: Dn) -> None:
        """Give an entry another RDN and parent; the old RDN's values go. Raises EntryRefused."""
        superior = format_dn(parent) if parent != dn[1:] else None
        with self._translated():
            self._connection.modify_dn(format_dn(dn), format_rdn(rdn), delete_old_dn=True, new_superior=superior)
        self._check_change(dn)

    def start_stream(self, base: Dn, cookie: bytes) -> None:
        """Ask for all changes below `base` from where `cookie` stands; from now on only `receive` and `close`."""
        with self._translated():
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

    def receive(self, timeout_s: float) -> Changed | syncrepl.SyncInfo | None:
        """The next message of the stream; None when there is none within the time, or it says nothing of use.

        Raises WatchNotSupported when the server does not do this, NoSuchEntry when the base is gone.
        """
        with self._translated():
            message = self._next_message(timeout_s)
            if message is None or message["messageID"] not in (0, self._message_id):
                return None
            response: dict[str, Any] = self._connection.strategy.decode_response_fast(message)
            try:
                return self._read_message(response)
            except syncrepl.SyncDecodeError as error:
                raise DirectoryAway(f"LDAP server {self._settings.url}: {error}", _RETRY_SECONDS) from error

    def _read_message(self, response: dict[str, Any]) -> Changed | syncrepl.SyncInfo | None:
        kind = response["type"]
        if kind == "searchResEntry":
            entry = _entry(response)
            control = response.get("controls", {}).get(syncrepl.STATE_CONTROL)
            if entry is None or control is None:
                return None
            return Changed(entry, syncrepl.parse_state(bytes(control["value"])), _has_children(entry))
        if kind == "intermediateResponse" and response.get("responseName") == syncrepl.INFO_MESSAGE:
            return syncrepl.parse_info(bytes(response["responseValue"]))
        if kind == "searchResDone":
            if response["result"] == _UNSUPPORTED_CRITICAL:
                raise WatchNotSupported(f"LDAP server {self._settings.url} has no syncrepl: {_words(response)}")
            self._check(response, "watching the topic tree")
            raise DirectoryAway(f"LDAP server {self._settings.url} has ended the watch", 0.0)
        if kind == "extendedResp":
            raise DirectoryAway(f"LDAP server {self._settings.url} says goodbye: {_words(response)}", 0.0)
        return None

    def _next_message(self, timeout_s: float) -> dict[str, Any] | None:
        deadline = time.monotonic() + timeout_s
        while True:
            length = BaseStrategy.compute_ldap_message_size(self._buffer)
            if length > _MAX_MESSAGE_BYTES:
                raise DirectoryAway(f"{self._settings.url} sends {length} bytes at once: not LDAP", _RETRY_SECONDS)
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
                raise DirectoryAway(f"LDAP server {self._settings.url} has closed the connection", 0.0)
            self._buffer += received

    def close(self) -> None:
        """Let go of the connection; never raises."""
        with suppress(LDAPExceptionError, OSError, AttributeError):
            if self._message_id:
                # An unbind would wait behind the stream.
                self._connection.strategy.close()
            else:
                self._connection.unbind()

    def _who(self) -> str:
        return {"simple": self._settings.bind_dn, "external": "SASL EXTERNAL"}.get(self._settings.bind, "anonymous")

    def _result(self) -> dict[str, Any]:
        result: dict[str, Any] | None = self._connection.result
        return result or {}

    def _check(self, result: Mapping[str, Any], doing: str) -> None:
        code = result.get("result")
        url = self._settings.url
        if code == 0:
            return
        if code == _NO_SUCH_OBJECT:
            raise NoSuchEntry(f"{doing}: {url} has no entry {self._settings.base_dn}")
        if code == syncrepl.REFRESH_REQUIRED or code in _BUSY:
            raise DirectoryAway(f"{doing}: {url} says {_words(result)}", _RETRY_SECONDS)
        if code in _LIMITS:
            raise DirectoryRefused(
                f"{doing}: {url} stops at its size or time limit for {self._who()} ({_words(result)}); give it "
                "`limits dn.exact=... size=unlimited` (slapd.conf) or olcLimits (cn=config)",
                self._settings.bind_dn,
            )
        if code in _CREDENTIALS or code == _NO_RIGHTS:
            raise DirectoryRefused(
                f"{doing}: {url} does not allow it to {self._who()} ({_words(result)}); check its access rules",
                self._settings.bind_dn,
            )
        raise DirectoryRefused(f"{doing}: {url} says {_words(result)}", self._settings.bind_dn)

    def _check_change(self, dn: Dn) -> None:
        result = self._result()
        code = result.get("result")
        if code == 0:
            return
        if code in _BUSY or code in (_NO_SUCH_OBJECT, _NO_RIGHTS):
            self._check(result, f"writing {format_dn(dn)}")
        raise EntryRefused(f"the server says {_words(result)}", exists=code == _ENTRY_EXISTS)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Exceptions of ldap3 and of sockets become ours."""
        try:
            yield
        except DirectoryError:
            raise
        except (LDAPExceptionError, OSError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            if "certificate" in text.lower() or isinstance(error, ssl.SSLError):
                raise DirectoryRefused(
                    f"LDAP server {self._settings.url}: no secure connection ({text[:300]}); check directory.ca_file, "
                    "and that the certificate names the host of directory.url",
                    self._settings.bind_dn,
                ) from error
            raise DirectoryAway(
                f"LDAP server {self._settings.url} cannot be reached ({text[:300]})", _RETRY_SECONDS
            ) from error
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            # What ldap3's decoder does with bytes that are not LDAP.
            raise DirectoryAway(
                f"LDAP server {self._settings.url} sent something unreadable ({type(error).__name__}: {error})",
                _RETRY_SECONDS,
            ) from error


def _make_tls(settings: DirectorySettings, host: str) -> Any:
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    if settings.certificate_file:
        context.load_cert_chain(settings.certificate_file, settings.key_file or None)

    class VerifyingTls(ldap3.Tls):  # type: ignore[misc]  # ldap3 has no types
        """Host names checked by the ssl module: ldap3's own check does not know IP addresses."""

        def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
            connection.socket = context.wrap_socket(connection.socket, server_hostname=host)

    return VerifyingTls(validate=ssl.CERT_REQUIRED)


def _keep_alive(connected: socket.socket) -> None:
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every platform lets these be set; its own defaults (two hours) hold there.
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _entry(response: Mapping[str, Any]) -> Entry | None:
    if response["type"] != "searchResEntry":
        return None  # a referral to another server: not followed
    try:
        dn = parse_dn(bytes(response["raw_dn"]).decode())
    except (DnError, UnicodeDecodeError):
        return None
    attributes = {name.lower(): tuple(map(bytes, values)) for name, values in response["raw_attributes"].items()}
    return Entry.of(dn, attributes)


def _has_children(entry: Entry) -> bool:
    return entry.attributes.get("hassubordinates") == (b"TRUE",)


def _words(result: Mapping[str, Any]) -> str:
    message = str(result.get("message") or "").strip()
    return f"{result.get('description')}{': ' + message if message else ''}"
