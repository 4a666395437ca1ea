"""The report of an audit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal[
    "missing",  # fewer deliveries than recipients, although its batch is done
    "unfinished",  # the same, but its batch is the newest: it was not done, or was interrupted
    "surplus",  # more deliveries than recipients
    "unevaluated",  # not evaluated, although later ones of its partition were
    "unreadable",  # the same, because its record is damaged
    "unmatched",  # it has deliveries, but the number of its recipients was not recorded
    "not-delivered",  # --deep: a recipient has no row
    "not-parked",  # --deep: its last row is pending, but it is not in the parked log
    "no-letter",  # --deep: it was given up, but its message is not in the dead log
    "out-of-order",  # --order: its first attempt was after that of a later one of its topic and priority
    "out-of-turn",  # --order: a later one of its topic was pushed to a strict subscription before its end
    "repeated",  # --order: pushed again although the process that had ended it was running
]
"""The kind of a problem."""

PROBLEMS: dict[Kind, str] = {
    "missing": "fewer deliveries than subscriptions",
    "unfinished": "fewer deliveries than subscriptions; its batch is the newest, and is not finished",
    "surplus": "more deliveries than subscriptions",
    "unevaluated": "not evaluated, although later notifications of its partition were",
    "unreadable": "its record is damaged, so no batch can deliver it",
    "unmatched": "has deliveries, but the number of its recipients was not recorded",
    "not-delivered": "a recipient has no row",
    "not-parked": "its last row is pending, but it is not in the parked log",
    "no-letter": "it was given up, but its message is not in the dead log",
    "out-of-order": "its first attempt was after that of a later one of its topic and priority",
    "out-of-turn": "a later one of its topic was pushed before its end, to a strict subscription",
    "repeated": "pushed again more than a minute after its end, without a crash in between",
}

NOT_EXAMINED = (
    ("deep", "whether each notification was matched with all its recipients"),
    ("deep", "whether the messages of waiting deliveries and dead letters are stored"),
    ("order", "whether the pushes were made in the order of acceptance"),
)
"""Checks that only an audit with this option makes."""

MAX_PROBLEMS = 100
"""Default maximum of named problems; all are counted."""


@dataclass(frozen=True)
class Problem:
    """A problem of a notification. `matched` is the number of its recipients, `found` the number of its deliveries;
    `subscription` is empty if unknown; `accepted_ms` and `topic` are 0 and empty if unknown; `partition` and `offset`,
    in the notifications log, are then -1."""

    kind: Kind
    notification: str
    subscription: str = ""
    matched: int = 0
    found: int = 0
    topic: str = ""
    accepted_ms: int = 0
    partition: int = -1
    offset: int = -1


@dataclass
class Tally:
    """Numbers of deliveries by state."""

    delivered: int = 0
    dead: int = 0
    expired: int = 0
    cancelled: int = 0
    dropped: int = 0
    pending: int = 0

    @property
    def matches(self) -> int:
        return self.delivered + self.dead + self.expired + self.cancelled + self.dropped + self.pending

    def as_json(self) -> dict[str, int]:
        return {"matches": self.matches, **asdict(self)}


@dataclass
class Report:
    """An audit of the notifications accepted from `since_ms` on and before `until_ms`.

    `matches` is the number of deliveries of these notifications, `totals` are their states: the sums are equal without
    problems. Of the `notifications`, `system_notices` are the engine's own (those below the topic
    `topic_model.topics.SYSTEM`), `triggered` were published by triggers, and `replays` are replays of earlier ones; the
    others came from publishers. `waiting` notifications are not matched yet, nor are later ones. `duplicates` are
    deliveries that a receiver has taken more than once. `unbalanced` is the number of all `problems`, of which not all
    may be named, and `surplus` the number of those of this kind. `notes` are limits of the audit. With `order`, the
    order of this number of `first_attempts` was checked: `disordered` deliveries were out of order, and the `undecided`
    ones could not be checked.
    """

    since_ms: int
    until_ms: int
    notifications: int = 0
    system_notices: int = 0
    triggered: int = 0
    replays: int = 0
    matches: int = 0
    waiting: int = 0
    duplicates: int = 0
    totals: Tally = field(default_factory=Tally)
    subscriptions: dict[str, Tally] = field(default_factory=dict)
    unbalanced: int = 0
    surplus: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    deep: bool = False
    order: bool = False
    first_attempts: int = 0
    disordered: int = 0
    undecided: int = 0
    rows: int = 0
    seconds: float = 0.0

    @property
    def published(self) -> int:
        """The number that gateways count as accepted from publishers."""
        return self.notifications - self.system_notices - self.triggered - self.replays

    @property
    def balanced(self) -> bool:
        return self.unbalanced == 0

    @property
    def not_examined(self) -> tuple[str, ...]:
        return tuple(f"{what} (--{option} does)" for option, what in NOT_EXAMINED if not getattr(self, option))

    def add_problems(self, problems: list[Problem], count: int | None = None, limit: int = MAX_PROBLEMS) -> None:
        """Add problems; `count` is their number if not all are given."""
        self.unbalanced += len(problems) if count is None else count
        self.problems += problems[: max(0, limit - len(self.problems))]

    def as_json(self) -> dict[str, Any]:
        document = asdict(self) | {
            "balanced": self.balanced,
            "published": self.published,
            "totals": self.totals.as_json(),
        }
        document["not_looked_at"] = self.not_examined
        document["subscriptions"] = {name: tally.as_json() for name, tally in self.subscriptions.items()}
        return document
