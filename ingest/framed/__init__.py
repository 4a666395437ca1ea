"""The framed TCP edge: publishers and subscribers that keep one connection, and send small binary frames.

    session         the requests of one connection, and its authentication
    publishing      its publications
    subscriptions   its subscriptions, and the messages that it gets
    messages        conversions between frames and payloads. Pure
    server          the connections: accepted, bounded, swept

Its frames are in `wire.frames`. It uses the same `Gateway` as SOAP: the same rights, rates, logs and tables. The folder
can be deleted with its part in `engine/gateway/process.py`.
"""
