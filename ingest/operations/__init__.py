"""The operations, one module for each port type: from a parsed request to the answer.

`gateway` has their common state. A new operation belongs here; `ingest.http.app` lists it.
"""
