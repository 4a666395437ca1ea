"""An HTTP server whose answers are made by a function of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, bytes, Mapping[str, str]]
"""Status, body and headers."""


class AnsweringServer(ThreadingHTTPServer):
    """Each request is answered by the function of its path, body and headers (in lower case; the method is `:method`),
    until `stop`."""

    daemon_threads = True
    request_queue_size = 1_000

    def __init__(self, answer: Callable[[str, bytes, Mapping[str, str]], Answer]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                received = {name.lower(): value for name, value in self.headers.items()}
                status, content, headers = answer(self.path, body, {**received, ":method": self.command})
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_OPTIONS = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.port: int = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Disconnects of clients are no errors."""

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(120)
