"""SOAP in, log out: the gateway's ASGI application and its operations.

    http/          HTTP and TLS under the application, and its bounds for hostile clients
    soap/          WSDL; envelopes of known shapes. Envelopes and faults are in `wire`
    elements/      what requests are made of: filters, policies, judged endpoints
    operations/    one module per port type, with ONVIF's and the older system's
    state/         the logs: followed, changed, appended to
    access/        who may do what, and how much of it
    consumers      calls of the gateway to consumers, and their checks
    agreement      the question to consumers, and its answer
    demand/        subscribing at publishers while their topics are wanted

May live here: everything that speaks WS-Notification to the outside. May not: pushing (that is `dispatch`), process
management and settings files (that is `engine`).
"""
