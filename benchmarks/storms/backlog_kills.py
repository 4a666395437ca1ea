"""What a kill in the middle of a backlog repeats: a receiver that knows what it had before each kill.

    python -m benchmarks.storms.backlog_kills [--backlog 20000] [--kills 5] [--subscribers 20] [--together 1]

starts a broker and the job, kills the job again and again while it works through one batch, and prints of each kill
what came again after it, beside what was under way at its moment and what had arrived in the tenth of a second before.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from arborcast.core.settings import KafkaSettings
from tests.support.broker import new_broker, settings_for
from tests.support.dispatch_job import Logs, logs, subscription
from tests.support.dispatch_process import DispatchProcess
from tests.support.receiver import Received, Receiver

_LAST_S = 0.1

_STALLED_S = 300.0


@dataclass
class Arrivals:
    """What has arrived, in order: when, where, which notifications."""

    pushes: list[tuple[float, str, list[str]]] = field(default_factory=list)
    count: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, request: Received) -> None:
        """A push has arrived."""
        names = request.headers["arborcast-notification-id"].split(",")
        with self.changed:
            self.pushes.append((request.at, request.path, names))
            self.count += len(names)
            self.changed.notify_all()

    def different(self) -> int:
        """How many deliveries have arrived, each counted once."""
        return len({(path, name) for _, path, names in self.pushes for name in names})

    def wait_for(self, count: int) -> None:
        """Until so many different deliveries have arrived."""
        with self.changed:
            while self.different() < count:
                assert self.changed.wait(_STALLED_S), f"{self.different()} of {count} arrived, and then no more"


@dataclass(frozen=True)
class Kill:
    """What a kill came to, in deliveries: how many had arrived `before` it; how many of those came `again` after it;
    how many were `under_way` at its moment (not answered, or just then), and how many the `last` tenth of a second
    before had brought."""

    before: int
    again: int
    under_way: int
    last: int


def fill(log: Logs, receiver: Receiver, backlog: int, subscribers: int) -> None:
    """A topic for each subscriber, and a backlog spread over them."""
    log.subscribe(
        *(subscription(f"s{each}", receiver.url(f"/s{each}"), f"backlog/t{each}") for each in range(subscribers))
    )
    log.notify_many(f"backlog/t{number % subscribers}" for number in range(backlog))


def kills_in_backlog(
    home: Path, kafka: KafkaSettings, backlog: int, kills: int, subscribers: int, answer_s: float, together: int
) -> list[Kill]:
    """Have a backlog worked through by a job that is killed so often meanwhile."""
    arrivals, moments = Arrivals(), []
    job = DispatchProcess(home, kafka, {"push.max_notify_messages": together})
    with Receiver(on_received=arrivals.note) as receiver, logs(kafka) as log:
        for each in range(subscribers):
            receiver.behave(f"/s{each}", f"slow/{answer_s}")
        fill(log, receiver, backlog, subscribers)
        try:
            for number in range(1, kills + 1):
                job.start()
                arrivals.wait_for(backlog * number // (kills + 1))
                began = time.time()
                job.kill()
                moments.append((began, time.time()))
            job.start()
            arrivals.wait_for(backlog)
            assert job.terminate() == 0
        finally:
            job.kill()
    return judge(arrivals, moments, answer_s)


def judge(arrivals: Arrivals, moments: list[tuple[float, float]], answer_s: float) -> list[Kill]:
    """What each kill came to; `moments` are when it began and when everything was dead."""
    seen: set[tuple[str, str]] = set()
    found, again = [], Counter[int]()
    for at, path, names in arrivals.pushes:
        killed = sum(ended <= at for _, ended in moments)
        again[killed] += sum((path, name) in seen for name in names)
        seen.update((path, name) for name in names)
    for number, (began, ended) in enumerate(moments, 1):

        def between(since: float, until: float) -> int:
            return sum(len(names) for at, _, names in arrivals.pushes if since < at <= until)

        answered = began - answer_s
        found.append(
            Kill(between(0, ended), again[number], between(answered, ended), between(answered - _LAST_S, answered))
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backlog", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--subscribers", type=int, default=20)
    parser.add_argument("--together", type=int, default=1, help="messages in a push at most")
    parser.add_argument("--answer", type=float, default=0.02, help="seconds until the receiver answers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backlog-") as folder:
        broker = new_broker(Path(folder) / "kafka")
        broker.start()
        try:
            kills = kills_in_backlog(
                Path(folder) / "job",
                settings_for(broker),
                options.backlog,
                options.kills,
                options.subscribers,
                options.answer,
                options.together,
            )
        finally:
            broker.kill()
    print("kill  arrived before  came again  under way  in the last 100 ms before")
    for number, each in enumerate(kills, 1):
        print(f"{number:4}  {each.before:14}  {each.again:10}  {each.under_way:9}  {each.last:25}")
    print(f"{sum(each.again for each in kills)} of {options.backlog} came again")


if __name__ == "__main__":
    main()
