"""The health of an endpoint: whether it may be tried, and whether a batch may wait for it. Pure.

Two questions with two answers. The breaker: after so many failures in a row it opens; then nothing is tried until a
probe is due, and the probe decides. The speed: an endpoint that could not be reached, or took too long for a batch, is
`sick`: its messages go through the redelivery, where nobody waits for them. It is served by the batches again when it
has answered quickly a few times and has not relapsed too recently: each relapse costs a batch its budget once more, so
the time until it is trusted again doubles with each.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from dispatch.settings import RetrySettings
from dispatch.wall_clock import has_come

Kind = Literal["quick", "slow", "failing", "away"]
"""What a push says about its endpoint: it answered at once; it took long; it answered that it failed, which may be the
message's fault; it did not answer, or answered that it cannot be served for now."""

Breaker = Literal["closed", "open", "half-open"]

# Quick answers in a row after which an endpoint is trusted with a batch again.
_RECOVERED = 3

_FIRST_QUARANTINE_MS = 1_000
_LONGEST_QUARANTINE_MS = 600_000

# After so long without a relapse the earlier ones are forgotten.
_FORGIVEN_MS = 1_800_000


@dataclass(frozen=True, slots=True)
class Sign:
    """What was seen of an endpoint. `message` is the notification that failed: the same one failing again and again
    says nothing new about the endpoint. `wait_ms` is how long it asked to be left alone (Retry-After)."""

    kind: Kind
    message: str = ""
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of one endpoint; the default is one of which nothing bad is known.

    `failing_since_ms` is when it failed for the first time since it last took a message, 0 when it has not since then;
    `probe_at_ms` when it is probed, as was decided at `opened_ms`.
    """

    breaker: Breaker = "closed"
    failures: int = 0
    failed_message: str = ""
    failing_since_ms: int = 0
    probe_at_ms: int = 0
    opened_ms: int = 0
    probes: int = 0
    sick: bool = False
    quick: int = 0
    relapses: int = 0
    relapsed_ms: int = 0

    def may_try(self, now_ms: int) -> bool:
        """Whether a push may begin now: with an open breaker, only the one that is its probe."""
        if self.breaker == "open":
            return has_come(self.probe_at_ms, self.opened_ms, now_ms)
        return self.breaker == "closed"

    def forgettable(self, now_ms: int) -> bool:
        """Whether nothing is lost by keeping no record of this endpoint."""
        return self.failures == 0 and not self.sick and now_ms - self.relapsed_ms > _FORGIVEN_MS


WELL = Health()


def quick_s(settings: RetrySettings) -> float:
    """How long a quick answer takes at most: half of what a batch would wait, in seconds."""
    return settings.hot_budget_s / 2


def probing(health: Health) -> Health:
    """The probe is under way: until it has an outcome nothing else is tried."""
    return dataclasses.replace(health, breaker="half-open") if health.breaker == "open" else health


def without_probe(health: Health) -> Health:
    """The probe under way is lost: another one may begin."""
    return dataclasses.replace(health, breaker="open") if health.breaker == "half-open" else health


def after(health: Health, sign: Sign, now_ms: int, settings: RetrySettings) -> Health:
    """The endpoint's health after one more push."""
    health = _by_now(health, now_ms)
    if sign.kind in ("away", "failing"):
        return _after_failure(health, sign, now_ms, settings)
    # An answer ends what is known of failures; not what is known of the speed.
    answered = Health(sick=health.sick, quick=health.quick, relapses=health.relapses, relapsed_ms=health.relapsed_ms)
    if sign.kind == "slow":
        return dataclasses.replace(_relapsed(answered, now_ms), quick=0)
    if not answered.sick:
        return answered
    quick = answered.quick + 1
    if quick >= _RECOVERED and now_ms - answered.relapsed_ms >= _quarantine_ms(answered.relapses):
        return dataclasses.replace(answered, sick=False, quick=0)
    return dataclasses.replace(answered, quick=quick)


def _after_failure(health: Health, sign: Sign, now_ms: int, settings: RetrySettings) -> Health:
    if sign.kind == "away":
        health = _relapsed(health, now_ms)
    elif health.breaker == "closed" and sign.message == health.failed_message:
        return health  # one message that it cannot take; the others may fare better
    failures = health.failures + 1
    failing = dataclasses.replace(
        health,
        failures=failures,
        failed_message=sign.message,
        failing_since_ms=health.failing_since_ms or now_ms,
        quick=0,
    )
    if health.breaker == "closed" and failures < settings.breaker_failures and not sign.wait_ms:
        return failing
    wait_ms = int(min(settings.first_probe_s * 2 ** min(health.probes, 32), settings.longest_probe_s) * 1000)
    asked_ms = min(sign.wait_ms, int(settings.longest_retry_after_s * 1000))
    return dataclasses.replace(
        _relapsed(failing, now_ms),
        breaker="open",
        probes=health.probes + 1,
        probe_at_ms=now_ms + max(wait_ms, asked_ms),
        opened_ms=now_ms,
    )


def _by_now(health: Health, now_ms: int) -> Health:
    """What has happened later than now, by a clock that was put back, has happened now."""
    return dataclasses.replace(
        health,
        failing_since_ms=min(health.failing_since_ms, now_ms),
        relapsed_ms=min(health.relapsed_ms, now_ms),
    )


def _relapsed(health: Health, now_ms: int) -> Health:
    """Sick from now on; an endpoint that was sick already has not relapsed, it has not recovered yet."""
    if health.sick:
        return health
    relapses = 1 if now_ms - health.relapsed_ms > _FORGIVEN_MS else health.relapses + 1
    return dataclasses.replace(health, sick=True, relapses=relapses, relapsed_ms=now_ms)


def _quarantine_ms(relapses: int) -> int:
    doubled: int = _FIRST_QUARANTINE_MS * 2 ** min(relapses - 1, 32)
    return min(doubled, _LONGEST_QUARANTINE_MS)
