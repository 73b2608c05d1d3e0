"""Where outputs go: files before success, topics exactly once, the result of an execution (DESIGN 7 'Finishing', BEHAVIOUR 5.10)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from schemas.errors import TopicMadeAgain
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


def test_a_target_that_is_there_already_is_a_conflict_before_anybody_is_asked(shop: Any, place: Path) -> None:
    """DESIGN 8.11, DECISIONS 15: PUBLICATION_CONFLICT, dead-lettered once, the strange file untouched, no request."""
    (place / "out").mkdir()
    (place / "out" / "b1.txt.out").write_bytes(b"somebody else's")
    driver, execution, target = files(shop, place)
    assert driver.requests() == []
    assert driver.status(execution) == "FAILED"
    assert target.read_bytes() == b"somebody else's"
    (letter,) = driver.dead_letters()
    assert letter.reason == "PUBLICATION_CONFLICT"
    assert "b1.txt.out" in letter.detail
    assert [path.name for path in (place / "out").iterdir()] == ["b1.txt.out"]


def test_a_target_with_other_content_that_appears_meanwhile_is_a_conflict(shop: Any, place: Path) -> None:
    """DESIGN 7: PUBLICATION_CONFLICT, dead-lettered, the strange file untouched, no retry."""
    driver, execution, target = files(shop, place)
    target.write_bytes(b"somebody else's")
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "FAILED"
    assert target.read_bytes() == b"somebody else's"
    (letter,) = driver.dead_letters()
    assert letter.reason == "PUBLICATION_CONFLICT"
    assert "b1.txt.out" in letter.detail
    assert "TerminalPublicationFailed" not in driver.fact_names(execution)


def test_a_target_with_the_same_content_is_success(shop: Any, place: Path) -> None:
    """DESIGN 7, BEHAVIOUR 183: an equal checksum is what a repeated effect finds."""
    driver, execution, target = files(shop, place)
    target.write_bytes(GOOD)
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"
    assert target.read_bytes() == GOOD


@pytest.mark.parametrize("sets", [(), ("output.groupBy=sku",)])
def test_a_place_that_cannot_be_written_is_told_before_anybody_is_asked(
    shop: Any, place: Path, sets: tuple[str, ...]
) -> None:
    """DECISIONS 15: the place is known at the beginning, also where answers make the groups."""
    (place / "out").write_text("a file where the folder should be")
    driver, execution, _ = files(shop, place, *sets)
    assert driver.requests() == []
    assert driver.status(execution) == "FAILED"
    (letter,) = driver.dead_letters()
    assert letter.reason == "PUBLICATION_FAILED"
    assert str(place / "out") in letter.detail


def test_a_name_that_does_not_fit_is_told_before_anybody_is_asked(shop: Any, place: Path) -> None:
    """DECISIONS 15: a file name has at most 255 bytes."""
    driver, execution, _ = files(shop, place, "output.key={groupKey}" + "é" * 127)
    assert driver.requests() == []
    assert driver.status(execution) == "FAILED"
    (letter,) = driver.dead_letters()
    assert letter.reason == "OBJECT_KEY_REFUSED"
    assert "255" in letter.detail


def test_a_name_without_its_value_is_told_before_anybody_is_asked(shop: Any, place: Path) -> None:
    """DECISIONS 15: whoever submits a payload gives no input object, and so no name of one."""
    driver = shop(
        "files", sets=(f"output.location={place / 'out'}", "output.key={inputStem}-{groupKey}", "output.groupBy=sku")
    )
    execution = driver.submit({"path": str(place / "in" / "b1.txt")})
    driver.run()
    assert driver.requests() == []
    assert driver.status(execution) == "FAILED"
    (letter,) = driver.dead_letters()
    assert (letter.reason, "{inputStem}" in letter.detail) == ("OBJECT_KEY_REFUSED", True)


def test_the_output_is_looked_at_again_after_a_crash_only_while_nothing_was_sent(shop: Any, place: Path) -> None:
    """DESIGN 8.11: once the first request is out, what stands at the target is judged at the end."""
    driver, execution, target = files(shop, place)
    asked = driver.new_requests()
    target.write_bytes(GOOD)
    driver.crash()
    driver.run()
    assert driver.status(execution) in {"RUNNING", "WAITING_EXTERNAL"}
    answer(driver, *asked, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"


def test_a_crash_after_the_look_looks_again(shop: Any, place: Path) -> None:
    """The look is no fact: it is repeated, and costs nobody a request."""
    driver = shop("files", sets=(f"input.location={place / 'in'}", f"output.location={place / 'out'}"))
    execution = driver.submit(file=place / "in" / "b1.txt")
    while not any(pool.jobs for pool in driver.pools):
        for pool in driver.pools:
            pool.held = True
        driver.step()
    (pool, *_) = [pool for pool in driver.pools if pool.jobs]
    pool.run_one()
    assert list((place / "out").iterdir()) == [], "looked at, and nothing left"
    driver.crash()
    (place / "out" / "b1.txt.out").write_bytes(b"somebody else's")
    driver.run()
    assert (driver.requests(), driver.status(execution)) == ([], "FAILED")


def test_a_place_that_cannot_be_written_is_tried_again(shop: Any, place: Path) -> None:
    """BEHAVIOUR 182: not SUCCEEDED, no completed fact; tried again under the same id until it works."""
    driver, execution, target = files(shop, place)
    (place / "out").rmdir()
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
    (place / "out").rmdir()
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


@pytest.mark.parametrize("key", ["{inputStem}/{groupKey}.csv", "{executionId}-{groupKey}.csv"])
def test_groups_of_a_second_file_are_objects_of_their_own(shop: Any, place: Path, key: str) -> None:
    """FAULTS K5: a pipeline that groups works for more than one file in its life."""
    driver, execution, _ = files(shop, place, "output.groupBy=sku", f"output.key={key}")
    answer(driver, *driver.new_requests())
    (place / "in" / "b2.txt").write_text("\n".join(LINES))
    second = driver.submit(file=place / "in" / "b2.txt")
    driver.run()
    answer(driver, *driver.new_requests())
    assert (driver.status(execution), driver.status(second)) == ("SUCCEEDED", "SUCCEEDED")
    assert sum(path.is_file() for path in (place / "out").rglob("*.csv")) == 6


def test_a_group_is_part_of_a_name_and_no_folder(shop: Any, place: Path) -> None:
    (place / "in" / "b1.txt").write_text("a/b\n../c")
    driver, execution, _ = files(shop, place, "output.groupBy=sku")
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"
    assert sorted(path.name for path in (place / "out").iterdir()) == ["..%2Fc.out", "a%2Fb.out"]


def test_the_day_in_a_name_is_that_of_the_submission(shop: Any, place: Path) -> None:
    """It stays when the execution is taken up on another day."""
    driver, execution, _ = files(
        shop, place, "output.key={date}-{inputStem}-{inputName}", "steps.ask.timeout=P3D", "steps.ask.await.live=false"
    )
    day = datetime.fromtimestamp(driver.clock.now_ms() / 1000, tz=UTC).date().isoformat()
    driver.advance(86_400_000)
    driver.crash()
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"
    assert [path.name for path in (place / "out").iterdir()] == [f"{day}-b1-b1.txt"]


def test_rows_may_be_json(shop: Any, place: Path) -> None:
    """SURFACE `output.format: jsonl`: a line a row, as the step made it."""
    driver, execution, target = files(shop, place, "output.format=jsonl")
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"
    assert [json.loads(line)["sku"] for line in target.read_text().splitlines()] == LINES


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


def test_a_source_topic_that_is_made_again_under_running_workers_ends_them_and_the_next_start_runs_each_record_once(
    shop: Any,
) -> None:
    """K2: read on from the old position, some of its records would run twice: under the old topic's id, and under the new one's."""
    driver = shop("counter", sets=('input={from: topic, topic: "{app}.in", type: "shop.domain:Basket"}',))
    record = json.dumps({"id": "b1", "lines": ["apple"]}).encode()
    driver.send_raw("counter.in", record, partition=0)
    driver.run()
    driver.log.delete_topic("counter.in")
    ensure_topics(driver.pipeline, driver.log)
    driver.send_raw(
        "counter.in", record, partition=0
    )  # as many as there were: the old position lies within the new topic
    with pytest.raises(TopicMadeAgain, match=r"counter\.in was deleted and made again while this worker ran"):
        driver.advance(11_000)
    for _ in range(4):
        driver.send_raw("counter.in", record, partition=0)
    for _ in range(2):
        driver.crash()
        driver.run()
    assert len(driver.requests()) == 1 + 5


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
