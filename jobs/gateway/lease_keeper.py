"""Holds the lease on what must be done once, in a thread: reads its log, renews, claims, and tells when it changes.

See `topic_model.lease` for how several candidates come to one holder.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable

from topic_model import lease
from topic_model.errors import ArborcastError
from topic_model.lease import HOLD_S, LEASE_LOG, RENEW_S, Lease, LeaseRecord
from topic_model.ordered_log import LogFollower, LogWriter
from topic_model.settings import KafkaSettings

logger = logging.getLogger("arborcast.gateway")

_REQUEST_S = 1.5

# What a stop may spend on telling the others not to wait.
_RELEASE_S = 1.0


def name_of(host: str, port: int) -> str:
    """A name that no other process has at this time: nobody else listens there."""
    return f"{socket.gethostname()}-{uuid.getnode():x}/{host}:{port}"


class LeaseKeeper:
    """`changed(True)` is called when the lease has become ours, `changed(False)` when it no longer is, or may no longer
    be: in the keeper's thread, one call after the other."""

    def __init__(self, kafka: KafkaSettings, name: str, changed: Callable[[bool], None]) -> None:
        self._lease = Lease(f"{name}#{uuid.uuid4().hex[:8]}")
        self._changed = changed
        # Whoever waits longer for an answer than the lease lasts cannot hold it.
        kafka = dataclasses.replace(kafka, request_timeout_s=min(kafka.request_timeout_s, _REQUEST_S))
        self._writer = LogWriter(kafka, LEASE_LOG)
        # The others' words are old when they come from before our start, but how old nobody can tell: they count from
        # now, so that a holder that lives has the time to renew.
        self._follower: LogFollower[LeaseRecord] = LogFollower(
            kafka, LEASE_LOG, lease.decode, self._apply, forgetful=True
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._told = False
        self._sent = float("-inf")  # when the last word of ours that Kafka has was on its way

    @property
    def holds(self) -> bool:
        """Whether what must be done once is ours at this very moment."""
        return self._told and time.monotonic() - self._sent < HOLD_S

    @property
    def holder(self) -> str:
        """Who has it, as far as we have read; empty for nobody."""
        return self._lease.holder

    def start(self) -> None:
        """Begin to try. The log must have been created."""
        self._thread.start()

    def stop(self) -> None:
        """Let go of it, so that another can begin at once."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_RELEASE_S)
        self._tell(False)
        self._writer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
            except ArborcastError as error:
                logger.warning("the lease on what must be done once cannot be looked after: %s", error)
                self._follower.close()
            except Exception:
                logger.exception("the lease on what must be done once cannot be looked after")
            # Whatever happened: without a fresh word of ours in the log it may be another's by now.
            self._tell(self._lease.mine and time.monotonic() - self._sent < HOLD_S)
            self._stopping.wait(RENEW_S)
        self._let_go()
        self._follower.close()

    def _look(self) -> None:
        self._follower.read_to_end(_REQUEST_S)
        now = time.monotonic()
        word = self._lease.next(now)
        if word is None:
            return
        self._writer.append_encoded([lease.encode(word)])
        self._follower.read_to_end(_REQUEST_S)
        if self._lease.mine:
            self._sent = now

    def _let_go(self) -> None:
        self._tell(False)
        word = self._lease.release()
        if word is not None:
            try:
                self._writer.append_encoded([lease.encode(word)])
            except ArborcastError as error:
                logger.info("the others will wait for the lease to run out: %s", error)

    def _apply(self, record: LeaseRecord, _offset: int) -> None:
        self._lease.apply(record, time.monotonic())

    def _tell(self, holds: bool) -> None:
        if holds != self._told:
            self._told = holds
            logger.info("what must be done once is %s", "ours" if holds else "no longer ours")
            self._changed(holds)
