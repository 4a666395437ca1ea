"""From a message of an MQTT broker to a stored notification.

A payload that begins as an XML element is one; other payloads are text in UTF-8, JSON for instance, in the element that
loose content has. The Message Expiry Interval becomes the lifespan. A message that cannot be a notification here is
counted and logged; it is settled all the same, since another delivery would fail again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from arborcast.core.errors import InfrastructureError, PeerError
from arborcast.core.mqtt.settings import MqttSettings
from arborcast.core.telemetry.metrics import Registry
from arborcast.ingest.access.grants import ClientRequest
from arborcast.ingest.elements.publication import Publication
from arborcast.ingest.framed.messages import loose_payload
from arborcast.ingest.http.inflight import SMALL
from arborcast.ingest.mqtt.rules import Rules
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.http_publish import read_payload
from arborcast.ingest.operations.publishing import (
    UNACCEPTED,
    Checked,
    PublishingClient,
    PublishRequest,
    check,
    joined,
    store,
)
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.message_types import stored_type
from arborcast.topic_model.records.notifications import Notification
from arborcast.wire import limits
from arborcast.wire.errors import InvalidRequest, TooLarge, TooManyRequests

logger = logging.getLogger(__name__)

_ELEMENT = re.compile(rb"\s*+<[^\s<>&!]")

AT_ONCE = 100
"""Messages that are stored together."""

# The log has one message of each outcome in this time.
_LOG_AGAIN_S = 60.0


class MqttMessage(NamedTuple):
    """A PUBLISH of the broker. `topic` is None for one that is not UTF-8; `engine` is the mark of an engine that sent
    it, `lifespan_s` 0 without an expiry."""

    topic: str | None
    payload: bytes
    engine: str = ""
    lifespan_s: int = 0
    repeated: bool = False


class _Dropped(PeerError):
    """A message that is dropped by a rule; `outcome` is a word for counting."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


async def entered(gateway: Gateway, settings: MqttSettings) -> ClientRequest | None:
    """The bridge as a client of the gateway; None where no client has to authenticate. Raises InfrastructureError."""
    return None if gateway.gate is None else await gateway.gate.acting(settings.act_as)


class Incoming:
    """Stores messages with the rights of `mqtt.act_as`."""

    def __init__(self, gateway: Gateway, rules: Rules, settings: MqttSettings, counts: Counter[str]) -> None:
        """Adds to `counts` by outcome."""
        self._gateway = gateway
        self._rules = rules
        self._settings = settings
        self._user: ClientRequest | None = None
        self._counts = counts
        self._logged: dict[str, float] = {}

    async def take(self, messages: Sequence[MqttMessage]) -> int:
        """Store or refuse messages in their order; returns how many are settled, from the first one on. Raises
        InfrastructureError when none is, and the first one is to be taken again later."""
        self._user = await entered(self._gateway, self._settings)
        together: list[Checked] = []
        dropped: list[tuple[str, MqttMessage, object]] = []
        failure: InfrastructureError | None = None
        for message in messages[:AT_ONCE]:
            try:
                together.append(await self._checked(message))
            except _Dropped as error:
                dropped.append((error.outcome, message, error))
            except TooManyRequests as error:
                failure = InfrastructureError(str(error), error.retry_after_s)
                break
            except PeerError as error:
                dropped.append(("refused", message, error))
            except InfrastructureError as error:
                failure = error
                break
            except Exception as error:
                logger.exception("a message of the MQTT broker failed")
                dropped.append(("refused", message, error))
        settled = len(together) + len(dropped)
        if failure is not None and not settled:
            raise failure
        if together:
            await self._store(together)
        for outcome, message, why in dropped:
            self._refuse(outcome, message.topic, why)
        self._counts["repeated"] += sum(each.repeated for each in messages[:settled])
        return settled

    async def _checked(self, message: MqttMessage) -> Checked:
        """Raises _Dropped, another PeerError, or InfrastructureError."""
        if message.engine == self._settings.client_id:
            raise _Dropped("loop", "this engine has sent it")
        if message.topic is None:
            raise InvalidRequest("its topic is not UTF-8")
        topic = self._rules.topic(message.topic)
        if topic is None:
            raise _Dropped("unmatched", "no rule selects it: a subscription of an earlier rule is left")
        gateway, payload = self._gateway, message.payload
        if not _ELEMENT.match(payload):
            payload = loose_payload(payload)
        if len(payload) > gateway.settings.max_body_bytes:
            raise TooLarge(f"the message has {len(payload)} bytes, {gateway.settings.max_body_bytes} are taken")
        what = "the payload"
        if len(payload) <= SMALL:
            request = read_payload(payload, b"", what)
        else:
            request = await asyncio.to_thread(read_payload, payload, b"", what)
        source = request.source(1)
        notification = Notification(
            gateway.ids.next(),
            topic,
            source.fragment(source.node(request.operation)),
            UNACCEPTED,
            type=stored_type(str(request.operation.tag)),
        )
        said = Publication(lifespan_ms=min(message.lifespan_s * 1000, limits.LIFESPAN_MS))
        publisher = PublishingClient(*self._client(len(message.payload)))
        checked = await check(gateway, PublishRequest([notification], publisher, {notification.id: said}))
        await gateway.admit({topic: ""})
        return checked

    def _client(self, size: int) -> tuple[Caller | None, str]:
        gate = self._gateway.gate
        if gate is None or self._user is None:
            return None, ""
        caller = gate.again(self._user)
        gate.received(self._user, size)
        return caller, self._user.client

    async def _store(self, together: Sequence[Checked]) -> None:
        """Raises InfrastructureError when Kafka does not have all of them."""
        try:
            await store(self._gateway, joined(together))
        except PeerError as error:
            if len(together) == 1:
                self._refuse("refused", together[0].notifications[0].topic, error)
                return
            for each in together:  # one of them is refused, and the others are not to be
                await self._store([each])
        else:
            self._counts["accepted"] += len(together)

    def _refuse(self, outcome: str, topic: str | None, why: object) -> None:
        self._counts[outcome] += 1
        now = time.monotonic()
        if now - self._logged.get(outcome, -_LOG_AGAIN_S) >= _LOG_AGAIN_S:
            self._logged[outcome] = now
            logger.warning("mqtt: %s: a message of the topic %.200r: %s", outcome, topic, why)


def declare(metrics: Registry, connected: Callable[[], bool], counts: Callable[[], Counter[str]]) -> None:
    """The metrics of the bridge. Outgoing messages are in those of the job, as all pushes."""
    metrics.gauge(
        "arborcast_mqtt_connected",
        "1 while the bridge has its session at the MQTT broker; at gateways without the lease 0.",
        lambda: int(connected()),
    )
    metrics.counts(
        "arborcast_mqtt_messages_total",
        "Messages of the MQTT broker: accepted (stored), refused (named in the log), loop (sent by this engine), "
        "unmatched (by no rule); repeated: of all, those marked as delivered before.",
        ("outcome",),
        lambda: {(outcome,): number for outcome, number in counts().items()},
    )
