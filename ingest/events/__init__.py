"""Server-sent events: GET /events/TOPIC-EXPRESSION is a stream of CloudEvents, or JSON lines.

    request   the subscription and the position that a request names
    stream    one stream, over the pull point of its subscription

The folder can be deleted; then `ingest/http/app.py` has one address less.
"""
