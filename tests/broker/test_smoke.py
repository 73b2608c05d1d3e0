"""The whole thing on a real Kafka, small: one kill -9 of a worker, and the provider that is a Faust application."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.ground import Ground

pytestmark = pytest.mark.broker


@pytest.fixture
def ground(tmp_path: Path, bootstrap: str) -> Iterator[Ground]:
    made = Ground(tmp_path / "ground", bootstrap=bootstrap)
    yield made
    made.close()


def test_a_killed_worker_goes_on_where_it_was(ground: Ground) -> None:
    rows = 3_000
    path = ground.payments(rows)
    expected = ground.undisturbed([path])
    app = ground.app("smoke")
    app.provider("--rate", "500")  # so slow that the kill comes in the middle
    worker = app.worker()
    execution = app.submit(path)
    app.reach(rows)  # about a third of the facts
    assert not app.ended([execution])
    app.kill(worker)
    app.worker()
    held, figures = app.judge(rows, [path], app.wait([execution], timeout_s=90), expected)
    assert held, figures


@pytest.mark.faust
def test_a_provider_that_is_a_faust_application(ground: Ground) -> None:
    """It is at-least-once, and here it answers every fifth request twice: admission makes both harmless."""
    if importlib.util.find_spec("faust") is None:
        pytest.skip("the faust extra is not installed")
    if importlib.util.find_spec("cramjam") is None:  # aiokafka reads our lz4 records only with it
        ground.environ["KAWAIT_KAFKA_COMPRESSION_TYPE"] = "gzip"
    rows = 500
    path = ground.payments(rows)
    expected = ground.undisturbed([path])
    app = ground.app("faust")
    app.provider("--faust", "--duplicate", "0.2")
    app.worker()
    execution = app.submit(path)
    held, figures = app.judge(rows, [path], app.wait([execution], timeout_s=90), expected)
    assert held, figures
