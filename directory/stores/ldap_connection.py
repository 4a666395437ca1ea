"""Connecting to an LDAP server: TLS, bind, and the translation of ldap3's exceptions and of result codes.

Only this module and `ldap_client` use ldap3, which has no types: the connections between the two are Any, the interface
of `ldap_client` is typed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import ldap3
from ldap3.core.exceptions import LDAPExceptionError
from ldap3.protocol.sasl.sasl import validate_simple_password

from arborcast.directory.errors import BindRefused, DirectoryError, DirectoryRefused, DirectoryUnavailable
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.syncrepl import REFRESH_REQUIRED

# A server on the same network answers in milliseconds.
_CONNECT_SECONDS = 5
# A page of entries from a busy server with a cold cache may take seconds. ldap3 requires an integer.
_ANSWER_SECONDS = 30
# The stream of changes may be idle for hours. These options detect a lost server (power, a firewall) within a minute.
_KEEPALIVE_IDLE_SECONDS, _KEEPALIVE_INTERVAL_SECONDS, _KEEPALIVE_PROBES = 20, 10, 3

RETRY_SECONDS = 2.0

NO_SUCH_OBJECT, ENTRY_EXISTS, UNSUPPORTED_CRITICAL = 32, 68, 12
BUSY = frozenset({51, 52})
NOT_ALLOWED = frozenset({8, 13, 48, 49, 50})
"""Result codes that depend on the bound identity, not on the entry."""
_LIMITS = frozenset({3, 4, 11})


class NoSuchEntry(DirectoryError):
    """The entry does not exist."""


def connect(settings: DirectorySettings) -> Any:
    """A connection with the TLS and the bind of the settings. Raises DirectoryUnavailable, DirectoryRefused."""
    url = urlsplit(settings.url)
    if settings.bind == "simple" and not settings.password:
        # In LDAP this is an anonymous bind, which succeeds (RFC 4513, 5.1.2).
        raise DirectoryRefused(f"directory.password is empty; {settings.bind_dn} cannot bind without a password")
    with translated(settings):
        server = ldap3.Server(
            settings.url,
            use_ssl=url.scheme == "ldaps",
            tls=_make_tls(settings, url.hostname or ""),
            get_info=ldap3.NONE,
            connect_timeout=_CONNECT_SECONDS,
        )
        connection = ldap3.Connection(
            server,
            **_identity(settings),
            client_strategy=ldap3.SYNC,
            check_names=False,
            auto_referrals=False,
            auto_range=False,
            receive_timeout=_ANSWER_SECONDS,
        )
        try:
            connection.open(read_server_info=False)
            _keep_alive(connection.socket)
            if settings.start_tls:
                connection.start_tls(read_server_info=False)
            if not connection.bind(read_server_info=False):
                _refused_bind(settings, connection.result or {})
        except BaseException:
            # Not unbind: an incomplete connection may be unable to send, and ldap3 would leak its socket.
            if connection.socket is not None:
                connection.socket.close()
            raise
        return connection


def disconnect(connection: Any) -> None:
    """Close a connection; never raises. Without an unbind: it fails where the server has closed the connection, and
    would wait for a stream of changes."""
    connection.strategy.close()


def can_bind_with(password: str) -> bool:
    """Whether the password is valid in a simple bind: SASLprep (RFC 4013) excludes some texts, for which ldap3 would
    raise another error."""
    try:
        validate_simple_password(password)
    except (LDAPExceptionError, ValueError):
        return False
    return True


def _identity(settings: DirectorySettings) -> dict[str, Any]:
    if settings.bind == "simple":
        return {"authentication": ldap3.SIMPLE, "user": settings.bind_dn, "password": settings.password}
    if settings.bind == "external":
        return {"authentication": ldap3.SASL, "sasl_mechanism": ldap3.EXTERNAL, "sasl_credentials": ""}
    return {"authentication": ldap3.ANONYMOUS}


def _refused_bind(settings: DirectorySettings, result: Mapping[str, Any]) -> None:
    if result.get("result") in BUSY:
        raise DirectoryUnavailable(f"LDAP server {settings.url} is busy: {words(result)}", RETRY_SECONDS)
    raise BindRefused(
        f"LDAP server {settings.url} refuses the bind as {_bind_name(settings)}: {words(result)}; check "
        "directory.bind, directory.bind_dn and directory.password",
    )


def _make_tls(settings: DirectorySettings, host: str) -> Any:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.certificate_file:
            context.load_cert_chain(settings.certificate_file, settings.key_file or None)
    except OSError as error:
        raise DirectoryRefused(
            f"directory.ca_file, directory.certificate_file or directory.key_file cannot be used: {error}"
        ) from error

    class VerifyingTls(ldap3.Tls):  # type: ignore[misc]  # ldap3 has no types
        """Host names are checked by the ssl module: ldap3's own check does not support IP addresses."""

        def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
            connection.socket = context.wrap_socket(connection.socket, server_hostname=host)

    return VerifyingTls(validate=ssl.CERT_REQUIRED)


def _keep_alive(connected: socket.socket) -> None:
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Some platforms lack these options and use their defaults (two hours).
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


@contextmanager
def translated(settings: DirectorySettings) -> Iterator[None]:
    """Turn exceptions of ldap3 and of sockets into DirectoryError."""
    try:
        yield
    except DirectoryError:
        raise
    except (LDAPExceptionError, OSError) as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        if "certificate" in text.lower() or isinstance(error, ssl.SSLError):
            raise DirectoryRefused(
                f"LDAP server {settings.url}: no secure connection ({text}); check directory.ca_file, and that the "
                "certificate names the host of directory.url",
            ) from error
        raise DirectoryUnavailable(f"LDAP server {settings.url} cannot be reached ({text})", RETRY_SECONDS) from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # Raised by ldap3's decoder for bytes that are not LDAP.
        raise DirectoryUnavailable(
            f"LDAP server {settings.url} sent an unreadable answer ({type(error).__name__}: {error})", RETRY_SECONDS
        ) from error


def check(settings: DirectorySettings, result: Mapping[str, Any], doing: str) -> None:
    """Return for success, else raise the exception of the result code. `doing` begins the message."""
    code = result.get("result")
    url, who = settings.url, _bind_name(settings)
    if code == 0:
        return
    if code == NO_SUCH_OBJECT:
        raise NoSuchEntry(f"{doing}: {url} has no such entry")
    if code == REFRESH_REQUIRED or code in BUSY:
        raise DirectoryUnavailable(f"{doing}: {url} answered {words(result)}", RETRY_SECONDS)
    if code in _LIMITS:
        raise DirectoryRefused(
            f"{doing}: {url} stops at its size or time limit for {who} ({words(result)}); raise it with "
            "`limits dn.exact=... size=unlimited` (slapd.conf) or olcLimits (cn=config)",
        )
    if code in NOT_ALLOWED:
        raise DirectoryRefused(f"{doing}: {url} does not allow it to {who} ({words(result)}); check its access rules")
    raise DirectoryRefused(f"{doing}: {url} answered {words(result)}")


def _bind_name(settings: DirectorySettings) -> str:
    return {"simple": settings.bind_dn, "external": "SASL EXTERNAL"}.get(settings.bind, "anonymous")


def words(result: Mapping[str, Any]) -> str:
    """The server's result as text, for a message."""
    message = str(result.get("message") or "").strip()
    return f"{result.get('description')}{': ' + message if message else ''}"
