"""Whether those who get little wait for those who get much: one backlog of many messages, one message for others.

    python -m tests.benchmarks.fairness [--quick] [--json FILE]

All are in the log before the job sees the first. One message per request, each receiver takes 2 ms to answer.
"""

from __future__ import annotations

from tests.benchmarks._harness import Report, run
from tests.benchmarks.dispatching import dispatching
from tests.benchmarks.subscribers import raw_subscriptions


def measure(report: Report) -> None:
    backlog, others = (1_000, 10) if report.quick else (10_000, 100)
    with dispatching({"dispatch.max_rows_per_batch": 100_000}, partitions=1) as bench:
        url = bench.receiver_url
        bench.control(raw_subscriptions({"much": f"{url}/slow/0.002"}, "bench/topic0"))
        little = {f"little{number}": f"{url}/little{number}" for number in range(others)}
        bench.control(raw_subscriptions(little, "bench/topic1"))
        columns = ("waiting for one", "others", "backlog done, ms", "first of the others, ms", "last of the others, ms")
        with report.table("one partition of one batch", *columns) as table:
            for number in range(3):
                bench.clear()
                # Of two topics in turn: the last one goes to the others.
                bench.append([f"f{number}-{each}" for each in range(backlog)], topics=1)
                bench.append([f"g{number}-0", f"g{number}-1"], topics=2)
                arrived = bench.arrivals(backlog + 1 + others, timeout=20)
                began = min(arrival.at for arrival in arrived)
                much = [arrival.at for arrival in arrived if "slow" in arrival.path]
                rest = [arrival.at for arrival in arrived if "little" in arrival.path]
                table.add(
                    len(much),
                    len(rest),
                    (max(much) - began) * 1e3,
                    (min(rest) - began) * 1e3,
                    (max(rest) - began) * 1e3,
                )


if __name__ == "__main__":
    run("fairness", measure)
