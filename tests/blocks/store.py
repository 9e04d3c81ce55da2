"""A store on loopback that opens with the right token only, and quotes wrong and right ones in its errors."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar


class Store(BaseHTTPRequestHandler):
    """``files`` by name; one whose text starts with ``BROKEN`` cannot be read."""

    protocol_version = "HTTP/1.1"
    token: ClassVar[str] = ""
    files: ClassVar[dict[str, bytes]] = {}

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        given = self.headers.get("Authorization", "")
        name = self.path.removeprefix("/docs/")
        data = self.files.get(name)
        if given != f"Bearer {self.token}":
            self._send(401, f"not with {given}", b"", body=body)
        elif self.path == "/docs/":
            links = "".join(f'<a href="{each}">{each}</a>\n' for each in self.files)
            self._send(200, "OK", f"<html>{links}</html>".encode(), body=body, kind="text/html")
        elif data is None:
            self._send(404, "Not Found", b"", body=body)
        elif data.startswith(b"BROKEN") and body:
            self._send(500, f"broken for {given}", b"", body=body)
        else:
            self._send(200, "OK", data, body=body)

    def _send(self, status: int, reason: str, data: bytes, *, body: bool, kind: str = "text/plain") -> None:
        self.send_response(status, reason)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def a_store(token: str, files: dict[str, bytes]) -> Generator[str]:
    """The URI of a folder that holds these files."""
    handler = type("OneStore", (Store,), {"token": token, "files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/docs/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
