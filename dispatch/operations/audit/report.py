"""What an audit has found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal[
    "missing",  # fewer deliveries than subscriptions it was for, though its batch is done
    "unfinished",  # the same, but its batch is the newest: the job was not through with it, or was cut off
    "surplus",  # more deliveries than subscriptions
    "unevaluated",  # no batch has ever looked at it, though later ones of its partition were
    "unreadable",  # the same, and its record is damaged: no batch ever will
    "unmatched",  # it has deliveries, but no batch has said for how many it was
    "not-delivered",  # --deep: this subscription should have had it, and has no row
    "not-parked",  # --deep: its last row says that it waits, but it is not among what waits
    "no-letter",  # --deep: its last row says that it was given up, but its message was not kept
    "out-of-order",  # --order: its first attempt was behind that of a later one of its topic and priority
    "out-of-turn",  # --order: a later one of its topic was pushed to a strict subscription before its end
    "repeated",  # --order: it was pushed again though the process that had ended it went on
]
"""How a notification does not balance."""

PROBLEMS: dict[Kind, str] = {
    "missing": "fewer deliveries than subscriptions",
    "unfinished": "fewer deliveries than subscriptions; its batch is the newest, and is not finished",
    "surplus": "more deliveries than subscriptions",
    "unevaluated": "not evaluated, although later notifications of its partition were",
    "unreadable": "its record is damaged, so no batch can deliver it",
    "unmatched": "has deliveries, but the number of its recipients was not recorded",
    "not-delivered": "the subscription should have it, and has no row",
    "not-parked": "its row says that it waits, and it is not among the waiting deliveries",
    "no-letter": "its row says that it was given up, and it is not among the dead letters",
    "out-of-order": "its first attempt was behind that of a later one of its topic and priority",
    "out-of-turn": "a later one of its topic was pushed before its end, to a strict subscription",
    "repeated": "pushed again more than a minute after its end, though no crash came between",
}

NOT_LOOKED_AT = (
    ("deep", "whether each notification was matched with all its recipients"),
    ("deep", "whether the messages of waiting deliveries and dead letters are stored"),
    ("order", "whether the pushes were made in the order of acceptance"),
)
"""What only an examination with this option looks at."""

MAX_PROBLEMS = 100
"""So many are named unless said otherwise; all are counted."""


@dataclass(frozen=True)
class Problem:
    """A notification that does not balance. `matched` is how many subscriptions it was for, `found` how many of them
    have a delivery; `subscription` is empty when it is not known which one is concerned; `accepted_ms` and `topic` are
    0 and empty when they are not known; `partition` and `offset`, in the notifications log, are -1 then."""

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
    """How many deliveries have come to what."""

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

    `matches` is the number of deliveries of these notifications, `totals` are their states: the sums are equal when
    nothing is amiss. Of the `notifications`, `system_notices` are the engine's own (those below the topic
    `topic_model.topics.SYSTEM`), `triggered` were published by triggers, and `replays` are replays of earlier ones; the
    others came from publishers. `waiting` notifications are not matched yet, nor are later ones. `duplicates` are
    deliveries that a receiver has taken more than once. `unbalanced` is the number of all `problems`, of which not all
    may be named. `notes` are limits of the audit. With `order`, the order of this number of `first_attempts` was
    checked: `disordered` deliveries were out of order, and of the `undecided` ones that cannot be known.
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
        """What publishers have sent: what a gateway counts as accepted."""
        return self.notifications - self.system_notices - self.triggered - self.replays

    @property
    def balanced(self) -> bool:
        """Whether everything is accounted for."""
        return self.unbalanced == 0

    @property
    def not_looked_at(self) -> tuple[str, ...]:
        """What may be wrong although everything balances."""
        return tuple(f"{what} (--{option} does)" for option, what in NOT_LOOKED_AT if not getattr(self, option))

    def blame(self, problems: list[Problem], count: int | None = None, limit: int = MAX_PROBLEMS) -> None:
        """Add problems; `count` is how many there are when not all of them are given."""
        self.unbalanced += len(problems) if count is None else count
        self.problems += problems[: max(0, limit - len(self.problems))]

    def as_json(self) -> dict[str, Any]:
        document = asdict(self) | {
            "balanced": self.balanced,
            "published": self.published,
            "totals": self.totals.as_json(),
        }
        document["not_looked_at"] = self.not_looked_at
        document["subscriptions"] = {name: tally.as_json() for name, tally in self.subscriptions.items()}
        return document
