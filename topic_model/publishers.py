"""Publisher registrations as immutable values: who publishes what, until when, and whether only on demand."""

from __future__ import annotations

import msgspec

from arborcast.topic_model.subscriptions import EndpointReference, SoapVersion, TopicFilter


class Upstream(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A subscription of ours at a publisher. `topic` is the normal form of the registered topic that it is for.

    Times are milliseconds since the epoch; it is to be renewed at `renew_ms`. None means that it has no end.
    """

    topic: str
    reference: EndpointReference
    terminates_ms: int | None = None
    renew_ms: int | None = None
    paused: bool = False


class Registration(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One registered publisher. `address` is where the registration is managed; no topics means any topic.

    With `demand`, `publisher` is a NotificationProducer at which we subscribe while somebody wants its topics;
    `upstream` says where we have, `pausable` whether it lets itself be paused, as far as we know. `soap` and
    `addressing` are how it spoke to us, and so how we speak to it.
    """

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
        """Whether the termination time has come."""
        return self.terminates_ms is not None and self.terminates_ms <= now_ms
