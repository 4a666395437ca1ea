"""The framed TCP edge: publishers and subscribers that keep one connection, and send small binary frames.

    session   what one connection asks for: who it is, what it publishes, what it subscribes to
    server    the connections: accepted, bounded, swept

Its frames are in `wire.frames`. A door beside SOAP to the same `Gateway`: the same rights, rates, logs and tables. The
folder can be deleted; then `engine/gateway/process.py` has one part less.
"""
