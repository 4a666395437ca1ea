"""SOAP in, log out: the gateway's ASGI app, one module per port type, faults, and the client library.

    serving, http_protocol    HTTP: uvicorn, and bounds for hostile clients
    app                 from an HTTP request to an operation and back
    inflight, memory    how much memory requests may hold together, and giving it back
    tag_limits          how much a request may hold in tags, and one tag
    xml_reading, envelope, answers, faults, errors, namespaces   SOAP: reading, answering, refusing
    notification_broker, subscription_manager              the port types
    topic_reading, filters, endpoints, fragments, termination, addresses, ids     what requests are made of
    delivery_wish, protection, secret_operations           what subscribers ask for: tries, signatures, others later
    expression_writing                                     topic expressions in what we write
    access/, quotas                                        who may do what, and how much of it
    resource_properties, resource_lifetime                 WSRF, on what the port types have made
    topic_sets          the topics as they are answered
    pull_points, pull_queues, pull_view                    messages that are fetched, not pushed
    publishers/                                            registration, and subscribing at publishers on demand
    onvif/                                                 ONVIF's event service on top
    legacy/                                                the envelope of HPwsn
    current_message, retained                              the last message of topics that keep it
    service_wsdl, oasis                                    what ?wsdl answers
    lookups, ownership, outgoing    consumers' hosts looked up, consumers asked; how the gateway itself calls somebody
    gateway             what all operations share
    log_view, view, log_end, changes, notification_log     the logs: followed, changed, appended to
    expiry, request_metrics     what runs beside the requests
    repeats, repeats_history    requests that come again
    client/, listener, received, verification    for publishers and subscribers written in Python

May live here: everything that speaks WS-Notification to the outside. May not: pushing (that is `dispatch`), process
management and settings files (that is `jobs`). Nothing here imports `dispatch` or `jobs`.
"""

from __future__ import annotations
