"""A real HTTP server for assets that counts, and that can be told to fail in the ways servers do."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE = 16_384


@dataclass
class AssetServer:
    """Serves `files` by path. Set the other fields to make it misbehave; read `requests` to see what was asked."""

    files: Mapping[str, bytes]
    url: str = ""
    ranges: bool = True
    """Honour Range."""
    say_length: bool = True
    """Send Content-Length; without it the end of the connection is the end of the file."""
    length: int | None = None
    """Content-Length to claim instead of the true one."""
    statuses: list[int] = field(default_factory=list)
    """Statuses to answer the next requests with, before anything is served."""
    cuts: list[int] = field(default_factory=list)
    """For the next requests: hang up after so many bytes of the body."""
    pause_at: int | None = None
    """Offset in the file at which to send nothing more until `resume` is set."""
    resume: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Path and Range header of every request, in order."""


class _Handler(BaseHTTPRequestHandler):
    asked: AssetServer

    def do_GET(self) -> None:
        server = self.asked
        server.requests.append((self.path, self.headers.get("Range", "")))
        content = server.files.get(self.path)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
        elif content is None:
            self.send_error(404)
        else:
            self._serve(server, content)

    def _serve(self, server: AssetServer, content: bytes) -> None:
        found = re.match(r"bytes=(\d+)-$", self.headers.get("Range", "")) if server.ranges else None
        start = int(found[1]) if found else 0
        if found and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if server.say_length:
            self.send_header("Content-Length", str(server.length or len(content) - start))
        self.end_headers()
        end = min(len(content), start + server.cuts.pop(0)) if server.cuts else len(content)
        with suppress(BrokenPipeError, ConnectionResetError):  # the client may go, as some tests want it to
            self._send(server, content, start, end)

    def _send(self, server: AssetServer, content: bytes, start: int, end: int) -> None:
        if server.pause_at is not None and start <= server.pause_at < end:
            self.wfile.write(content[start : server.pause_at])
            self.wfile.flush()
            server.resume.wait(60)
            start = server.pause_at
        for offset in range(start, end, PIECE):
            self.wfile.write(content[offset : min(end, offset + PIECE)])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the test reads `requests`."""


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[AssetServer]:
    """Run an AssetServer on a free port of loopback."""
    server = AssetServer(files)
    handler = type("Handler", (_Handler,), {"asked": server})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        listening.daemon_threads = True
        server.url = f"http://127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, name="asset server")
        thread.start()
        try:
            yield server
        finally:
            server.resume.set()
            listening.shutdown()
            thread.join(10)
