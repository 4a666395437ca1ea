"""What signing adds to a push, and opening a secret to an envelope, in one process.

python -m benchmarks.dispatch.signing [--quick] [--json FILE]
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import msgspec

from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import Vault
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Protection, SigningSecret, Subscription
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, run, seconds

_TOPIC = TopicPath("{urn:t}bench/p1")
_SIZES = (200, 1_000, 10_000, 100_000)


def measure(report: Report) -> None:
    rounds = 500 if report.quick else 20_000
    keys = KeyRing({"k1": os.urandom(32)})
    vault = Vault(SecretSettings(), keys)
    plain = Subscription("s" * 24, EndpointReference("https://receiver.example/inbox"), "https://broker.example/s")

    def signed_by(secrets: int) -> Subscription:
        sealed = [SigningSecret(keys.seal(os.urandom(32), plain.sealing_context())) for _ in range(secrets)]
        return msgspec.structs.replace(plain, protection=Protection(tuple(sealed)))

    def best(work: Callable[[], object], times: int) -> float:
        return min(seconds(lambda: [work() for _ in range(times)]) for _ in range(3)) / times * 1e6

    with report.table(
        "making the request of one push, in microseconds",
        *("payload bytes", "unsigned", "one secret", "two secrets", "signing adds"),
        note="What a push costs a worker as a whole: see stages.",
    ) as table:
        for size in _SIZES:
            message = Notification("0" * 32, _TOPIC, b"<m>" + b"x" * size + b"</m>", 1)
            times = max(100, rounds * 1_000 // (1_000 + size))
            figures = []
            for subscription in (plain, signed_by(1), signed_by(2)):
                envelope = Envelope(subscription, vault)
                figures.append(best(partial(envelope.request, [message], 1), times))
            table.add(size, *(round(figure, 2) for figure in figures), round(figures[1] - figures[0], 2))
    with report.table("preparing an envelope, once per worker and subscription", "protection", "microseconds") as table:
        for name, subscription in (("none", plain), ("one secret", signed_by(1)), ("two secrets", signed_by(2))):
            table.add(name, round(best(partial(Envelope, subscription, vault), rounds // 10), 2))


if __name__ == "__main__":
    run(measure)
