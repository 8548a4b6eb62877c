"""An HTTP server on this machine that serves files with Range and can misbehave."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    """For each of the next answers: how many bytes of the body are sent before the connection is closed."""
    ignores_range: bool = False
    statuses: list[int] = field(default_factory=list)
    """For each of the next answers: this error instead."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.requests.append((self.path, wanted))
            if site.statuses:
                return self.send_error(site.statuses.pop(0))
            content = site.files.get(self.path.removeprefix("/"))
            if content is None:
                return self.send_error(404)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not site.ignores_range else 0
            if start >= len(content) > 0:
                return self.send_error(416)
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            body = content[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if site.cut_after:
                body = body[: site.cut_after.pop(0)]
                self.close_connection = True
            self.wfile.write(body)
            return None

    return Handler


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(site))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
