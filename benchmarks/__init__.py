"""Programs that measure the engine, or kill its parts under load: run by hand.

    throughput, latency             from publishers, or from the log, to subscribers; over links between engines
    gateway                         what one gateway process accepts: edges, its floor, authentication, pull points,
                                    cameras
    redelivery                      backlogs of dead endpoints, bad receivers
    tables, console                 recording and audit; pages in a browser
    engine                          starts, idling, kills of each part
    model                           micro-benchmarks
    peers/                          side by side with Apache CXF, Apache Camel, and bare floors of our own
    storms/                         hours of kills, outages and load, and the judge of what they lost

    report      arguments, tables, JSON
    load        the one load driver, a process of its own
    rig         a broker, the dispatch job, a gateway and a receiver, and the check of each run

`python -m benchmarks.NAME --help`, or `make bench ARGS=NAME`. Brokers, clusters and receivers are those of
`tests.support`; nothing that is installed imports this. The programs' own tests are in tests/unit/benchmarks;
tests/chaos runs a short storm.
"""

from __future__ import annotations
