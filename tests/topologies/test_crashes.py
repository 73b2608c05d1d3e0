"""Crash and takeover: what was committed is all there is (DESIGN 7 'Handing over', BEHAVIOUR 5.5 to 5.7)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.topologies.outside import price

if TYPE_CHECKING:
    from streams.testing.driver import TopologyTestDriver

BASKET = {"id": "b1", "lines": ["apple", "pear", "plum", "quince"]}


def good(driver: TopologyTestDriver, execution: str) -> None:
    """It ended well: everything once, in input order, and nothing was asked twice."""
    assert driver.status(execution) == "SUCCEEDED", driver.execution(execution)
    assert [receipt["sku"] for receipt in driver.result(execution)] == BASKET["lines"]
    names = driver.fact_names(execution)
    for fact in ("BoundaryInteractionDispatched", "BoundaryCompletionAdmitted", "ContinuationCompleted"):
        assert names.count(fact) == 4, fact
    assert [request.item_index for request in driver.requests()] == [0, 1, 2, 3]
    assert driver.refusals() == []
    assert driver.dead_letters() == []


@pytest.mark.parametrize("crash_after", range(1, 26))
@pytest.mark.parametrize("path", ["live={window: 2, idle: PT10S}", "live=false"])
def test_a_crash_after_any_turn(make: Any, path: str, crash_after: int) -> None:
    """BEHAVIOUR 88 to 92, 109, 110: wherever the worker dies between two turns, and dies again later, the end is the same."""
    driver = make("items", sets=(f"steps.ask.await.{path}",))
    execution = driver.submit(BASKET)
    for turn in range(1, 60):
        driver.step()
        for request in driver.new_requests():
            driver.complete(request, price(request))
        if turn in {crash_after, crash_after + 7}:
            driver.crash()
    driver.run()
    good(driver, execution)


def test_takeover_with_items_done_answered_and_open(shop: Any, script: Any) -> None:
    """BEHAVIOUR 141, DESIGN 7: an item with an output is skipped, an answered one runs, an open one is awaited; none is sent again."""
    driver = shop("items")
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    driver.complete(requests[0], price(requests[0]))
    driver.run()
    driver.hold()
    driver.complete(requests[2], price(requests[2]))
    for _ in range(10):
        driver.step()
    assert driver.fact_names(execution).count("BoundaryCompletionAdmitted") == 2
    assert driver.fact_names(execution).count("ContinuationCompleted") == 1
    driver.crash()
    driver.run()
    assert driver.fact_names(execution).count("ContinuationCompleted") == 2
    assert script.count("receipt") == 2, "an output that is stored is not made again"
    assert driver.new_requests() == []
    driver.complete(requests[1], price(requests[1]))
    driver.complete(requests[3], price(requests[3]))
    driver.run()
    good(driver, execution)


def test_the_source_is_not_read_again_once_it_ended(shop: Any, script: Any) -> None:
    """DESIGN 7: `SourceEnded` is recorded with the last dispatch; recovery never opens the source again."""
    driver = shop("items")
    execution = driver.submit(BASKET)
    driver.run()
    assert script.count("split") == 1
    for _ in range(3):
        driver.crash()
        driver.run()
    assert script.count("split") == 1
    for request in driver.new_requests():
        driver.complete(request, price(request))
    driver.run()
    good(driver, execution)


def test_the_source_is_read_again_before_it_ended(make: Any, script: Any) -> None:
    """DESIGN 7, BEHAVIOUR 141: dispatched items are compared and skipped, the stored requests stay."""
    driver = make("items", sets=("steps.ask.await.live.window=2",))
    execution = driver.submit(BASKET)
    driver.run()
    first = driver.new_requests()
    assert len(first) == 2
    driver.crash()
    driver.run()
    assert script.count("split") == 1, "the window is full, so nothing is asked of the source"
    driver.complete(first[0], price(first[0]))
    driver.run()
    assert script.count("split") == 2
    (third,) = driver.new_requests()
    assert third.item_index == 2
    waiting = [first[1], third]
    for _ in range(3):
        for request in waiting:
            driver.complete(request, price(request))
        driver.run()
        waiting = driver.new_requests()
    assert script.count("split") == 2
    good(driver, execution)


@pytest.mark.parametrize("change", ["another item", "fewer items"])
def test_a_source_that_changed_fails_the_execution(make: Any, script: Any, change: str) -> None:
    """DESIGN 7, BEHAVIOUR 125: the re-read source is not the one whose requests are out: SOURCE_CHANGED, dead-lettered, no request more."""
    driver = make("items", sets=("steps.ask.await.live.window=2",))
    execution = driver.submit(BASKET)
    driver.run()
    first, _ = driver.new_requests()
    driver.crash()
    script.lines["pear"] = "peach" if change == "another item" else None
    driver.complete(first, price(first))
    driver.run()
    assert driver.status(execution) == "FAILED"
    (letter,) = driver.dead_letters()
    assert letter.reason == "SOURCE_CHANGED"
    assert "--key" in letter.detail
    assert len(driver.requests()) == 2
    assert driver.fact_names(execution)[-2:] == ["BoundaryUnitClosed", "RunFailed"]


# --- files ---------------------------------------------------------------------------------------------------------------------------------


def files(make: Any, folder: Path, *sets: str) -> TopologyTestDriver:
    (folder / "in").mkdir()
    (folder / "in" / "b1.txt").write_text("\n".join(BASKET["lines"]))
    driver: TopologyTestDriver = make(
        "files", sets=(f"input.location={folder / 'in'}", f"output.location={folder / 'out'}", *sets)
    )
    return driver


def test_the_input_is_deleted_after_the_last_dispatch(shop: Any, tmp_path: Path) -> None:
    """DESIGN 7: deleting the input after the last dispatch, then kill -9: it finishes."""
    driver = files(shop, tmp_path)
    execution = driver.submit(file=tmp_path / "in" / "b1.txt")
    driver.run()
    requests = driver.new_requests()
    assert len(requests) == 4
    (tmp_path / "in" / "b1.txt").unlink()
    driver.crash()
    for request in requests:
        driver.complete(request, price(request))
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert (tmp_path / "out" / "b1.txt.out").read_bytes().count(b"\r\n") == 5


def test_a_file_that_changed_while_it_was_read(make: Any, tmp_path: Path) -> None:
    """DESIGN 7: object size and sha256 are compared before the source is read again."""
    driver = files(make, tmp_path, "steps.ask.await.live.window=2")
    execution = driver.submit(file=tmp_path / "in" / "b1.txt")
    driver.run()
    first, _ = driver.new_requests()
    (tmp_path / "in" / "b1.txt").write_text("\n".join(reversed(BASKET["lines"])))
    driver.crash()
    driver.complete(first, price(first))
    driver.run()
    assert driver.status(execution) == "FAILED"
    (letter,) = driver.dead_letters()
    assert letter.reason == "SOURCE_CHANGED"
    assert "b1.txt" in letter.detail
    assert len(driver.requests()) == 2
    assert list((tmp_path / "out").glob("*")) == []


def test_a_file_that_changed_between_submission_and_first_reading(make: Any, tmp_path: Path) -> None:
    """DESIGN 7: what was submitted is what is paid: another content under the name is refused before the first request."""
    driver = files(make, tmp_path)
    execution = driver.submit(file=tmp_path / "in" / "b1.txt")
    (tmp_path / "in" / "b1.txt").write_text("pear")
    driver.run()
    assert driver.status(execution) == "FAILED"
    assert driver.dead_letters()[0].reason == "SOURCE_CHANGED"
    assert driver.requests() == []


def test_a_lost_disk_is_rebuilt(shop: Any) -> None:
    """DESIGN 6 'Restore': the tables come back from the changelog, byte for byte, and work goes on."""
    driver = shop("items")
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    driver.complete(requests[1], price(requests[1]))
    driver.run()
    before = driver.rows()
    for partition in range(driver.pipeline.partitions):
        driver.stores.wipe("core", partition)
    driver.crash()
    driver.run()
    assert driver.rows() == before
    for request in (requests[0], requests[2], requests[3]):
        driver.complete(request, price(request))
    driver.run()
    good(driver, execution)
