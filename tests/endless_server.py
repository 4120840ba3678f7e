"""A web server whose answers have no end, whatever was asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b'<a href="a.png">a.png</a>'


@contextmanager
def endless_server(nbytes: int, *, sends_ranges: bool) -> Iterator[str]:
    """Run a server that says that every file has `nbytes`, and yield its URL; /photos/ is a page with a link.

    Args:
        nbytes: The size in answers to HEAD.
        sends_ranges: Whether answers say that they are the range that was asked for.
    """

    class Endless(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(nbytes))
            self.end_headers()

        def do_GET(self) -> None:
            if self.path.strip("/") == "photos":
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(PAGE)))
                self.end_headers()
                self.wfile.write(PAGE)
                return
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            self.send_response(206 if sends_ranges else 200)
            if sends_ranges:
                self.send_header("Content-Range", f"bytes {first}-{last}/{10**15}")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
            except OSError:  # the client has had enough
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
