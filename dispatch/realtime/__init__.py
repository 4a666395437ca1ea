"""The real-time mode: long-running Spark tasks stream notifications one by one, and a worker pushes each at once.

The driver writes subscriptions and exclusions to the log `feed`; the workers write their progress to `progress`.
"""

from __future__ import annotations
