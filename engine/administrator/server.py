"""The administrator over HTTP. Requests signed with the federation's secret are accepted; others get 401."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec

from arborcast.core.errors import ConfigError, InfrastructureError, PeerError, SignatureError
from arborcast.core.files import write_atomically
from arborcast.core.reasons import reason_of
from arborcast.core.recent import Recent
from arborcast.core.security.signatures import ID_HEADER
from arborcast.core.security.web_pages import PageRule, page_headers
from arborcast.core.wall_clock import time_ms
from arborcast.engine.administrator.members import MemberRegister, NameTaken, StoredMembers, UnknownMember
from arborcast.ingest.federation.calls import LONG_POLL_S, MEMBERS, TOPOLOGY
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.topology import Beat, MemberRegistration
from arborcast.ingest.http.asgi import Receive, Scope, Send, read_body, send_answer, send_text
from arborcast.wire.errors import MalformedMessage, TooLarge

logger = logging.getLogger("arborcast.administrator")

_LIMIT = 16 * 1024

_JSON = b"application/json"

_CHECK_S = 0.5

# A check this long after the last one is late because this process did not run.
_LATE_S = 2 * _CHECK_S

# Maximum age of the stored heartbeats after a crash.
_SAVE_S = 10.0

# A signature is valid for five minutes before and after its time. Bytes, twice: some hundred thousand requests.
_ACCEPTED_S = 600.0
_ACCEPTED = 32 * 1024 * 1024

_T = TypeVar("_T")


class AdministratorApp:
    """The ASGI application. Raises ConfigError for an unreadable state."""

    def __init__(
        self, keys: SharedKeys, state: Path, pages: PageRule, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._state = state
        self._pages = pages
        self._clock = clock
        self._members = MemberRegister(_load(state), clock(), time_ms())
        self._changed = asyncio.Event()
        self._save_at = clock() + _SAVE_S
        self._problem = ""  # of the last save
        self._accepted: Recent[str, bool] = Recent(_ACCEPTED, _ACCEPTED_S, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if refusal := self._pages.refusal(method, page_headers(scope["headers"])):
            await send_text(send, 403, refusal, [(b"connection", b"close")])
            return
        query = scope.get("query_string", b"").decode("latin-1")
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        if path == "/health/live":
            await send_text(send, 200, "alive")
            return
        level = logging.DEBUG  # strangers do not fill the log
        try:
            body = await read_body(scope["headers"], receive, _LIMIT)
            if body is None:
                return
            self._keys.check_request(method, f"{path}?{query}" if query else path, headers, body)
            if method == "POST":
                self._check_once(headers[ID_HEADER])
            level = logging.WARNING
            answer = await self._answer(method, path, query, body)
        except PeerError as error:
            logger.log(level, "%s %s was refused: %s", method, path[:100], error)
            await send_text(send, _status(error), str(error))
            return
        except InfrastructureError as error:
            await send_text(send, 503, str(error))
            return
        signed = [(key.encode(), value.encode()) for key, value in self._keys.answered(headers, answer).items()]
        await send_answer(send, 200, answer, _JSON, signed)

    def _check_once(self, request: str) -> None:
        """Raises SignatureError for a repeated id of a request: it may be a recorded one."""
        if self._accepted.get(request) is not None:
            raise SignatureError("this request was taken before: sign another one")
        self._accepted.put(request, True, len(request))

    async def check_forever(self) -> None:
        """Detect silent members, until cancelled."""
        now = self._clock()
        while True:
            before, now = now, self._clock()
            if self._members.check(now, max(0.0, now - before - _LATE_S)):
                self._report()
                for each in self._members.topology(now).members:
                    logger.info("%s at %s is %s", each.engine, each.url, each.state)
            elif now >= self._save_at:
                self._report()
            await asyncio.sleep(_CHECK_S)

    async def _answer(self, method: str, path: str, query: str, body: bytes) -> bytes:
        if method == "GET" and path == TOPOLOGY:
            return await self._topology(query)
        now, before = self._clock(), self._members.version
        if method == "POST" and path == MEMBERS:
            # Stored before it has an effect: after a crash no other member gets its number.
            members = copy.deepcopy(self._members)
            answer = msgspec.json.encode(members.register(_decoded(body, MemberRegistration), now))
            if members.version != before:
                self._save(members)
            self._members = members
        elif method == "POST" and path.startswith(f"{MEMBERS}/") and path.endswith("/heartbeat"):
            name = path.removeprefix(f"{MEMBERS}/").removesuffix("/heartbeat")
            self._members.beat(name, _decoded(body, Beat).number, now)
            answer = b"{}"
        else:
            raise MalformedMessage(f"there is no {method} {path[:100]}")
        if self._members.version != before:
            self._report()
        return answer

    async def _topology(self, query: str) -> bytes:
        after = parse_qs(query).get("after", ["-1"])[0]
        end = self._clock() + LONG_POLL_S
        # Any other version, not only a later one: the state may be restored from a backup.
        while after == str(self._members.version) and self._clock() < end:
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.01, end - self._clock()))
            except TimeoutError:
                break
        return msgspec.json.encode(self._members.topology(self._clock()))

    def _report(self) -> None:
        """Store the members, and end the waits for a change. States and heartbeats are also reported without the file:
        a full disk must not delay a takeover."""
        with suppress(InfrastructureError):
            self._save(self._members)
        self._changed.set()
        self._changed = asyncio.Event()

    def _save(self, members: MemberRegister) -> None:
        """Raises InfrastructureError."""
        now = self._clock()
        self._save_at = now + _SAVE_S
        try:
            write_atomically(self._state, msgspec.json.encode(members.stored(now, time_ms())).decode())
        except OSError as error:
            problem = f"the members cannot be stored in {self._state}: {reason_of(error)}; no engine can register"
            if problem != self._problem:
                logger.error("%s", problem)
            self._problem = problem
            raise InfrastructureError(problem) from error
        if self._problem:
            logger.info("the members are stored in %s again", self._state)
        self._problem = ""


def _load(state: Path) -> StoredMembers:
    try:
        return msgspec.json.decode(state.read_bytes(), type=StoredMembers)
    except FileNotFoundError:
        return StoredMembers()
    except OSError as error:
        raise ConfigError(f"the members in {state} cannot be read: {reason_of(error)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the members in {state} cannot be read: {error}; without that file all engines register again"
        ) from error


def _decoded(body: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from error


def _status(error: PeerError) -> int:
    if isinstance(error, SignatureError):
        return 401
    if isinstance(error, NameTaken):
        return 409
    if isinstance(error, UnknownMember):
        return 404
    return 413 if isinstance(error, TooLarge) else 400
