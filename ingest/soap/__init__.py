"""SOAP at the gateway: its WSDL, and envelopes of known shapes. Reading and writing of envelopes is in `wire`."""
