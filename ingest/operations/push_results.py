"""POST /results/…: the later result of a push (answered with 202 and Arborcast-Result: later).

The address was in the push (Arborcast-Callback) and identifies it, so no authentication is needed. The body is JSON:
`{"push": "…", "state": "delivered", "text": "…"}`. It is answered when the result is in the log `results`, where the
redelivery reads and judges it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from arborcast.core.errors import InfrastructureError, SecretError
from arborcast.core.eventlog.topics import RESULTS_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.recent import Recent
from arborcast.core.security.keyring import KeyFile, Keys, UnknownKey
from arborcast.core.settings import KafkaSettings, SecretSettings
from arborcast.ingest.state.changes import KeyedLocks
from arborcast.ingest.state.log_view import LoggedState
from arborcast.topic_model.records import results
from arborcast.topic_model.records.results import PATH, ForeignAddress, Result, State
from arborcast.wire.errors import MalformedMessage, ResultRefused

logger = logging.getLogger(__name__)

LIMIT = 16 * 1024
"""Larger bodies are refused."""

# Maximum length of a receiver's text in the tables; the rest is discarded.
_MOST_TEXT = 500

# Results that were taken lately, twice: some ten thousand.
_REMEMBERED = 4 * 1024 * 1024

# Retry-After for an address that was marked with an unknown key.
_NEW_KEY_S = 5.0


class _Body(msgspec.Struct):
    state: State
    push: str = ""
    text: str = ""


_decoder = msgspec.json.Decoder(_Body)


class PushResults:
    """Takes results. Used on the event loop's thread."""

    def __init__(self, log: LoggedState[Result], keys: Keys, now: Callable[[], float] = time.time) -> None:
        self._log = log
        self._keys = keys
        self._now = now
        self._reported: Recent[str, State] = Recent(_REMEMBERED, age_s=3_600.0)
        self._locks = KeyedLocks()

    async def take(self, path: str, body: bytes) -> None:
        """Return when a result is in the log. Raises ResultRefused, MalformedMessage, or InfrastructureError."""
        try:
            promise = results.read_promise(path.removeprefix(PATH), self._keys)
        except ForeignAddress as error:
            raise ResultRefused(f"{error}: take the one in the push's Arborcast-Callback", 403) from error
        except UnknownKey as error:
            # While keys are changed workers have the new one first.
            raise InfrastructureError(f"{error} of this gateway", _NEW_KEY_S) from error
        except SecretError as error:
            logger.error("a later result cannot be taken: %s", error)  # its path is not for strangers
            raise InfrastructureError("the key file of this gateway cannot be read", _NEW_KEY_S) from error
        report = _read(body)
        if report.push and report.push != promise.push:
            raise ResultRefused(f"this is the address of the push {promise.push}, not of {report.push[:100]!r}", 403)
        now_ms = int(self._now() * 1000)
        if now_ms > promise.until_ms:
            raise ResultRefused(
                f"the result of this push was taken until {(now_ms - promise.until_ms) / 1000:.0f} s ago "
                "(push.callback_s): it counts as failed, and its messages are pushed again",
                410,
            )
        # A repetition waits for the outcome of the first.
        async with self._locks.hold(promise.push):
            before = self._reported.get(promise.push)
            if before == report.state:
                return
            if before is not None:
                raise ResultRefused(f"this push was reported as {before} before; the first report counts", 409)
            await self._log.commit([Result(promise, report.state, now_ms, report.text[:_MOST_TEXT])])
            self._reported.put(promise.push, report.state, len(promise.push))

    def close(self) -> None:
        """Accept no further results."""
        self._log.close()


def results_for(kafka: KafkaSettings, secrets: SecretSettings) -> PushResults:
    """The receiver of results for an engine's log."""
    log = LoggedState(kafka, LogWriter(kafka, RESULTS_LOG), results.encode)
    return PushResults(log, KeyFile(Path(secrets.key_file)))


def _read(body: bytes) -> _Body:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(
            f"{error!s:.200}: a result is JSON such as "
            '{"push": "…", "state": "delivered", "text": "…"}, its state delivered, failed or refused'
        ) from error
