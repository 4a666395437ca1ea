"""HTTP: the ASGI application, uvicorn, TLS, and the bounds for hostile clients."""

from __future__ import annotations
