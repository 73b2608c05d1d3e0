"""The admin port of a worker: /healthz, /readyz and /metrics, in every role (SURFACE `kawait worker`).

    /healthz   200 while the process answers
    /readyz    200 once every role has joined and restored, even without a partition; else 503
    /metrics   the worker's registry, in Prometheus' text format

A thread of its own answers, so a long batch never makes a healthy worker look dead.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from schemas.errors import UsageError

logger = structlog.get_logger("kawait.admin")

ALL_INTERFACES = ""  # probes and scrapers come from other hosts
REQUEST_TIMEOUT_S = 10.0
TEXT = "text/plain; charset=utf-8"


class AdminServer:
    """Serves the admin port from `__enter__` to `__exit__`.

    Args:
        port: 0 takes a free one; see `port` for which.
        registry: What /metrics shows.
        is_ready: What /readyz says.

    Raises:
        UsageError: the port is taken, or may not be used.
    """

    def __init__(
        self, *, port: int, registry: CollectorRegistry, is_ready: Callable[[], bool], host: str = ALL_INTERFACES
    ) -> None:
        self._registry = registry
        self._is_ready = is_ready
        try:
            self._server = _Server((host, port), _handler_class(self))
        except (OSError, OverflowError) as error:
            raise UsageError(_refusal(port, error)) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="kawait-admin", daemon=True
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        """Start to answer."""
        self._thread.start()
        logger.info("admin port", port=self.port)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Stop, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body for a path."""
        match path.partition("?")[0]:
            case "/healthz":
                return HTTPStatus.OK, TEXT, b"ok\n"
            case "/readyz" if self._is_ready():
                return HTTPStatus.OK, TEXT, b"ready\n"
            case "/readyz":
                return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"not ready: joining or restoring\n"
            case "/metrics":
                encode, content_type = choose_encoder(accept)
                return HTTPStatus.OK, content_type, encode(self._registry)
            case _:
                return HTTPStatus.NOT_FOUND, TEXT, b"there is /healthz, /readyz and /metrics\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False


def _handler_class(admin: AdminServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "kawait"
        sys_version = ""
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            self._send(body_wanted=True)

        def do_HEAD(self) -> None:
            self._send(body_wanted=False)

        def _send(self, *, body_wanted: bool) -> None:
            status, content_type, body = admin.answer(self.path, self.headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if body_wanted:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
            """Probes come every few seconds: they are not worth a line."""

    return Handler


def _refusal(port: int, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"the admin port {port} is taken by another process; choose another with --admin-port, or 0 for a free one"
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"the admin port {port} cannot be used: {reason}; choose another with --admin-port"
