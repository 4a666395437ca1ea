"""Admission of each request: its client, and that client's rights."""

from __future__ import annotations

import binascii
import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lxml import etree

from arborcast.core.recent import BoundedDict
from arborcast.core.security.ip_addresses import is_loopback
from arborcast.ingest.access.bearer import Bearer, WrongToken
from arborcast.ingest.access.grants import ClientRequest
from arborcast.ingest.access.policy import DEFAULT, AccessPolicy
from arborcast.ingest.access.proxies import NONE, Proxies
from arborcast.ingest.access.rates import Rates, client_key
from arborcast.ingest.access.settings import METHODS, AccessSettings, LimitSettings
from arborcast.ingest.access.username_token import NonceMemory, UsernameToken, expected_digest, find_token
from arborcast.ingest.access.users import Users
from arborcast.ingest.access.users_file import may_be_name
from arborcast.ingest.http.tls import certificate_names
from arborcast.topic_model.grants import Caller, Identity
from arborcast.wire.errors import NotAuthenticated, TokenRefused

CERTIFICATE: Final = "arborcast.certificate"
"""Where a request's scope has the certificate of its connection, checked, as the ssl module shows it."""

_OF_PROXIES = frozenset({b"x-forwarded-for", b"forwarded", b"x-real-ip", b"via"})

_BASIC_CHALLENGE = 'Basic realm="arborcast", charset="UTF-8"'
_BEARER_CHALLENGE = 'Bearer realm="arborcast"'
_WRONG = "the credentials are wrong"


