"""What every test may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from streams.broker.node import running_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

# The same examples everywhere, and no clock: a busy machine is no failure. `--hypothesis-profile=default` looks for new ones.
settings.register_profile("kawait", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kawait")


@pytest.fixture(scope="session")
def shared_bootstrap() -> Iterator[str]:
    """One broker for the whole session: `KAWAIT_BOOTSTRAP`, or a throw-away one that the first test to ask starts."""
    with running_broker() as bootstrap:
        yield bootstrap


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    """``host:port`` of a real Kafka; topics, groups and transactional ids in it are the test's own to name uniquely."""
    if request.node.get_closest_marker("broker") is None:
        pytest.fail(
            "a test that uses `bootstrap` needs @pytest.mark.broker, else it runs where no broker is", pytrace=False
        )
    return str(request.getfixturevalue("shared_bootstrap"))
