"""The bridge to an MQTT 5 broker, in the gateway with the lease. Needs the extra `mqtt`.

    rules      the file of rules: MQTT topics to receive, topics to send. No network
    incoming   from a message of the broker to a stored notification
    session    the connection with the persistent session, and the acknowledgements
    outgoing   outgoing rules as subscriptions
    bridge     both directions together

Outgoing messages are pushes (`dispatch/delivery/transport/mqtt.py`). The folder can be deleted, with that file,
`core/mqtt/`, and the lines in `engine/gateway/` that run it.
"""
