"""Log in, pushes out: the streaming queries, the sink that runs in Spark's workers, and what they record.

    on the driver     runtime (the job), stream (the hot query), record (attempts to Delta),
                      view, rebasing and bases (what the workers match with), gate and keeper (stopping, restarting),
                      warmup, source, tables, spark_properties
    in the workers    worker_daemon, sink, filters, attempts_log
    pure              lanes, pump (over any transport), envelope, outcomes, attempts
    for operators     audit/, dead_search, dead_desk, replay: over the logs, beside a running job
    transport/        how a push leaves, and where it may go: contract, curl, futures

May live here: everything between the `notifications` log and a subscriber's endpoint, and the tables that say what
happened. May not: SOAP parsing of requests (that is `ingest`), process management and settings files (`jobs`).
Code that runs in Spark's Python workers lives in importable modules here, never in a script.
"""

from __future__ import annotations
