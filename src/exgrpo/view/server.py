"""A small read-only server of the page, for one reader on this machine who knows its address."""

import hmac
import json
import logging
import secrets
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import ConfigurationError, ExGRPOError
from .assets import FILES, page, read
from .evaluation import Evaluation
from .run import NotThere, Run

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
FIRST_PORT, PORTS = 8753, 50
"""Where a free port is looked for by default, and how many are tried."""
LONGEST_ADDRESS = 4000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ViewServer(ThreadingHTTPServer):
    """Serves the page of some runs.

    Args:
        runs: that are shown, the first of them at once; or what models of an evaluation did.
        host: to listen on; anything but the loopback lets others on the network in who know the address.
        port: the one to use; None: the first free one from 8753 on.

    Attributes:
        address: to open in a browser; it holds the token without which nothing is answered.

    Raises:
        ConfigurationError: no port is free, or the host cannot be listened on.
    """

    daemon_threads = True

    def __init__(self, runs: Sequence[Run] | Sequence[Evaluation], host: str = LOOPBACK, port: int | None = None):
        self.runs: list[Run | Evaluation] = list(runs)
        self.token, self._host = secrets.token_urlsafe(18), host
        self.index = page(self.runs[0].kind if self.runs else "run").encode()
        self._bind(host, port)
        number = self.server_address[1]
        shown = LOOPBACK if host in ("0.0.0.0", "::", "") else host
        self.hosts = {f"{name}:{number}" for name in (LOOPBACK, "localhost", "[::1]", host, shown)}
        self.address = f"http://{shown}:{number}/{self.token}/"

    def _bind(self, host: str, port: int | None) -> None:
        """Bind the requested port, or the next free one."""
        first = FIRST_PORT if port is None else port
        ports = [0] if first == 0 else range(first, min(first + PORTS, 65_536))
        for candidate in ports:
            try:
                super().__init__((host, candidate), _Handler)
                return
            except OSError as error:
                self.server_close() if hasattr(self, "socket") else None
                problem = error
                if error.errno not in _TAKEN:
                    break
        raise ConfigurationError(
            f"port: nothing can listen on {host}, port {first} and the next ({problem}). Give another --port or --host."
        )

    def in_background(self) -> threading.Thread:
        """Serve in a thread; `shutdown()` ends it."""
        thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        return thread

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request failed", exc_info=True)  # a browser that went away, mostly


_TAKEN = (98, 48, 13, 10048, 10013)
"""Error numbers of a port that is taken, or not for us, on Linux, macOS and Windows."""


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "exgrpo", ""
    timeout = 30

    def do_GET(self) -> None:
        refused = self._refusal()
        if refused is not None:
            self._send(403, "text/plain; charset=utf-8", f"{refused}\n".encode())
            return
        parts = urlsplit(self.path)
        path = parts.path.split("/", 2)[2]
        if path.startswith("api/"):
            self._answer(path.removeprefix("api/"), dict(parse_qsl(parts.query, keep_blank_values=True)))
        elif path in ("", "index.html"):
            self._send(200, FILES["index.html"], self.server.index)
        elif path in FILES:
            self._send(200, FILES[path], read(path))
        else:
            self._send(404, "text/plain; charset=utf-8", b"there is no such file\n")

    do_HEAD = do_GET

    def _refusal(self) -> str | None:
        """Return why a request is refused: its host, where it comes from, or that it lacks the token."""
        if len(self.path) > LONGEST_ADDRESS:
            return "the address is too long"
        if self.headers.get("Host", "") not in self.server.hosts:
            return "this server is asked by another name: open the address that it printed"
        origin = self.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self.server.hosts:
            return "pages of other origins are not answered"
        parts = urlsplit(self.path).path.split("/", 2)
        if len(parts) < 3 or not hmac.compare_digest(parts[1].encode(), self.server.token.encode()):
            return "the address lacks its token: open the one that exgrpo view printed"
        site = self.headers.get("Sec-Fetch-Site", "none")
        if parts[2].startswith("api/") and site not in ("same-origin", "none"):
            return "pages of other origins are not answered"
        return None

    def _answer(self, path: str, query: dict[str, str]) -> None:
        try:
            self._send_json(200, self._found(path, query))
        except NotThere as error:
            self._send_json(404, {"error": str(error)})
        except ExGRPOError as error:  # a log that is damaged, locked, or took too long
            self._send_json(503, {"error": str(error)})

    def _found(self, path: str, query: dict[str, str]) -> Any:
        runs = self.server.runs
        if path == "runs":
            return [{"name": run.name, "path": str(run.path)} for run in runs]
        number, _, what = path.partition("/")
        if not (number.isdecimal() and number.isascii() and int(number) < len(runs)):
            raise NotThere("there is no such run")
        return runs[int(number)].answer(unquote(what), query)

    def _send_json(self, code: int, value: Any) -> None:
        self._send(code, "application/json", json.dumps(value, separators=(",", ":"), allow_nan=False).encode())

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the address holds the token."""
