"""From the logs to the Delta tables, at the same time as the pushes.

Each table follows its log from Kafka and has its position in its own commits (`follower`), in threads of the driver.
delta-rs writes it: a commit takes 10 ms, in Spark's sink seconds.
"""

from __future__ import annotations
