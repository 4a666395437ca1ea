"""The embedded engine: a real Kafka broker, the gateway and the streaming job, started and watched by one supervisor.

Lives here: finding Java, fetching jars, starting and stopping processes, and saying how they are. Does not live here:
anything that knows what a notification is. A production installation runs the same gateway and the same job without
this package.
"""

from __future__ import annotations
