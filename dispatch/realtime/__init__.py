"""The real-time gear: Spark's long-running tasks hand notifications on one by one, and a worker pushes each at once.

What comes with a batch in the other gear comes another way here: the driver tells the workers through the log `feed`
who is subscribed and whom not to push to, and hears from them through the log `progress` (`messages`).
"""

from __future__ import annotations
