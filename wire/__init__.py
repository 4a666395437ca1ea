"""WS-Notification as bytes, for both sides: what the gateway reads and the client writes, and the other way round.

    envelope, xml_reading, fragments   reading a SOAP message; cutting payloads out of it
    answers, faults, errors            writing answers; faults, and the exceptions behind them
    topics, endpoints, times           elements that many messages have
    frames                             the frames of the framed TCP edge

May live here: formats that the client and the gateway share. May not: sockets, Kafka, rights.
"""

from __future__ import annotations
