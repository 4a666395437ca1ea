"""The state of a worker process between tasks, in both modes: connections, prepared envelopes, log writers.

It is a cache: Spark may end an idle worker at any time, and a killed one is replaced.
"""

from __future__ import annotations

import dataclasses
import gc

from arborcast.core import liveness
from arborcast.core.recent import Recent
from arborcast.core.threads import Service
from arborcast.dispatch.delivery.credentials import SecretOpener
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.pushes import make_push_spans
from arborcast.dispatch.delivery.transport import make_transport
from arborcast.dispatch.hot.pump import Pump
from arborcast.dispatch.hot.sink_journal import OUTCOMES_TIMEOUT_S, SinkJournal
from arborcast.dispatch.matching.filters import Conditions
from arborcast.dispatch.monitoring.in_flight_gauge import Gauge
from arborcast.dispatch.settings import JobSettings
from arborcast.topic_model.subscriptions import Subscription

# Bytes of prepared envelopes per worker, twice: about 1.5 kB each, with their subscriptions as much again.
_ENVELOPES = 32 * 1024 * 1024

# Poll interval of the thread that waits for late answers.
_REST_S = 1.0

# Share of the time that a lane waits for a push in which a connection must be established.
_CONNECTED_BY = 0.9


class Worker:
    def __init__(self, settings: JobSettings, gauge_file: str) -> None:
        self.made_for = (settings, gauge_file)
        self._opener = SecretOpener(settings.secrets)
        self._callback_s = settings.push.callback_s
        self._envelopes: Recent[str, tuple[Subscription, Envelope]] = Recent(_ENVELOPES)
        self._frozen = False
        self._resting: Service | None = None
        self.conditions = Conditions()
        # Connections must be established before their lane stops waiting: later, nothing has been sent over them.
        connect_s = min(settings.push.connect_timeout_s, _CONNECTED_BY * settings.retry.batch_wait_s)
        push = dataclasses.replace(settings.push, connect_timeout_s=connect_s)
        self.transport = make_transport(push, settings.outbound, settings.mqtt)
        self.journal = SinkJournal(settings.kafka, OUTCOMES_TIMEOUT_S)
        self.spans = make_push_spans(settings.tracing)
        self.gauge = Gauge(gauge_file)
        self.pump = Pump(
            self.transport,
            self.envelope_of,
            settings.push.max_in_flight,
            settings.retry.batch_wait_s,
            spans=self.spans,
            timeout_s=settings.push.total_timeout_s,
        )

    def settled(self) -> None:
        """After the first partition all loaded objects stay: freeze them, so that the garbage collector, which Spark
        runs after every task, does not scan them again (10-38 ms per task)."""
        if not self._frozen:
            gc.collect()
            gc.freeze()
            self._frozen = True

    def rest(self) -> None:
        """Between tasks a thread waits for the answers of pushes in flight, until `resume`."""
        if self.transport.in_flight:
            self._resting = Service("unanswered", self._await_answer, what="the wait for late answers of receivers")
            self._resting.start()

    def resume(self) -> None:
        """A task begins."""
        resting, self._resting = self._resting, None
        if resting is not None:
            resting.stop()
            self.transport.wake()
            resting.stop(None)

    def await_answers(self) -> None:
        """Return when no push is in flight and all is written: the process ends after its task."""
        while self.transport.in_flight:
            liveness.beat()
            self.transport.drive(_REST_S)
        self.journal.catch_up()

    def _await_answer(self) -> float | None:
        self.transport.drive(_REST_S)
        return 0.0 if self.transport.in_flight else None

    def close(self) -> None:
        self.resume()
        self.transport.close()
        self.journal.close()
        if self.spans is not None:
            self.spans.close()

    def envelope_of(self, subscription: Subscription) -> Envelope:
        """The prepared envelope of a subscription; made at its first push and after a change."""
        kept = self._envelopes.get(subscription.id)
        if kept is not None and (kept[0] is subscription or kept[0] == subscription):
            return kept[1]
        envelope = Envelope(subscription, self._opener, self._callback_s)
        self._envelopes.put(subscription.id, (subscription, envelope), 2 * envelope.size)
        return envelope


_worker: Worker | None = None


def worker_for(settings: JobSettings, gauge_file: str) -> Worker:
    """This process' worker. Only tests use several settings in one session."""
    global _worker
    if _worker is not None and _worker.made_for != (settings, gauge_file):
        forget_worker()
    if _worker is None:
        _worker = Worker(settings, gauge_file)
    _worker.resume()
    return _worker


def forget_worker() -> None:
    """Close the worker after a failed task, and drop its unfinished work."""
    global _worker
    worker, _worker = _worker, None
    if worker is not None:
        worker.close()
