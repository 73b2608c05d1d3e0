"""Small pipelines on the test driver: no broker, time by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import structlog

from streams.testing.driver import Answer, TopologyTestDriver
from tests.topologies.outside import SECRET

HERE = Path(__file__).parent
CSV_PAYMENTS = HERE.parent.parent / "topologies" / "csv_payments" / "pipeline.yaml"


class MakeDriver(Protocol):
    """Makes a driver of `pipelines/<name>.yaml`."""

    def __call__(
        self, name: str, *, answer: Answer | None = None, sets: tuple[str, ...] = ()
    ) -> TopologyTestDriver: ...


@pytest.fixture(params=["live", "no-live"])
def live(request: pytest.FixtureRequest) -> bool:
    """Both paths of an itemised await."""
    return bool(request.param == "live")


@pytest.fixture
def make() -> Iterator[MakeDriver]:
    """Makes drivers and stops them at the end."""
    made: list[TopologyTestDriver] = []

    def driver(name: str, *, answer: Answer | None = None, sets: tuple[str, ...] = ()) -> TopologyTestDriver:
        file = CSV_PAYMENTS if name == "csv-payments" else HERE / "pipelines" / f"{name}.yaml"
        made.append(TopologyTestDriver(file, answer=answer, overrides=sets, environ={"KAWAIT_TOKEN_K1": SECRET}))
        return made[-1]

    yield driver
    for each in made:
        each.close()


@pytest.fixture
def shop(make: MakeDriver, live: bool) -> MakeDriver:
    """As `make`, on the live or on the suspending path."""
    path = () if live else ("steps.ask.await.live=false",)
    return lambda name, *, answer=None, sets=(): make(name, answer=answer, sets=(*path, *sets))


@pytest.fixture
def script() -> Iterator[Any]:
    """What the shop's functions do, reset around each test. Ask for it after a driver was made once."""
    TopologyTestDriver(HERE / "pipelines" / "scalar.yaml", environ={"KAWAIT_TOKEN_K1": SECRET}).close()
    module = sys.modules["shop.script"]
    module.reset()
    yield module
    module.reset()


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Every log entry of the test, in order; `log_level` says how bad it is."""
    with structlog.testing.capture_logs() as captured:
        yield captured
