"""The health of an endpoint. Pure.

The breaker opens after consecutive failures: then nothing is pushed until a probe is due, and the probe decides.

An endpoint that was unreachable, or too slow for a batch, is `degraded`: its messages go through the redelivery, where
no batch waits for them. Batches serve it again after some quick answers without a recent relapse. Each relapse costs a
batch its budget once more, so the quarantine doubles with each.

The redelivery pushes no timely messages, since none are parked. So from time to time a degraded endpoint is on trial: a
batch pushes timely messages to it. After a quick answer all of them are pushed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from arborcast.core.backoff import Backoff
from arborcast.core.timer_queue import TimerQueue
from arborcast.core.wall_clock import TOLERANCE_MS, is_due
from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.settings import RetrySettings

Kind = Literal["quick", "slow", "failing", "unreachable"]
"""The sign of a push for its endpoint: a quick answer; a slow one; an error, possibly because of the message; no
answer, or one that it is unavailable."""

Breaker = Literal["closed", "open", "half-open"]

# Quick answers in a row after which an endpoint is trusted with a batch again.
_RECOVERED = 3

# Wait after each relapse. Trials that cost a batch time have the same longest wait, other trials that of probes.
_QUARANTINE = Backoff(1.0, 600.0)

# Time without a relapse after which earlier ones are forgotten.
_FORGIVEN_MS = 1_800_000


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of an endpoint's health. `message` is the notification that failed: the same one failing again and again
    is no new sign. `wait_ms` is the Retry-After of the answer. `late`: the answer or failure was slow."""

    kind: Kind
    message: str = ""
    wait_ms: int = 0
    late: bool = False

    @property
    def taken(self) -> bool:
        return self.kind in ("quick", "slow") and not self.late


def sign_of(message: str, outcome: Outcome, result: PushResult, quick_s: float) -> Sign:
    """The sign of a push: one rule for workers and redelivery. `message` is the first notification in it."""
    late = result.duration_s > quick_s
    if outcome.endpoint_unreachable:
        return Sign("unreachable", message, int(result.retry_after_s * 1000), late)
    if not outcome.taken and not outcome.is_message_error:
        return Sign("failing", message)
    return Sign("slow" if late else "quick")


class Health(msgspec.Struct, frozen=True):
    """The health of one endpoint; the default is healthy. `failing_since_ms` is the first failure since its last
    success, 0 without one; `probe_at_ms` is the time of the next probe, decided at `opened_ms`. While it is degraded,
    `trials` counts failed trials, `trial_at_ms` is the time of the next one, decided at `tried_ms`, and `took` whether
    it accepted the last message, even slowly."""

    breaker: Breaker = "closed"
    failures: int = 0
    failed_message: str = ""
    failing_since_ms: int = 0
    probe_at_ms: int = 0
    opened_ms: int = 0
    probes: int = 0
    degraded: bool = False
    quick: int = 0
    relapses: int = 0
    relapsed_ms: int = 0
    trials: int = 0
    trial_at_ms: int = 0
    tried_ms: int = 0
    took: bool = False

    def on_trial(self, now_ms: int, patient: bool = False) -> bool:
        """Whether timely messages are pushed to it although it is degraded. A `patient` caller does not wait for
        pushes, and accepts slow ones."""
        if self.quick or (patient and self.took):
            return True
        return is_due(self.trial_at_ms, self.tried_ms, now_ms)

    def may_try(self, now_ms: int) -> bool:
        """Whether a push may begin now: with an open breaker, only the one that is its probe."""
        if self.breaker == "open":
            return is_due(self.probe_at_ms, self.opened_ms, now_ms)
        return self.breaker == "closed"

    def forgettable(self, now_ms: int) -> bool:
        """Whether its entry can be dropped without a change of any decision."""
        return self.failures == 0 and not self.degraded and now_ms - self.relapsed_ms > _FORGIVEN_MS


HEALTHY = Health()


def quick_s(settings: RetrySettings) -> float:
    """The maximum time of a quick answer: half of the wait of a batch, in seconds."""
    return settings.batch_wait_s / 2


def probing(health: Health) -> Health:
    """The probe is in flight: nothing else is pushed before its outcome."""
    return msgspec.structs.replace(health, breaker="half-open") if health.breaker == "open" else health


def without_probe(health: Health) -> Health:
    """The probe in flight is lost: another one may begin."""
    return msgspec.structs.replace(health, breaker="open") if health.breaker == "half-open" else health


def after(health: Health, sign: Sign, now_ms: int, settings: RetrySettings) -> Health:
    # The clock may have been put back.
    health = msgspec.structs.replace(
        health,
        failing_since_ms=min(health.failing_since_ms, now_ms),
        relapsed_ms=min(health.relapsed_ms, now_ms),
    )
    return _with_trial(_after(health, sign, now_ms, settings), health, sign, now_ms, settings)


