"""The base of all packages: errors, settings, time, logs, secrets, telemetry.

    eventlog/   Kafka: client, topics, reading, writing
    security/   keys, signatures, addresses, the outbound policy
    telemetry/  metrics, traces, the format of log lines
    errors      the exception tree
    settings    declarations of settings
    versions    version numbers of the records in logs
    threads, backoff    threads that repeat a step, with pauses, retries and a stop
    xml         the parser for untrusted XML
    liveness, wall_clock    detection of hanging processes; waits that survive a clock that is set back
    fence       pushes of a job only while it holds its lease

Code that two packages use and that does not depend on notifications belongs here. It imports no other package.
"""

from __future__ import annotations
