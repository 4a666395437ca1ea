"""SOAP: envelopes read and written, faults, times, payloads cut out of a message, WSDL."""

from __future__ import annotations
