"""What every other package stands on: errors, settings, time, logs, secrets, telemetry.

    eventlog/   everything about Kafka: client, topics, reading, writing
    security/   keys, signatures, addresses, where may be connected to
    telemetry/  metrics, traces, the form of log lines
    errors      the root of all our exceptions
    settings    how a setting is declared
    versions    version numbers of the records in logs
    threads, backoff    every thread: a step that is repeated, its pauses, its failures, its stop
    xml         the parser for XML from outside
    liveness, wall_clock    something that hangs is found; times that survive a clock that is set
    fence       a job that has lost its logs does no harm

May live here: what two packages need and what knows nothing of notifications. May not: any import of another
package.
"""

from __future__ import annotations
