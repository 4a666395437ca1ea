"""From the logs to the Delta tables, off the hot path.

Each table follows its log straight from Kafka and says in its own commits how far it is (`follower`). All of it runs in
threads of the driver and is written through delta-rs: a commit takes 10 ms there, seconds in Spark's own sink.
"""

from __future__ import annotations