def _with_trial(health: Health, before: Health, sign: Sign, now_ms: int, settings: RetrySettings) -> Health:
    trials, at_ms, tried_ms = before.trials, before.trial_at_ms, before.tried_ms
    if not health.degraded:
        trials, at_ms, tried_ms = 0, 0, 0
    elif sign.kind != "quick" and before.on_trial(now_ms):  # otherwise the push began before the endpoint was degraded
        trials += 1
        costs = sign.late or sign.taken
        longest_s = _QUARANTINE.longest_s if costs else settings.longest_probe_s
        wait_ms = max(1, int(Backoff(settings.first_probe_s, longest_s).after(trials) * 1000))
        wait_ms = max(wait_ms, min(sign.wait_ms, int(settings.longest_retry_after_s * 1000)))
        # On a grid when it costs time: a batch then pays for many endpoints at once.
        at_ms = -(-(now_ms + wait_ms // 2) // wait_ms) * wait_ms if costs else now_ms + wait_ms
        tried_ms = now_ms
    return msgspec.structs.replace(
        health, trials=trials, trial_at_ms=at_ms, tried_ms=tried_ms, took=health.degraded and sign.taken
    )


def _after(health: Health, sign: Sign, now_ms: int, settings: RetrySettings) -> Health:
    if sign.kind in ("unreachable", "failing"):
        return _after_failure(health, sign, now_ms, settings)
    # An answer resets the failures, but not the speed.
    answered = Health(
        degraded=health.degraded, quick=health.quick, relapses=health.relapses, relapsed_ms=health.relapsed_ms
    )
    if sign.kind == "slow":
        return msgspec.structs.replace(_relapsed(answered, now_ms), quick=0)
    if not answered.degraded:
        return answered
    quick = answered.quick + 1
    if quick >= _RECOVERED and now_ms - answered.relapsed_ms >= _QUARANTINE.after(answered.relapses) * 1000:
        return msgspec.structs.replace(answered, degraded=False, quick=0)
    return msgspec.structs.replace(answered, quick=quick)


def _after_failure(health: Health, sign: Sign, now_ms: int, settings: RetrySettings) -> Health:
    if sign.kind == "unreachable":
        health = _relapsed(health, now_ms)
    elif health.breaker == "closed" and sign.message == health.failed_message:
        return health  # the endpoint refuses one message; others may succeed
    failures = health.failures + 1
    failing = msgspec.structs.replace(
        health,
        failures=failures,
        failed_message=sign.message,
        failing_since_ms=health.failing_since_ms or now_ms,
        quick=0,
    )
    if health.breaker == "closed" and failures < settings.breaker_failures and not sign.wait_ms:
        return failing
    wait_ms = int(Backoff(settings.first_probe_s, settings.longest_probe_s).after(health.probes + 1) * 1000)
    requested_ms = min(sign.wait_ms, int(settings.longest_retry_after_s * 1000))
    return msgspec.structs.replace(
        _relapsed(failing, now_ms),
        breaker="open",
        probes=health.probes + 1,
        probe_at_ms=now_ms + max(wait_ms, requested_ms),
        opened_ms=now_ms,
    )


def _relapsed(health: Health, now_ms: int) -> Health:
    """Mark it degraded. A degraded endpoint cannot relapse: it has not recovered."""
    if health.degraded:
        return health
    relapses = 1 if now_ms - health.relapsed_ms > _FORGIVEN_MS else health.relapses + 1
    return msgspec.structs.replace(health, degraded=True, relapses=relapses, relapsed_ms=now_ms)


def _is_watched(health: Health) -> bool:
    return bool(health.failures or health.degraded)


class _Trials:
    """The degraded endpoints on trial. The driver reads them ten times in a second: each time only endpoints with a
    changed health or a due time are examined."""

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._times: TimerQueue[str] = TimerQueue()
        self._found: dict[bool, set[str]] = {False: set(), True: set()}  # for patient callers, and for others
        self._copies: dict[bool, frozenset[str]] = {}
        self._latest_ms = 0

    def changed(self, endpoint: str) -> None:
        self._changed.add(endpoint)

    def forget(self, endpoint: str) -> None:
        self._changed.discard(endpoint)
        self._place(endpoint, HEALTHY, 0)

    def of(self, known: Mapping[str, Health], now_ms: int, patient: bool) -> frozenset[str]:
        if now_ms < self._latest_ms:  # the clock was put back
            self._changed.update(known)
        self._latest_ms = now_ms
        while (due := self._times.pop(now_ms)) is not None:
            self._changed.add(due)
        for endpoint in self._changed:
            self._place(endpoint, known.get(endpoint, HEALTHY), now_ms)
        self._changed.clear()
        if patient not in self._copies:
            self._copies[patient] = frozenset(self._found[patient])
        return self._copies[patient]

    def _place(self, endpoint: str, health: Health, now_ms: int) -> None:
        for patient, found in self._found.items():
            on_trial = health.degraded and health.on_trial(now_ms, patient)
            if on_trial != (endpoint in found):
                found.symmetric_difference_update((endpoint,))
                self._copies.pop(patient, None)
        # The times at which the result of `is_due` changes.
        later = [at for at in (health.tried_ms - TOLERANCE_MS, health.trial_at_ms) if at > now_ms]
        if health.degraded and later:
            self._times.set(endpoint, min(later))
        else:
            self._times.cancel(endpoint)


class EndpointHealthRegistry:
    """Endpoints from their first bad sign until long after their recovery. Thread-safe.

    The entries are sent with every batch and saved for the next start, and subscribers choose the addresses. So an
    address without a subscription has no entry: otherwise a client could fill the memory by subscribing, failing and
    unsubscribing with new addresses.

    `in_use`: whether a subscription has this endpoint; it is called under a lock. After the last one has ended, and
    `in_use` returns False, `forget` is called.
    """

    def __init__(self, settings: RetrySettings, in_use: Callable[[str], bool]) -> None:
        self._settings = settings
        self._in_use = in_use
        self._lock = threading.Lock()
        self._known: dict[str, Health] = {}
        # Until one changes: with thousands of dead endpoints the driver compares them ten times in a second.
        self._degraded: frozenset[str] | None = None
        self._watched: frozenset[str] | None = None
        self._trials = _Trials()

    def get(self, endpoint: str) -> Health:
        return self._known.get(endpoint, HEALTHY)

    def note(self, endpoint: str, sign: Sign, now_ms: int) -> Health:
        """Add a sign; returns the new health, the default for an endpoint without a subscription."""
        with self._lock:
            if not self._in_use(endpoint):
                return HEALTHY
            before = self._known.get(endpoint, HEALTHY)
            health = after(before, sign, now_ms, self._settings)
            if health.forgettable(now_ms):
                self._known.pop(endpoint, None)
            else:
                self._known[endpoint] = health
            if health.degraded or before.degraded:
                self._trials.changed(endpoint)
            if (health.degraded, _is_watched(health)) != (before.degraded, _is_watched(before)):
                self._degraded = self._watched = None
            return health

    def forget(self, endpoint: str) -> None:
        """Drop an endpoint without a subscription."""
        with self._lock:
            self._known.pop(endpoint, None)
            self._trials.forget(endpoint)
            self._degraded = self._watched = None

    def begin_push(self, endpoint: str) -> bool:
        """Begin a permitted push; returns whether it is a probe."""
        with self._lock:
            health = self._known.get(endpoint, HEALTHY)
            if health.breaker == "closed":
                return False
            self._known[endpoint] = probing(health)
            return True

    def resume(self, endpoint: str, now_ms: int) -> None:
        """After a subscription is resumed: the endpoint may be probed now, and its time until it is given up starts
        again."""
        self.allow_probe(endpoint, now_ms, failing_since_ms=0)

    def allow_probe(self, endpoint: str, now_ms: int, **changed: int) -> None:
        """The endpoint may be probed now; with these changes of its health."""
        with self._lock:
            health = self._known.get(endpoint)
            if health is not None:
                probe_at_ms = min(health.probe_at_ms, now_ms)
                self._known[endpoint] = msgspec.structs.replace(health, probe_at_ms=probe_at_ms, **changed)

    def restore(self, known: Mapping[str, Health]) -> None:
        """Take over the health before a restart, of endpoints without an entry."""
        with self._lock:
            for endpoint, health in known.items():
                if self._in_use(endpoint):
                    # The outcome of a probe in flight was lost with that process, and the breaker would stay open.
                    self._known.setdefault(endpoint, without_probe(health))
                    self._trials.changed(endpoint)
            self._degraded = self._watched = None

    def forget_probes(self) -> None:
        """Probes in flight are lost; others may begin."""
        with self._lock:
            for endpoint, health in self._known.items():
                self._known[endpoint] = without_probe(health)

    def degraded(self) -> frozenset[str]:
        """The endpoints that a batch does not push to."""
        with self._lock:
            if self._degraded is None:
                self._degraded = frozenset(each for each, health in self._known.items() if health.degraded)
            return self._degraded

    def on_trial(self, now_ms: int, patient: bool = False) -> frozenset[str]:
        """The degraded endpoints to which timely messages are pushed."""
        with self._lock:
            return self._trials.of(self._known, now_ms, patient)

    def watched(self) -> frozenset[str]:
        """The endpoints whose successes a batch must report: they have failed since their last success, or are
        degraded."""
        with self._lock:
            if self._watched is None:
                self._watched = frozenset(each for each, health in self._known.items() if _is_watched(health))
            return self._watched

    def everything(self) -> dict[str, Health]:
        with self._lock:
            return dict(self._known)
