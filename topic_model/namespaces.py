"""Namespaces and names of the wire format; names in the form `{namespace}name` of lxml."""

from __future__ import annotations

from functools import partial

SOAP11 = "http://schemas.xmlsoap.org/soap/envelope/"
SOAP12 = "http://www.w3.org/2003/05/soap-envelope"
SOAP_FAULTS = (f"{{{SOAP11}}}Fault", f"{{{SOAP12}}}Fault")
WSA = "http://www.w3.org/2005/08/addressing"
WSSE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd"
WSNT = "http://docs.oasis-open.org/wsn/b-2"
WSNT_SLASH = "http://docs.oasis-open.org/wsn/b-2/"
"""WSNT as some clients of HPwsn write it."""
HPWSN = "http://org.apache.servicemix.application"
"""The namespace of WsnProcess, HPwsn's only operation."""
HPWSN_PUSH = "http://org.apache.servicemix.wsn.push"
"""The namespace of pushes to HPwsn's subscribers."""
WSN_BR = "http://docs.oasis-open.org/wsn/br-2"
WSRF_BF = "http://docs.oasis-open.org/wsrf/bf-2"
WSRF_R = "http://docs.oasis-open.org/wsrf/r-2"
WSRF_RL = "http://docs.oasis-open.org/wsrf/rl-2"
WSRF_RP = "http://docs.oasis-open.org/wsrf/rp-2"
WSTOP = "http://docs.oasis-open.org/wsn/t-1"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
DSUB = "urn:ihe:iti:dsub:2009"
ARBORCAST_POLICY = "urn:arborcast:policy"
ARBORCAST_OUTBOUND = "urn:arborcast:outbound"
ARBORCAST_DELIVERY = "urn:arborcast:delivery"
ARBORCAST_QUEUE = "urn:arborcast:queue"

# One prefix for each namespace in all answers.
PREFIXES = {
    WSA: "wsa",
    WSNT: "wsnt",
    WSN_BR: "wsn-br",
    WSRF_BF: "wsrf-bf",
    WSRF_R: "wsrf-r",
    WSRF_RL: "wsrf-rl",
    WSRF_RP: "wsrf-rp",
}

# Some consumers compare topics as text (Home Assistant does), so topics of cameras and hospitals have the prefixes of
# their specifications.
TOPIC_PREFIXES = {
    "http://www.onvif.org/ver10/topics": "tns1",
    "http://www.axis.com/2009/event/topics": "tnsaxis",
    "http://www.hikvision.com/2011/event/topics": "tnshik",
    DSUB: "ihe",
}

ACTION_BW = "http://docs.oasis-open.org/wsn/bw-2"
ACTION_BRW = "http://docs.oasis-open.org/wsn/brw-2"
ACTION_RPW = "http://docs.oasis-open.org/wsrf/rpw-2"
ACTION_RLW = "http://docs.oasis-open.org/wsrf/rlw-2"
WSN_FAULT_ACTION = "http://docs.oasis-open.org/wsn/fault"
WSRF_FAULT_ACTION = "http://docs.oasis-open.org/wsrf/fault"
WSA_FAULT_ACTION = "http://www.w3.org/2005/08/addressing/fault"


MESSAGE_TYPE = f"{{{ARBORCAST_POLICY}}}MessageType"
"""Arborcast's filter by types of messages."""

CURRENT_MESSAGE = f"{{{ARBORCAST_POLICY}}}CurrentMessage"
"""Arborcast's subscription policy to get the current messages of the topics at once."""


def _name(namespace: str, name: str) -> str:
    return f"{{{namespace}}}{name}"


# Names in these namespaces.
wsnt = partial(_name, WSNT)
wsn_br = partial(_name, WSN_BR)
wsrf_rp = partial(_name, WSRF_RP)
wsrf_rl = partial(_name, WSRF_RL)
wsa = partial(_name, WSA)
