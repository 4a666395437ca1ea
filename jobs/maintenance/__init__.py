"""What an operator does now and then: backup and restore, a copy of the data directory, sealing secrets again, a bundle
for a Spark cluster.

A backup of the logs can fill any Kafka. Offsets cannot be restored, and much in the logs speaks of offsets, so it does
not hold copies of the logs, but what a new engine must know in order to go on: every topic, subscription, pull point
and registration; what waits in pull points; dead letters; and each undelivered notification, in order. What was settled
is history: it is in the tables, which are backed up as files are.
"""

from __future__ import annotations
