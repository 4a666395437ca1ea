"""Log in, pushes out: the streaming job, the sink that runs in Spark's workers, and what they record.

    hot/            a batch: from the log to the receivers that answer
    redelivery/     what waits, tried again beside the batches
    delivery/       one push: envelope, transport, outcome, what follows from it
    matching/       what the workers match with: the routing table's base and overlay, content filters
    logs/           the records that dispatch writes
    recording/, tables/     what happened, as Delta tables
    operations/     for operators: dead letters, replay, trace, audit
    monitoring/     the job's figures
    job/, spark/    the job as a whole; Spark

May live here: everything between the `notifications` log and a subscriber's endpoint, and the tables that say what
happened. May not: SOAP parsing of requests (that is `ingest`), process management and settings files (`engine`).
Code that runs in Spark's Python workers lives in importable modules here, never in a script.
"""

from __future__ import annotations
