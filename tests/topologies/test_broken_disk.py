"""A store that cannot be read ends the worker: nobody's record is at fault, and the next start rebuilds the rows."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import StateBroken
from state.tables.memory import MemoryStore
from state.tables.rows import PartitionRows
from tests.topologies.outside import answer

BASKET = {"id": "b1", "lines": ["apple", "pear"]}


def broken(*_args: object) -> Any:
    raise StateBroken("a block cannot be read")


@pytest.mark.parametrize("place", [(MemoryStore, "get_many"), (PartitionRows, "committed")], ids=["loop", "pool"])
def test_a_broken_disk_ends_the_worker_and_dead_letters_nothing(
    shop: Any, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    driver = shop("items")
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    driver.crash()  # nothing is in memory
    driver.run()
    with monkeypatch.context() as patch:
        patch.setattr(*place, broken)
        with pytest.raises(StateBroken):
            answer(driver, *requests)
    driver.crash()
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.dead_letters() == []
    assert len(driver.requests()) == len(requests) == 2
