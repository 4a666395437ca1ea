"""HTTP: the ASGI application, uvicorn, TLS, and the bounds for hostile clients."""
