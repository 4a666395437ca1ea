"""Log in, pushes out: the streaming job, the sink that runs in Spark's workers, and their records.

    hot/            a batch: from the log to the receivers that answer
    realtime/       notifications one by one; changes between the modes
    redelivery/     parked deliveries, pushed again beside the batches
    queues/         work queues: requests to one server each, beside them
    delivery/       one push: envelope, transport, outcome, decision
    matching/       matching in workers: the routing table's base and overlay, content filters
    logs/           the records that dispatch writes
    recording/, tables/     the history, as Delta tables
    operations/     for operators: dead letters, replay, trace, audit
    monitoring/     the job's figures
    job/, spark/    the job; Spark

In this package: everything between the `notifications` log and a subscriber's endpoint, and the tables of the history.
Not here: SOAP parsing of requests (`ingest`), process management and settings files (`engine`). Code that runs in
Spark's Python workers is in importable modules here, never in a script.
"""

from __future__ import annotations
