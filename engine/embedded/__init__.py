"""The embedded engine: a Kafka broker, the gateway and the streaming job, started and watched by one supervisor.

What its parts are (`engine`, `kafka_broker`), how one part is run and asked whether it lives (`parts`, `questions`),
the loop over them (`supervisor`), and what lies in the data directory (`home`, `state`). Nothing here knows what a
notification is; a production installation runs the same gateway and the same job without this package.
"""

from __future__ import annotations
