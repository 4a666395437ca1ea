"""Log in, pushes out: the streaming query, the sink that runs in Spark's workers, and what they record.

A batch goes through `hot`, what waits through `redelivery`; both make their pushes with `delivery`. What the workers
match with is in `matching`, the records of the logs in `logs`, the Delta tables in `tables`, and what writes them
in `recording`. `job` puts it together; `operations` is for people, beside a running job.

May live here: everything between the `notifications` log and a subscriber's endpoint, and the tables that say what
happened. May not: SOAP parsing of requests (that is `ingest`), process management and settings files (`jobs`).
Code that runs in Spark's Python workers lives in importable modules here, never in a script.
"""

from __future__ import annotations
