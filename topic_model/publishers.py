"""Publisher registrations as immutable values."""

from __future__ import annotations

import msgspec

from arborcast.topic_model.subscriptions import EndpointReference, SoapVersion, TopicFilter


class Upstream(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The gateway's subscription at a publisher. `topic` is the normal form of the registered topic. Times are
    milliseconds since the epoch; it is renewed at `renew_ms`. None: no end. `consumer` is the address to which the
    publisher sends; empty: unknown."""

    topic: str
    reference: EndpointReference
    terminates_ms: int | None = None
    renew_ms: int | None = None
    paused: bool = False
    consumer: str = ""


class Registration(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A registered publisher. `address` is the manager of the registration; no topics means any topic. With `demand`,
    `publisher` is a NotificationProducer at which the gateway subscribes while its topics have subscribers; `upstream`
    are these subscriptions; `pausable` is False once it has refused a pause. `soap` and `addressing` are the format of
    its request, used for requests to it."""

    id: str
    address: str
    publisher: EndpointReference | None = None
    topics: tuple[TopicFilter, ...] = ()
    demand: bool = False
    soap: SoapVersion = "1.1"
    addressing: bool = False
    created_ms: int = 0
    terminates_ms: int | None = None
    upstream: tuple[Upstream, ...] = ()
    pausable: bool = True
    owner: str = ""

    def expired(self, now_ms: int) -> bool:
        """Whether the termination time is over."""
        return self.terminates_ms is not None and self.terminates_ms <= now_ms
