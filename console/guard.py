"""Before any screen: host, origin, identity and rights.

On loopback the console is open to this machine and refuses foreign web pages: other host names (DNS rebinding) and
cross-site requests are refused, and each form has a token. From the network, visitors sign in as users of the gateway.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arborcast.core.errors import InfrastructureError, SecretError
from arborcast.core.security.keyring import Keys
from arborcast.core.security.web_pages import PageRule
from arborcast.ingest.access.policy import AccessPolicy
from arborcast.ingest.access.users import Users
from arborcast.topic_model.grants import Caller

# A working day; after that a forgotten browser has no access.
_SESSION_S = 12 * 3600

_HEADERS = {
    # Styles of single elements are allowed: charts put their labels in place by them, and they are ours.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr "
    "'unsafe-inline'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

# Maximum size of a form, and of an imported document.
_MOST_BYTES = 2 * 1024 * 1024
MOST_IMPORTED = 64 * 1024 * 1024

# Pages without sign-in: the sign-in itself and its parts.
_OPEN = ("/sign-in", "/session", "/static/", "/health/", "/receiver/")

# A request from a link on another site has no cookie (SameSite=Strict); the reload by this page has it. A new cookie
# here would end the session.
_AGAIN = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0"><title>Arborcast</title>'


@dataclass(frozen=True)
class Principal:
    """The user of a page, or an anonymous one. `name` is empty on loopback without authentication; `token` is in each
    of its forms."""

    session: str
    token: str
    name: str = ""
    may_see: bool = True
    may_edit: bool = True


class Callers:
    """The gateway's users and their rights, in their current state."""

    def __init__(self, users: Users, policy: Callable[[], AccessPolicy]) -> None:
        self.users = users
        self._policy = policy

    async def find(self, name: str) -> Caller | None:
        """None for a user that does not exist (any more)."""
        identity = await self.users.find(name)
        return None if identity is None else self._policy().caller(identity)


class Sessions:
    """Signed cookies: nothing is kept of them here, and a restart ends none."""

    def __init__(self, keys: Keys, name: str, *, secure: bool, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._name = name
        self._secure = secure
        self._clock = clock

    def begin(self, user: str = "", session: str = "") -> tuple[str, str]:
        """A new session, or this one for longer: its id, and the header that gives it to the browser."""
        session = session or secrets.token_urlsafe(18)
        document = json.dumps({"session": session, "user": user, "until": int(self._clock()) + _SESSION_S})
        value = quote(document, safe="") + "~" + self._keys.mac(document.encode(), "console session")
        secure = "; Secure" if self._secure else ""
        # Without sign-in, a reopened browser finds its collected changes again.
        lasts = "" if user else f"; Max-Age={_SESSION_S}"
        return session, f"{self._name}={value}; Path=/; HttpOnly; SameSite=Strict{lasts}{secure}"

    def end(self) -> str:
        """The header that removes the cookie."""
        return f"{self._name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"

    def read(self, header: str) -> tuple[str, str, float] | None:
        """(session, user, seconds left) of a valid cookie; None for an expired or foreign one."""
        # Not `SimpleCookie`, which drops all cookies at one that it cannot read: other servers on localhost set those.
        value, _, mac = cookie_parser(header).get(self._name, "").rpartition("~")
        document = unquote(value)
        if not value or not self._is_valid_mac(mac, document, "console session"):
            return None
        known = json.loads(document)
        left_s = known["until"] - self._clock()
        return (known["session"], known["user"], left_s) if left_s > 0 else None

    def token(self, session: str) -> str:
        """The token in each form of this session: other sites can neither read nor forge it."""
        return self._keys.mac(session.encode(), "console form")

    def fits(self, session: str, token: str) -> bool:
        """Whether this is the token of the session's forms."""
        return self._is_valid_mac(token, session, "console form")

    def _is_valid_mac(self, mac: str, text: str, context: str) -> bool:
        try:
            return self._keys.is_valid_mac(mac, text.encode(), context)
        except SecretError:
            return False  # of a key that was taken out


class PageGuard:
    """Checks before the application. `callers` is None on loopback without authentication."""

    def __init__(self, app: ASGIApp, sessions: Sessions, callers: Callers | None, pages: PageRule) -> None:
        self._app = app
        self._pages = pages
        self._sessions = sessions
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cookie: list[str] = []
        send = _with_headers(send, cookie)
        refusal = self._pages.refusal(scope["method"], headers)
        try:
            answer = PlainTextResponse(f"{refusal}\n", 403) if refusal else await self._enter(scope, headers, cookie)
        except InfrastructureError as error:
            answer = PlainTextResponse(f"{error}\n", 503)  # users cannot be looked up
        if answer is not None:
            await answer(scope, receive, send)
            return
        most = MOST_IMPORTED if scope["path"] == "/topics/import" else _MOST_BYTES
        await self._app(scope, _bounded(receive, most), send)

    async def _enter(self, scope: Scope, headers: Headers, cookie: list[str]) -> Response | None:
        """Put the principal into the scope; returns an answer if it is not admitted."""
        known = self._sessions.read(headers.get("cookie", ""))
        if known is None and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return HTMLResponse(_AGAIN)
        if known is None:
            session, given = self._sessions.begin()
            cookie.append(given)
            known = session, "", _SESSION_S
        session, name, left_s = known
        if self._callers is None and left_s < _SESSION_S / 2:
            # Collected changes belong to the session, without authentication.
            cookie.append(self._sessions.begin(session=session)[1])
        token = self._sessions.token(session)
        principal = Principal(session, token)
        if self._callers is not None:
            caller = await self._callers.find(name) if name else None
            if caller is None:
                principal = Principal(session, token, may_see=False, may_edit=False)
            else:
                everything = caller.manage.everything
                principal = Principal(session, token, name, everything or caller.subscribe.everything, everything)
        scope.setdefault("state", {})["principal"] = principal
        if principal.may_see or scope["path"].startswith(_OPEN):
            return None
        if principal.name:
            if scope["path"] in ("/sign-out", "/theme"):
                return None
            return PlainTextResponse(
                f"{principal.name} may not see this console: a rule of access.policy_file has to allow "
                'do = ["subscribe"] for topics = ["//."]. Sign in as another user at /sign-in.\n',
                403,
            )
        if headers.get("sec-fetch-mode", "navigate") == "navigate":
            query = "?" + scope["query_string"].decode("latin-1") if scope["query_string"] else ""
            onward = f"?next={quote(scope['path'] + query, safe='')}" if scope["method"] == "GET" else ""
            return RedirectResponse(f"/sign-in{onward}", 303)
        return PlainTextResponse("You are signed out.\n", 401)


def principal_of(scope: Scope) -> Principal:
    principal: Principal = scope["state"]["principal"]
    return principal


def _with_headers(send: Send, cookie: list[str]) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            more = dict(_HEADERS)
            if b"cache-control" not in given:
                more["cache-control"] = "no-store"
            # A cookie of sign-in or sign-out replaces the others.
            cookies = [] if b"set-cookie" in given else [("set-cookie", each) for each in cookie]
            message["headers"] = [
                *message["headers"],
                *((name.encode(), value.encode("latin-1")) for name, value in (*more.items(), *cookies)),
            ]
        await send(message)

    return sending


def _bounded(receive: Receive, most: int) -> Callable[[], Awaitable[Message]]:
    received = 0

    async def receiving() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"that is more than {most // 1024:,} KiB")
        return message

    return receiving
