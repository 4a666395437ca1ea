"""From a message of an MQTT broker to a stored notification.

A payload that begins as an XML element is XML; other payloads are text in UTF-8, JSON for instance, in the element for
loose content. The Message Expiry Interval becomes the lifespan. An invalid message is counted, logged and acknowledged,
since another delivery would fail again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from arborcast.core.errors import InfrastructureError, PeerError
from arborcast.core.log_limit import LogLimit
from arborcast.core.mqtt.settings import MqttSettings
from arborcast.core.telemetry.metrics import Registry
from arborcast.ingest.access.grants import ClientRequest
from arborcast.ingest.elements.publication import Publication
from arborcast.ingest.mqtt.rules import Rules
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.publishing import Checked, again, check_message, loose_payload, store_each
from arborcast.topic_model.legacy_content import begins_element
from arborcast.wire import limits
from arborcast.wire.errors import InvalidRequest, TooLarge, TooManyRequests

logger = logging.getLogger(__name__)

AT_ONCE = 100
"""Messages that are stored together."""

# The log has one message of each outcome in this time.
_LOG_AGAIN_S = 60.0


class MqttMessage(NamedTuple):
    """A PUBLISH of the broker. `topic` is None if it is not UTF-8; `engine` is the mark of an engine as the sender,
    `lifespan_s` 0 without an expiry."""

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
        self.gateway = gateway
        self.rules = rules
        self.settings = settings
        self._user: ClientRequest | None = None
        self._counts = counts
        self._log_limit = LogLimit(1, _LOG_AGAIN_S)

    async def take(self, messages: Sequence[MqttMessage]) -> int:
        """Store or refuse messages in their order; returns the number of settled ones from the first on. Raises
        InfrastructureError if none is settled; the caller repeats the call later."""
        self._user = await entered(self.gateway, self.settings)
        read: list[Checked | Exception] = []
        failure: InfrastructureError | None = None
        for message in messages[:AT_ONCE]:
            try:
                read.append(await self._checked(message))
            except TooManyRequests as error:
                failure = InfrastructureError(str(error), error.retry_after_s)
                break
            except InfrastructureError as error:
                failure = error
                break
            except MemoryError:  # another delivery may succeed
                failure = InfrastructureError("there is no memory for a message", 1.0)
                break
            except Exception as error:
                if not isinstance(error, PeerError):
                    logger.exception("a message of the MQTT broker failed")
                read.append(error)
        checked = [each for each in read if isinstance(each, Checked)]
        stored = iter(await store_each(self.gateway, checked) if checked else ())
        settled = 0
        for message, each in zip(messages, read, strict=False):
            result = next(stored) if isinstance(each, Checked) else each
            if isinstance(result, InfrastructureError):
                failure = result
                break
            settled += 1
            self._counts["repeated"] += message.repeated
            if isinstance(result, Exception):
                self._refuse(message.topic, result)
            else:
                self._counts["accepted"] += 1
        if failure is not None and not settled:
            raise failure
        return settled

    async def _checked(self, message: MqttMessage) -> Checked:
        """Raises _Dropped, another PeerError, or InfrastructureError."""
        if message.engine == self.settings.client_id:
            raise _Dropped("loop", "this engine has sent it")
        if message.topic is None:
            raise InvalidRequest("its topic is not UTF-8")
        topic = self.rules.topic(message.topic)
        if topic is None:
            raise _Dropped("unmatched", "no rule selects it: a subscription of an earlier rule is left")
        gateway, payload = self.gateway, message.payload
        if not begins_element(payload):
            payload = loose_payload(payload)
        if len(payload) > gateway.settings.max_body_bytes:
            raise TooLarge(f"the message has {len(payload)} bytes, more than {gateway.settings.max_body_bytes}")
        publication = Publication(lifespan_ms=min(message.lifespan_s * 1000, limits.LIFESPAN_MS))
        publisher = again(gateway, self._user, len(message.payload))
        return await check_message(gateway, publisher, topic, payload, publication)

    def _refuse(self, topic: str | None, why: Exception) -> None:
        outcome = why.outcome if isinstance(why, _Dropped) else "refused"
        self._counts[outcome] += 1
        if self._log_limit.passes(outcome):
            logger.warning("mqtt: %s: a message of the topic %.200r: %s", outcome, topic, why)


def declare(metrics: Registry, connected: Callable[[], bool], counts: Callable[[], Counter[str]]) -> None:
    """The metrics of the bridge. Outgoing messages are in the job's metrics, as all pushes."""
    metrics.gauge(
        "arborcast_mqtt_connected",
        "1 with a session at the broker; at gateways without the lease 0.",
        lambda: int(connected()),
    )
    metrics.counted_by(
        "arborcast_mqtt_messages_total",
        "accepted, refused (named in the log), loop (sent by this engine), unmatched (by no rule), repeated (of all).",
        "outcome",
        counts,
    )
