"""The embedded engine: a Kafka broker, the gateway, the streaming job and the console under one supervisor.

`engine` and `kafka_broker` define the parts, `parts` runs one and `questions` checks it, `supervisor` is the loop over
them, `home` and `state` are the data directory. A production installation runs the same gateway and job without this
package.
"""

from __future__ import annotations
