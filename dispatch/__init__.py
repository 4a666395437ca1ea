"""Log in, pushes out: the streaming queries, the sink that runs in Spark's workers, and what they record.

    hot/            a batch: from the log to the receivers that answer
    redelivery/     what waits: tried again beside the batches; `redeliverer` is its thread
    matching/       what the workers match with: the routing table's base and overlay, content filters
    recording/, tables/     what happened, as Delta tables
    trace/, audit/  why it did (not) arrive; whether everything is accounted for
    dead_search, dead_desk, replay      for operators, over the logs, beside a running job
    monitoring/     the job's figures
    transport/      how a push leaves, and where it may go

    runtime         the job as a whole: gate and keeper (stopping, restarting), checkpoint (mending it after a crash,
                    with batch_numbers that go on when it is lost)
    outcomes, soap_faults, retry, verdict       from an answer to what follows from it (pure)
    health, health_book                         what that says of the endpoint (pure; what is known of all)
    attempts, attempts_log, durable_writer      writing it down
    envelope, guard, push_spans     the bytes of a push; signatures and credentials; its span
    room            how much may be under way where (pure)
    operator_events what operators are told, as notifications
    wall_clock      times that something waits for, though somebody may set the clock (pure)
    worker_daemon, spark_properties, source     Spark
    heart, pulse, worker_beats  that the job hangs, or a worker of it, is found

May live here: everything between the `notifications` log and a subscriber's endpoint, and the tables that say what
happened. May not: SOAP parsing of requests (that is `ingest`), process management and settings files (`jobs`).
Code that runs in Spark's Python workers lives in importable modules here, never in a script.
"""

from __future__ import annotations
