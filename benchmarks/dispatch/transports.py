"""libcurl and requests-futures as the transport of the hot lane, end to end in one run, each with a job of its own.

python -m benchmarks.dispatch.transports [--quick] [--json FILE]
"""

from __future__ import annotations

from benchmarks.dispatch.subscribers import raw_subscriptions
from benchmarks.harness import Report, run
from benchmarks.through_gateway import OUTCOME, rig


def measure(report: Report) -> None:
    seconds = 3.0 if report.quick else 12.0
    columns = ("case", "transport", *OUTCOME, "workers' CPU, us each")
    with report.table("end to end", *columns, note="one message per request where it says single") as table:
        for transport in ("curl", "futures"):
            with rig({"push.transport": transport}) as running:
                base = running.bench.receiver_url
                running.bench.subscribe(["one"], topic="{urn:t}bench//.")
                running.bench.control(raw_subscriptions({"single": f"{base}/single"}, "{urn:t}single//."))
                wide = [f"ten{number}" for number in range(10)]
                running.bench.control(raw_subscriptions({name: f"{base}/{name}" for name in wide}, "{urn:t}wide//."))
                running.run(["/one"], 16, 3)
                for case, paths, topic, rate in (
                    ("500/s, single", ["/single"], "single/p", 500),
                    ("16 publishers, 1 subscriber", ["/one"], "bench/p", None),
                    ("16 publishers, 1 subscriber, single", ["/single"], "single/p", None),
                    ("8 publishers, 10 subscribers, single", [f"/{name}" for name in wide], "wide/p", None),
                ):
                    outcome = running.run(paths, 8 if "8 " in case else 16, seconds, rate, topic=topic)
                    spent = outcome.cpu.get("worker", 0.0) / max(outcome.delivered, 1) * 1e6
                    table.add(case, transport, *outcome.cells(), spent)


if __name__ == "__main__":
    run(measure)
