"""CloudEvents 1.0 at the gateway.

    publishing   POST /publish with an event in binary or structured mode, or with a batch of events
    web_hooks    the validation of Web Hooks for Event Delivery 1.0, of both sides

Pushed events are a form of a subscription: `topic_model.cloud_events`, `dispatch/delivery/envelope.py`. The folder can
be deleted; then `ingest/http/app.py` and `ingest/consumers.py` have one branch less.
"""
