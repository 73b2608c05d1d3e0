"""Where outputs go: files before success, topics exactly once, the result of an execution (DESIGN 7 'Finishing', BEHAVIOUR 5.10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streams.worker.topics import ensure_topics
from tests.topologies.outside import answer, price

if TYPE_CHECKING:
    from streams.testing.driver import TopologyTestDriver

LINES = ["apple", "pear", "plum"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b1.txt").write_text("\n".join(LINES))
    return tmp_path


def files(make: Any, place: Path, *sets: str) -> tuple[TopologyTestDriver, str, Path]:
    driver = make("files", sets=(f"input.location={place / 'in'}", f"output.location={place / 'out'}", *sets))
    execution = driver.submit(file=place / "in" / "b1.txt")
    driver.run()
    return driver, execution, place / "out" / "b1.txt.out"


GOOD = b"sku,price,text\r\napple,1.50,\r\npear,1.50,\r\nplum,1.50,\r\n"


def test_the_file_is_there_before_success(shop: Any, place: Path) -> None:
    """BEHAVIOUR 2.6, DESIGN 7: prepared, effect, then completed, closed and succeeded in one transaction; rows in input order."""
    driver, execution, target = files(shop, place)
    answer(driver, *reversed(driver.new_requests()))
    assert target.read_bytes() == GOOD
    assert driver.fact_names(execution)[-4:] == [
        "TerminalPublicationPrepared",
        "TerminalPublicationCompleted",
        "BoundaryUnitClosed",
        "RunSucceeded",
    ]
    assert len({fact.at_ms for fact in driver.facts(execution)[-3:]}) == 1
    row = driver.execution(execution)
    assert row is not None
    assert row.outputs == [str(target)]
    assert sorted(path.name for path in (place / "out").iterdir()) == ["b1.txt.out"], "no temporary file is left"


def test_nothing_is_written_before_the_last_item(shop: Any, place: Path) -> None:
    """BEHAVIOUR 106, 182: no output and no success while an item is open."""
    driver, execution, target = files(shop, place)
    requests = driver.new_requests()
    answer(driver, *requests[:2])
    assert not target.exists()
    answer(driver, requests[2])
    assert driver.status(execution) == "SUCCEEDED"


def test_a_target_with_other_content_is_a_conflict(shop: Any, place: Path) -> None:
    """DESIGN 7: PUBLICATION_CONFLICT, dead-lettered, the strange file untouched, no retry."""
    (place / "out").mkdir()
    (place / "out" / "b1.txt.out").write_bytes(b"somebody else's")
    driver, execution, target = files(shop, place)
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "FAILED"
    assert target.read_bytes() == b"somebody else's"
    (letter,) = driver.dead_letters()
    assert letter.reason == "PUBLICATION_CONFLICT"
    assert "b1.txt.out" in letter.detail
    assert "TerminalPublicationFailed" not in driver.fact_names(execution)


def test_a_target_with_the_same_content_is_success(shop: Any, place: Path) -> None:
    """DESIGN 7, BEHAVIOUR 183: an equal checksum is what a repeated effect finds."""
    (place / "out").mkdir()
    (place / "out" / "b1.txt.out").write_bytes(GOOD)
    driver, execution, target = files(shop, place)
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"
    assert target.read_bytes() == GOOD


def test_a_place_that_cannot_be_written_is_tried_again(shop: Any, place: Path) -> None:
    """BEHAVIOUR 182: not SUCCEEDED, no completed fact; tried again under the same id until it works."""
    driver, execution, target = files(shop, place)
    (place / "out").write_text("a file where the folder should be")
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "WAIT_RETRY"
    assert "TerminalPublicationCompleted" not in driver.fact_names(execution)
    (place / "out").unlink()
    driver.crash()
    driver.advance(60_000)
    assert driver.status(execution) == "SUCCEEDED"
    assert target.read_bytes() == GOOD
    ids = {fact.publication_id for fact in driver.facts(execution) if hasattr(fact, "publication_id")}
    assert len(ids) == 1


def test_a_place_that_stays_broken_is_dead_lettered(shop: Any, place: Path) -> None:
    """DESIGN 8.8: attempts are bounded; the reason is in the dead letter."""
    driver, execution, _ = files(shop, place)
    (place / "out").write_text("a file where the folder should be")
    answer(driver, *driver.new_requests())
    for _ in range(10):
        driver.advance(1_800_000)
    assert driver.status(execution) == "FAILED"
    assert driver.fact_names(execution).count("TerminalPublicationFailed") == 4
    assert len(driver.dead_letters()) == 1


def test_a_crash_between_effect_and_fact_repeats_the_effect(shop: Any, place: Path) -> None:
    """BEHAVIOUR 183: the effect was done, its fact was not: done again, equal, success."""
    driver, execution, target = files(shop, place)
    for request in driver.new_requests():
        driver.complete(request, price(request))
    for _ in range(100):
        for pool in driver.pools:
            pool.held = driver.fact_names(execution)[-1] == "TerminalPublicationPrepared"
        driver.step()
        if any(pool.held and pool.jobs for pool in driver.pools):
            break
    (pool, *_) = [pool for pool in driver.pools if pool.jobs]
    pool.run_one()
    assert target.read_bytes() == GOOD
    driver.crash()
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert target.read_bytes() == GOOD
    assert driver.fact_names(execution).count("TerminalPublicationPrepared") == 2


def test_the_same_file_again_is_a_duplicate(shop: Any, place: Path) -> None:
    """BEHAVIOUR 196, 4.12: a re-listed object starts nothing; with other content it is another execution, and its output a conflict."""
    driver, execution, target = files(shop, place)
    answer(driver, *driver.new_requests())
    assert driver.submit(file=place / "in" / "b1.txt") == execution
    driver.run()
    assert driver.new_requests() == []
    (place / "in" / "b1.txt").write_text("quince")
    other = driver.submit(file=place / "in" / "b1.txt")
    assert other != execution
    driver.run()
    answer(driver, *driver.new_requests())
    assert driver.status(other) == "FAILED"
    assert driver.dead_letters()[0].reason == "PUBLICATION_CONFLICT"
    assert target.read_bytes() == GOOD


def test_an_empty_file_gives_a_file_with_a_header(shop: Any, place: Path) -> None:
    """DESIGN 8.5: no items is an output too."""
    (place / "in" / "b1.txt").write_text("")
    driver, execution, target = files(shop, place)
    assert driver.status(execution) == "SUCCEEDED"
    assert target.read_bytes() == b"sku,price,text\r\n"
    assert driver.requests() == []


def test_outputs_are_grouped_by_a_field(shop: Any, place: Path) -> None:
    """SURFACE `output.groupBy`: a file for each value."""
    driver, execution, _ = files(shop, place, "output.groupBy=sku")
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"
    assert sorted(path.name for path in (place / "out").iterdir()) == ["apple.out", "pear.out", "plum.out"]


# --- topics ----------------------------------------------------------------------------------------------------------------------------------


def out(driver: TopologyTestDriver) -> list[tuple[str, str]]:
    return sorted(
        ((record.key or b"").decode(), json.loads(record.value or b"")["sku"])
        for record in driver.records("counter.out")
    )


def test_a_topic_in_and_a_topic_out(shop: Any) -> None:
    """SURFACE 'Other ends': one execution a record, named by the key template; each item leaves as it finishes, with its key, once."""
    driver = shop("counter")
    for _ in range(3):
        driver.send_raw("counter.in", json.dumps({"id": "b1", "lines": LINES}).encode(), key=b"any")
    driver.run()
    requests = driver.new_requests()
    assert len(requests) == 3, "three records with one id are one execution"
    (execution,) = {request.execution_id for request in requests}
    answer(driver, requests[1])
    assert out(driver) == [("pear", "pear")]
    for _ in range(2):
        driver.crash()
        driver.run()
    answer(driver, *requests)
    assert driver.status(execution) == "SUCCEEDED"
    assert out(driver) == [(sku, sku) for sku in LINES]
    driver.crash()
    answer(driver, *requests)
    assert out(driver) == [(sku, sku) for sku in LINES]
    assert driver.execution(execution).submission_key == "b1"


def test_without_a_template_the_place_is_the_key(shop: Any) -> None:
    """SURFACE 'Other ends': default submission key topic-partition-offset: equal records are two executions."""
    driver = shop("counter", sets=('input={from: topic, topic: "{app}.in", type: "shop.domain:Basket"}',))
    for _ in range(2):
        driver.send_raw("counter.in", json.dumps({"id": "b1", "lines": ["apple"]}).encode(), partition=0)
    driver.run()
    keys = {driver.execution(request.execution_id).submission_key for request in driver.new_requests()}
    assert keys == {"counter.in-0-0", "counter.in-0-2"}


def test_a_source_topic_that_was_made_again_starts_new_executions(shop: Any) -> None:
    """DECISIONS 2 and 18: its offsets count anew, and so do its records, each once."""
    driver = shop("counter", sets=('input={from: topic, topic: "{app}.in", type: "shop.domain:Basket"}',))
    record = json.dumps({"id": "b1", "lines": ["apple"]}).encode()
    driver.send_raw("counter.in", record, partition=0)
    driver.run()
    (before,) = driver.new_requests()
    driver.log.delete_topic("counter.in")
    ensure_topics(driver.pipeline, driver.log)
    driver.send_raw("counter.in", record, partition=0)
    for _ in range(3):
        driver.crash()
        driver.run()
    (after,) = driver.new_requests()
    assert after.execution_id != before.execution_id


def test_a_key_that_comes_again_with_another_input_starts_nothing_and_is_counted(shop: Any) -> None:
    driver = shop("counter")
    for lines in (["apple"], ["apple"], ["pear"]):
        driver.send_raw("counter.in", json.dumps({"id": "b1", "lines": lines}).encode())
    driver.run()
    assert len(driver.requests()) == 1
    assert driver.metric("kawait_no_ops_total", reason="duplicate-submission") == 1
    assert driver.metric("kawait_no_ops_total", reason="duplicate-other-content") == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null-value"),
        (b"nonsense", "wrong-shape"),
        (b"{}", "wrong-shape"),
        (b'{"id": "b", "lines": [1]}', "wrong-shape"),
    ],
)
def test_a_source_record_that_is_no_input(shop: Any, value: bytes | None, reason: str) -> None:
    """CASES 79, 91: good, bad, good in one partition: both good ones run, the bad one is in the dead letters with its origin."""
    driver = shop("counter")
    for number, each in enumerate((b'{"id": "one", "lines": ["apple"]}', value, b'{"id": "two", "lines": ["pear"]}')):
        driver.send_raw("counter.in", each, key=str(number).encode(), partition=1)
    driver.run()
    answer(driver, *driver.new_requests())
    assert [key for key, _ in out(driver)] == ["apple", "pear"]
    (letter,) = driver.dead_letters()
    assert (letter.reason, letter.origin_topic, letter.origin_partition, letter.origin_offset) == (
        reason,
        "counter.in",
        1,
        2,
    )


def test_a_crash_after_any_turn_writes_each_output_once(make: Any) -> None:
    """DESIGN 1, 7: exactly once, to the reader of the output topic, wherever the worker dies, on both paths."""
    for path in ("live={window: 2, idle: PT10S}", "live=false"):
        for crash_after in range(1, 20, 2):
            driver = make("counter", sets=(f"steps.ask.await.{path}", "kafka.partitions=1"))
            driver.send_raw("counter.in", json.dumps({"id": "b1", "lines": LINES}).encode())
            for turn in range(60):
                driver.step()
                for request in driver.new_requests():
                    driver.complete(request, price(request))
                if turn in {crash_after, crash_after + 5}:
                    driver.crash()
            driver.run()
            assert out(driver) == [(sku, sku) for sku in LINES], (path, crash_after)
