"""Programs that measure the engine, or take it apart under load: run by hand.

    dispatch/       from publishers to subscribers, and what a worker does: rates, delays, growth
    gateway/        accepting, pull points, the client library, what security costs
    model/          topics, routing tables, the control log, the topic directory
    operation/      the engine as a whole: starts, kills, redelivery, tables, audit
    peers/          side by side with Apache CXF and Apache Camel
    storms/         hours of kills, outages and load, and the judge of what they lost
    page/           docs/benchmarks.md: runs its parts, keeps their results, writes the page

    harness         arguments, tables and figures of a measurement
    dispatching     a real broker, the dispatch job, a receiver and a loader
    through_gateway publishers and the gateway before those

`python -m benchmarks.FOLDER.NAME --help`, or `make bench ARGS=NAME`. Brokers, clusters and receivers to measure with
are those of `tests.support`; of the tests nothing else is used here, and nothing that is installed imports this. The
programs' own tests are in tests/unit/benchmarks; tests/chaos runs a short storm.
"""

from __future__ import annotations