class Authenticator:
    """Authenticates clients by the configured methods.

    Credentials in HTTP come first and are decisive: a request with wrong ones is refused, even with a valid
    certificate. Authorization precedes the certificate of the connection, which precedes the UsernameToken in the
    message.
    """

    def __init__(
        self,
        settings: AccessSettings,
        users: Users,
        clock: Callable[[], float] = time.time,
        bearer: Bearer | None = None,
        nonces: NonceMemory | None = None,
    ) -> None:
        self._settings = settings
        self._methods = frozenset(settings.chosen())
        self._users = users
        self._nonces = nonces
        self._clock = clock
        self._bearer = bearer
        challenges = {"basic": _BASIC_CHALLENGE, "bearer": _BEARER_CHALLENGE}
        self._challenges = tuple(text for method, text in challenges.items() if method in self._methods)

    @property
    def reads_messages(self) -> bool:
        """Whether credentials may be in the message."""
        return "token" in self._methods

    async def of_head(self, scope: Mapping[str, Any], address: str) -> Identity | None:
        """The identity by HTTP credentials, None without any. Raises NotAuthenticated."""
        header = _header(scope["headers"], b"authorization")
        if header:
            scheme, _, value = header.strip().partition(b" ")
            if scheme.lower() == b"basic" and "basic" in self._methods:
                value = value.strip()
                return self._users.recall(value) or await self._basic(value, address)
            if scheme.lower() == b"bearer" and self._bearer is not None:
                return self._token(self._bearer, value.strip(), address)
            raise self.missing()
        if "certificate" in self._methods and (certificate := scope.get(CERTIFICATE)):
            return await self._certificate(certificate)
        return None

    async def of_message(self, root: etree._Element, address: str) -> Identity:
        """The identity by the message's UsernameToken. Raises NotAuthenticated."""
        token = find_token(root) if self.reads_messages else None
        if token is None:
            raise self.missing()
        if token.digest:
            return await self._digest(token, address)
        if token.created:
            token.check_time(self._settings.token_window_s, self._clock())
        identity = await self._users.check(token.name, token.password, address)
        if identity is None:
            raise TokenRefused(_WRONG)
        return identity

    async def named(self, name: str) -> Identity:
        """The user of this name, authenticated by the settings; without an entry in the list of users it has no
        groups."""
        return await self._users.find(name) or Identity(name)

    def missing(self) -> NotAuthenticated:
        """The answer to a request without credentials."""
        words = {
            "basic": "HTTP Basic",
            "bearer": "a bearer token",
            "token": "a WS-Security UsernameToken",
            "certificate": "a TLS certificate",
        }
        offered = " or ".join(words[method] for method in METHODS if method in self._methods)
        return NotAuthenticated(f"authentication is required: {offered}", self._challenges)

    async def _basic(self, value: bytes, address: str) -> Identity:
        try:
            text = binascii.a2b_base64(value, strict_mode=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise NotAuthenticated("the Authorization header cannot be read", self._challenges) from error
        name, _, password = text.partition(":")
        identity = await self._users.check(name, password, address, value)
        if identity is None:
            raise NotAuthenticated(_WRONG, self._challenges)
        return identity

    def _token(self, bearer: Bearer, value: bytes, address: str) -> Identity:
        try:
            return bearer.check(value.decode("ascii", "replace"))
        except WrongToken as error:
            # Only now: a signature cannot be guessed, and a good one gets in whatever strangers have sent from there.
            self._users.failed_logins.check(address)
            self._users.failed_logins.add(address)
            challenge = f'{_BEARER_CHALLENGE}, error="invalid_token", error_description="{error}"'
            others = tuple(each for each in self._challenges if each != _BEARER_CHALLENGE)
            raise NotAuthenticated(f"the bearer token is refused: {error}", (challenge, *others)) from error

    async def _certificate(self, certificate: Mapping[str, Any]) -> Identity:
        names = certificate_names(certificate, self._settings.certificate_name)
        if len(names) == 1:
            identity = await self._users.find(names[0])
            if identity is not None:
                return identity
            if self._settings.certificate_users == "any" and may_be_name(names[0]):
                return Identity(names[0])
        raise NotAuthenticated(
            "the certificate of this connection names no user here "
            f"(access.certificate_name is {self._settings.certificate_name})",
            self._challenges,
        )

    async def _digest(self, token: UsernameToken, address: str) -> Identity:
        token.check_time(self._settings.token_window_s, self._clock())
        self._users.failed_logins.check(address, token.name)
        password = self._users.clear_password(token.name)
        # Always compared, and without a lookup before, so that the time does not show which users exist.
        matches = hmac.compare_digest(expected_digest(token, password), token.digest) and bool(password)
        identity = await self._users.find(token.name) if matches else None
        if identity is None or self._nonces is None:  # without passwords in clear text there is no memory of nonces
            self._users.failed_logins.add(address, token.name)
            raise TokenRefused(_WRONG)
        self._nonces.use(token, self._clock())
        return identity


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    found: bytes | None = None
    for key, value in headers:
        if key == name:
            if found is not None:
                # Two of them are an attempt to be read differently by a proxy and the gateway.
                return b"?"
            found = value
    return found or b""


_NO_MESSAGE = etree.Element("none")

# Cached rights of identities.
_CALLERS = 10_000


class Gate:
    """Checks each request before its operation. There is no gate without limits and without authentication."""

    def __init__(
        self,
        rates: Rates | None = None,
        authenticator: Authenticator | None = None,
        policy: Callable[[], AccessPolicy] = lambda: DEFAULT,
        proxies: Proxies = NONE,
    ) -> None:
        self.rates = rates or Rates(LimitSettings())
        self._authenticator = authenticator
        self._policy = policy
        self._proxies = proxies
        self._applied_policy: AccessPolicy | None = None
        self._callers: BoundedDict[Identity, Caller] = BoundedDict(_CALLERS)

    async def enter(self, scope: Mapping[str, Any]) -> ClientRequest:
        """Admit a request by its head. Raises AccessRefused."""
        client_request = await self.authenticate(scope)
        self.rates.request(client_request.client)
        return client_request

    async def authenticate(self, scope: Mapping[str, Any]) -> ClientRequest:
        """The client of a request by its head, which is not counted for its rates: also of an open connection, again.
        Raises AccessRefused."""
        client_request = ClientRequest(client_key(self._proxies.client(scope)))
        authenticator = self._authenticator
        if authenticator is not None:
            client_request.identity = await authenticator.of_head(scope, client_request.address)
            if client_request.identity is None and not authenticator.reads_messages:
                raise authenticator.missing()
        return client_request

    async def enter_alone(self, scope: Mapping[str, Any]) -> tuple[ClientRequest, Caller | None]:
        """Admit a request without a message by its head. Raises AccessRefused."""
        client_request = await self.enter(scope)
        return client_request, await self.identify(client_request, _NO_MESSAGE)

    def unauthenticated(self, scope: Mapping[str, Any]) -> ClientRequest:
        """A request that proves its right itself counts for its address. Raises AccessRefused."""
        client_request = ClientRequest(client_key(self._proxies.client(scope)))
        self.rates.request(client_request.client)
        return client_request

    async def check_page(self, scope: Mapping[str, Any]) -> Caller | None:
        """The caller of a request for metrics or status; None for a local one, and without authentication. Raises
        AccessRefused."""
        host = self._proxies.client(scope)
        authenticator = self._authenticator
        local = is_loopback(host) or _is_this_machine(host, scope)
        if authenticator is None or (local and not self._is_of_unknown_client(scope)):
            return None
        identity = await authenticator.of_head(scope, client_key(host))
        if identity is None:
            raise authenticator.missing()
        return self._caller(identity)

    def _is_of_unknown_client(self, scope: Mapping[str, Any]) -> bool:
        """Whether a proxy has passed the request on, and the address is its own: it is not in the settings, or its
        header cannot be read, of which a client may write a part."""
        peer = scope.get("client")
        if peer is None or self._proxies.client(scope) != str(peer[0]):
            return False
        return any(name in _OF_PROXIES for name, _ in scope.get("headers", ()))

    def again(self, client_request: ClientRequest) -> Caller | None:
        """Count another request on a connection whose client is known; None without authentication. Raises
        AccessRefused."""
        self.rates.request(client_request.client)
        return None if client_request.identity is None else self._caller(client_request.identity)

    async def acting(self, name: str) -> ClientRequest | None:
        """A part of this process as the user of this name; None without authentication."""
        if self._authenticator is None:
            return None
        return ClientRequest("", await self._authenticator.named(name))

    async def identify(self, client_request: ClientRequest, root: etree._Element) -> Caller | None:
        """The identity of the request with its message; None without authentication. Raises AccessRefused."""
        authenticator = self._authenticator
        if authenticator is None:
            return None
        if client_request.identity is None:
            client_request.identity = await authenticator.of_message(root, client_request.address)
            # Until here the request was counted for its address. The user may be over its rate already.
            self.rates.request(client_request.client)
        return self._caller(client_request.identity)

    def _caller(self, identity: Identity) -> Caller:
        policy = self._policy()
        if policy is not self._applied_policy:
            self._applied_policy = policy
            self._callers.clear()
        caller = self._callers.get(identity)
        if caller is None:
            caller = self._callers[identity] = policy.caller(identity)
        return caller


def _is_this_machine(host: str, scope: Mapping[str, Any]) -> bool:
    """Whether the client has the very address that it has connected to, as our supervisor has where we do not listen
    on loopback. No other client can: answers to that address never leave this machine.
    """
    server = scope.get("server")
    return bool(host and server and host == server[0])
