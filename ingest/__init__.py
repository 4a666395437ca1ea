"""SOAP in, log out: the gateway's ASGI application and its operations.

    http/          HTTP and TLS under the application, and its bounds for hostile clients
    soap/          WSDL; envelopes of known shapes. Envelopes and faults are in `wire`
    elements/      the elements of requests: filters, policies, endpoints
    operations/    one module per port type, with ONVIF's and the older system's
    state/         the logs: followed, changed, appended to
    access/        authentication, rights, rates
    consumers      calls of the gateway to consumers, and their checks
    demand/        subscribing at publishers while their topics have subscribers
    cameras/, cloudevents/, events/, federation/, framed/, mqtt/, zeromq/
                   other protocols: each translates into `operations/publishing.py` and `operations/subscribing.py`

Contains every protocol for incoming messages. Not here: pushes (`dispatch`), management of processes and files of
settings (`engine`).
"""
