"""The operations, one module for each port type: from a request that was read to the answer.

`gateway` is what all of them share. A new operation goes here; `ingest.http.app` lists it.
"""
