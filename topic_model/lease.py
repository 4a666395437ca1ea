"""Which of several processes does what must be done once: a lease, decided by the order of a log.

Candidates follow the `lease` log. Whoever holds the lease appends a renewal every few seconds; when none has come for
`LEASE_S`, the others append claims for the next term, and the first of these in the log has it. Nobody needs another's
clock: everyone counts from when it saw a record. We took a log rather than a consumer group of Kafka's because the
decision is then a fold that can be tested, because the holder can tell by itself that it may have lost the lease, and
because nothing but reading and appending is asked of the broker.

Everything here is pure; `jobs.gateway.lease_keeper` reads and appends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from topic_model.errors import InfrastructureError, RecordVersionError

LEASE_LOG = "lease"

# After so long without a renewal a lease is free. Beside it a takeover takes up to a look (RENEW_S) and an append.
LEASE_S = 5.0
RENEW_S = 1.0

# A holder whose last renewal was sent so long ago stops: before anybody else can have begun.
HOLD_S = 4.0

KEY = b"duties"

VERSION = 1


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One word about the lease."""

    kind: Literal["claim", "renewal", "release"]
    holder: str
    term: int
    version: int = VERSION


def encode(record: LeaseRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    return KEY, msgspec.json.encode(record)


def decode(key: bytes, value: bytes | None) -> LeaseRecord:
    """Raises RecordVersionError for a newer Arborcast's, InfrastructureError for what is no lease record."""
    try:
        version = msgspec.json.decode(value or b"", type=_Version).version
        if version > VERSION:
            raise RecordVersionError(
                f"a lease record has version {version}, this Arborcast knows up to {VERSION}: upgrade it first"
            )
        return msgspec.json.decode(value or b"", type=LeaseRecord)
    except msgspec.MsgspecError as error:
        raise InfrastructureError(f"not a lease record: {error}") from error


class _Version(msgspec.Struct):
    version: int


@dataclass
class Lease:
    """The lease as one candidate sees it. Times are seconds of one monotonic clock.

    `me` is this process and no other: a name that stays when the process is started again, then # and anything.
    """

    me: str
    holder: str = ""
    term: int = 0
    seen: float = float("-inf")

    def apply(self, record: LeaseRecord, now: float) -> None:
        """The log's next record. Of several claims for a term the first counts; what a past term says does not."""
        # A renewal counts even where another's claim seemed to be the first: then the log's beginning is gone, and all
        # that was left of the term were claims that came second.
        if record.term < self.term or (record.kind == "claim" and record.term == self.term):
            return
        self.term = record.term
        self.holder = "" if record.kind == "release" else record.holder
        self.seen = now

    def next(self, now: float) -> LeaseRecord | None:
        """What to append now: a renewal of what is ours, a claim of what is free, or nothing."""
        if self.mine:
            return LeaseRecord(kind="renewal", holder=self.me, term=self.term)
        # What an earlier process of our name held is free: it is gone, or we could not listen where it did.
        free = not self.holder or self.holder.partition("#")[0] == self.me.partition("#")[0]
        if free or now - self.seen > LEASE_S:
            return LeaseRecord(kind="claim", holder=self.me, term=self.term + 1)
        return None

    @property
    def mine(self) -> bool:
        """Whether it is ours, as far as we have read."""
        return self.holder == self.me

    def release(self) -> LeaseRecord | None:
        """What tells the others not to wait; None when the lease is not ours."""
        return LeaseRecord(kind="release", holder=self.me, term=self.term) if self.mine else None
