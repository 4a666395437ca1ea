"""The wire format of WS-Notification, for gateway and client.

    envelope, xml_reading, fragments   reading a SOAP message; cutting payloads out of it
    answers, faults, errors            writing answers; faults, and the exceptions behind them
    topics, endpoints, times           common elements
    frames                             the frames of the framed TCP edge

Formats that the client and the gateway share belong here; sockets, Kafka and rights do not.
"""

from __future__ import annotations
