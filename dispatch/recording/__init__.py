"""From the logs to the Delta tables, beside the pushes.

Each table follows its log from Kafka and has its position in its own commits (`follower`), in threads of the driver,
written by delta-rs: a commit takes 10 ms, and seconds in Spark's sink.
"""

from __future__ import annotations
