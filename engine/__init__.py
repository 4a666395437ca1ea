"""The processes of an engine, and what starts and supervises them.

    settings/       settings from files, environment and command line
    gateway/        the gateway process and its workers; the process of the ZeroMQ edges
    administrator/  the administrator of a federation
    embedded/       the embedded engine: Kafka, gateway, job and console under one supervisor
    processes/      child processes, their log files, ports and signals
    install/        Java, jars and the class archive; version and client package
    monitoring/     metrics endpoints, history, report
    terminal        output for people

Wiring only: it reads settings, builds the parts of `ingest` and `dispatch`, and runs them. It makes no decision about
notifications.
"""

from __future__ import annotations
