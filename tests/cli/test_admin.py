"""The admin port: health, readiness and metrics, and clear errors about the port itself."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from schemas.errors import UsageError
from streams.telemetry.admin import AdminServer
from streams.telemetry.metrics import Metrics


class Readiness:
    ready = False


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def server(readiness: Readiness) -> Iterator[AdminServer]:
    metrics = Metrics()
    metrics.decided({("refusal", "late"): 2})
    with AdminServer(port=0, registry=metrics.registry, is_ready=lambda: readiness.ready, host="127.0.0.1") as started:
        yield started


def get(server: AdminServer, path: str, *, method: str = "GET") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_a_process_that_answers_is_healthy(server: AdminServer) -> None:
    assert get(server, "/healthz")[0] == 200


def test_readiness_is_what_the_worker_says(server: AdminServer, readiness: Readiness) -> None:
    assert get(server, "/readyz")[0] == 503
    readiness.ready = True
    assert get(server, "/readyz")[0] == 200
    readiness.ready = False
    assert get(server, "/readyz")[0] == 503


def test_metrics_are_those_of_the_workers_registry(server: AdminServer) -> None:
    status, content_type, body = get(server, "/metrics?name[]=x")
    assert status == 200
    assert content_type.startswith("text/plain")
    assert 'kawait_refusals_total{reason="late"} 2.0' in body
    assert "python_gc" not in body


def test_other_paths_say_what_there_is(server: AdminServer) -> None:
    status, _, body = get(server, "/")
    assert status == 404
    assert "/readyz" in body


def test_a_head_request_has_no_body(server: AdminServer) -> None:
    assert get(server, "/healthz", method="HEAD")[::2] == (200, "")


def test_a_taken_port_is_a_clear_error(server: AdminServer) -> None:
    with pytest.raises(UsageError, match=rf"port {server.port} is taken .*--admin-port"):
        AdminServer(port=server.port, registry=Metrics().registry, is_ready=lambda: True, host="127.0.0.1")


def test_the_port_is_free_again_afterwards() -> None:
    with AdminServer(port=0, registry=Metrics().registry, is_ready=lambda: True, host="127.0.0.1") as first:
        port = first.port
    with AdminServer(port=port, registry=Metrics().registry, is_ready=lambda: True, host="127.0.0.1") as second:
        assert get(second, "/readyz")[0] == 200
