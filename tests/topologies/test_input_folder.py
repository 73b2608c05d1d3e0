"""The input folder of an application: what is taken from it, when, how often, and what becomes of it (DECISIONS 17 to 19)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.envelopes import RequestEnvelope
from schemas.errors import LogUnavailable
from schemas.facts import InputMoved
from state.tables.memory import MemoryStoreFactory
from streams.doors import submissions
from streams.log.seam import TopicPartition
from streams.roles.object_source import ObjectPoller
from streams.telemetry.metrics import Metrics
from streams.testing.driver import TopologyTestDriver
from tests.topologies.conftest import MakeDriver
from tests.topologies.outside import price
from topologies.pipeline.ends import ObjectSource

DAY_MS = 86_400_000
SETTLE_S = 10
FILES = 200


class _Stop(threading.Event):
    """Ends a poller after some looks; time passes between them, and the application runs."""

    def __init__(self, driver: TopologyTestDriver, looks: int, between: Callable[[int], None]) -> None:
        super().__init__()
        self._driver = driver
        self._looks = looks
        self._between = between
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self._between(len(self.waits))
        self._driver.advance(int(timeout * 1_000))
        if len(self.waits) == self._looks:
            self.set()
        return self.is_set()


class Folder:
    """An input folder, and an application that looks at it."""

    def __init__(
        self, make: MakeDriver, root: Path, *sets: str, answer: Callable[[RequestEnvelope], Any] = price
    ) -> None:
        self.root = root
        self.place = root / "in"
        self.place.mkdir()
        places = (f"input.location={self.place}", f"output.location={root / 'out'}", "kafka.partitions=1", *sets)
        self.driver = make("files", answer=answer, sets=places)
        self.driver.run()
        self.metrics = Metrics()

    def put(self, name: str = "a.txt", content: str = "apple pear\n") -> Path:
        path = self.place / name
        path.write_text(content)
        return path

    def looks(self, count: int = 4, between: Callable[[int], None] = lambda _number: None) -> list[float]:
        """A worker takes partition 0 over, looks some times, and loses it; gives how long it waited after each."""
        stop = _Stop(self.driver, count, between)
        failures: list[BaseException] = []
        source = self.driver.pipeline.source
        assert isinstance(source, ObjectSource)
        core = self.driver.worker.loops["core"]
        poller = ObjectPoller(self.driver.pipeline, source, self.driver.log, self.driver.clock, core, self.metrics)
        poller.run(stop, failures)
        self.driver.run()
        assert failures == []
        return stop.waits

    @property
    def asked(self) -> list[str]:
        """The lines that were asked for."""
        requests = self.driver.requests()
        return sorted(json.loads(bytes(request.request_payload))["sku"] for request in requests)

    def names(self) -> list[str]:
        """Every file, but code and what was published."""
        found = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return sorted(str(path) for path in found if path.parts[0] not in ("code", "out"))


@pytest.fixture
def folder(make: MakeDriver, tmp_path: Path) -> Folder:
    return Folder(make, tmp_path)


def moving(make: MakeDriver, root: Path, *sets: str, answer: Callable[[RequestEnvelope], Any] = price) -> Folder:
    places = (f"input.done={root / 'done'}", f"input.failed={root / 'failed'}")
    return Folder(make, root, "input.after=move", *places, *sets, answer=answer)


def refuses_bad(request: RequestEnvelope) -> Any:
    """No answer that fits to what is called bad."""
    sku = json.loads(bytes(request.request_payload))["sku"]
    return price(request) if sku != "bad" else None


def events(logged: list[Any], word: str) -> list[Any]:
    return [entry for entry in logged if word in entry["event"]]


# --- when an object is taken ---------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_before_an_upload_that_pauses_is_whole(folder: Folder) -> None:
    """It pauses for 8 s at a line end, then for 60 s within a line."""
    path = folder.put(content="apple\n")

    def upload(looks: int) -> None:
        if looks == 1:
            folder.driver.advance(-2_000 + SETTLE_S * 1_000)
            path.write_text("apple\npear\nch")
        if looks == 8:
            path.write_text("apple\npear\ncherry\n")
        if looks <= 8:
            assert folder.asked == []

    folder.looks(12, upload)
    assert folder.asked == ["apple", "cherry", "pear"]


def test_a_sender_may_mark_the_end(make: MakeDriver, tmp_path: Path, logged: list[Any]) -> None:
    folder = Folder(make, tmp_path, "input.ready.suffix=.done")
    folder.put(content="apple")
    folder.looks(20)
    assert folder.asked == []
    (told,) = events(logged, "waited for its ready file")
    assert told["ready_file"] == str(folder.place / "a.txt.done")
    folder.put("a.txt.done", "")
    folder.looks(1)
    assert folder.asked == ["apple"]


def test_a_long_poll_does_not_make_the_settling_longer(make: MakeDriver, tmp_path: Path) -> None:
    folder = Folder(make, tmp_path, "input.poll=PT1H", "input.settle=PT5S")
    folder.put()
    assert folder.looks(2) == [5.0, 3600.0]
    assert folder.asked == ["apple", "pear"]


# --- memory --------------------------------------------------------------------------------------------------------------------------


def test_an_object_that_lies_there_starts_nothing_again_whoever_looks_and_however_late(folder: Folder) -> None:
    """Restarts, lost disks, and retention."""
    for number in range(FILES):
        folder.put(f"{number}.txt", f"sku-{number}\n")
    folder.looks()
    assert len(folder.asked) == FILES
    for days in (1, 8, 100, 250):
        folder.driver.advance(days * DAY_MS)
        folder.driver.stores = MemoryStoreFactory()
        folder.driver.crash()
        folder.driver.run()
        folder.looks()
    assert len(folder.asked) == FILES
    assert folder.driver.fact_names().count("RunSubmitted") == FILES


def test_an_object_older_than_what_is_remembered_is_named_once_and_not_taken(folder: Folder, logged: list[Any]) -> None:
    path = folder.put()
    folder.looks()
    changed_ms = path.stat().st_ctime_ns // 1_000_000
    folder.driver.clock.advance(changed_ms + 402 * DAY_MS - folder.driver.clock.now_ms())
    folder.driver.run()
    folder.driver.crash()
    assert folder.driver.rows() == {}, "its stub is gone"
    folder.looks()
    assert len(folder.asked) == 2
    (told,) = events(logged, "did not change for longer than retention.keys")
    assert told["to_start_it"].endswith(f"--input {path}")


def test_an_equal_object_that_comes_back_is_a_duplicate_and_that_is_told_once(
    folder: Folder, logged: list[Any]
) -> None:
    path = folder.put()

    def go_and_come(number: int) -> None:
        if number == 4:
            path.unlink()
        if number == 5:
            folder.put()

    folder.looks(9, go_and_come)
    assert len(folder.asked) == 2
    (told,) = events(logged, "submitted before: it starts nothing")
    assert (told["object"], told["status"]) == ("a.txt", "SUCCEEDED")


def test_a_corrected_object_is_another_execution(make: MakeDriver, tmp_path: Path) -> None:
    folder = Folder(make, tmp_path, "output.key={inputStem}-{executionId}.out")
    folder.put()
    folder.looks()
    folder.put(content="cherry\n")
    folder.looks()
    assert folder.asked == ["apple", "cherry", "pear"]


def test_a_folder_that_is_away_is_an_error_and_not_an_empty_one(folder: Folder, logged: list[Any]) -> None:
    folder.put()
    away = folder.root / "away"
    missing: list[float] = []

    def mount(number: int) -> None:
        if number == 3:
            folder.place.rename(away)
        missing.append(folder.metrics.registry.get_sample_value("kawait_input_missing") or 0.0)
        if number == 6:
            away.rename(folder.place)

    folder.looks(9, mount)
    assert missing == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    (told,) = events(logged, "cannot be listed")
    assert (told["log_level"], told["location"]) == ("error", str(folder.place))
    assert len(events(logged, "object submitted")) == 1, "what was known before it went away is known still"


def test_files_that_no_pattern_takes_are_named_once(make: MakeDriver, tmp_path: Path, logged: list[Any]) -> None:
    folder = Folder(make, tmp_path, 'input.include=["*.csv"]')
    folder.put("a.CSV")
    folder.put("b.txt")

    def one_more(number: int) -> None:
        if number == 2:
            folder.put("c.txt")

    folder.looks(4, one_more)
    told = [set(entry["files"].split(", ")) for entry in events(logged, "no pattern of input.include")]
    assert told == [{"a.CSV", "b.txt"}, {"c.txt"}]
    assert folder.asked == []


# --- what is no input ----------------------------------------------------------------------------------------------------------------


NARROW = """
from pydantic import BaseModel, Field
from shop.domain import Line
from shop.steps import read

class SmallFile(BaseModel):
    path: str
    name: str
    size: int = Field(le=100)
"""


def test_a_file_that_is_no_input_is_one_dead_letter_in_all(
    make: MakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "narrow.py").write_text(NARROW)
    sets = ("steps.split.input=narrow:SmallFile", "steps.split.run=narrow:read")
    monkeypatch.syspath_prepend(str(code))
    folder = moving(make, tmp_path, *sets)
    folder.put("good.txt")
    folder.put("bad.txt", "bad\n" * 100)
    for _ in range(3):
        folder.looks()
        folder.driver.crash()
        folder.driver.run()
    assert folder.asked == ["apple", "pear"]
    assert folder.names() == ["done/good.txt", "failed/bad.txt"]
    (letter,) = folder.driver.dead_letters()
    assert letter.reason == "WRONG_INPUT"


# --- after -----------------------------------------------------------------------------------------------------------------------------


def test_an_object_is_moved_once_its_execution_has_ended_and_the_row_says_where(
    make: MakeDriver, tmp_path: Path
) -> None:
    folder = moving(make, tmp_path, answer=refuses_bad)
    folder.put("good.txt")
    folder.put("bad.txt", "bad\n")
    folder.looks(4)
    assert folder.names() == ["done/good.txt", "in/bad.txt"], "that one waits for its answer still"
    folder.looks(10)
    assert folder.names() == ["done/good.txt", "failed/bad.txt"]
    moved = {fact.execution_id: fact.moved_to for fact in folder.driver.facts() if isinstance(fact, InputMoved)}
    assert sorted(moved.values()) == [str(tmp_path / "done" / "good.txt"), str(tmp_path / "failed" / "bad.txt")]
    for execution, path in moved.items():
        row = folder.driver.execution(execution)
        assert row is not None
        assert row.moved_to == path
    assert folder.asked == ["apple", "bad", "pear"]


def test_an_object_whose_end_was_told_while_nobody_looked_is_moved(make: MakeDriver, tmp_path: Path) -> None:
    folder = moving(make, tmp_path, answer=lambda _request: None)
    folder.put()
    folder.looks(3)
    for request in folder.driver.requests():
        folder.driver.complete(request, price(request))
    folder.driver.run()
    folder.driver.advance(DAY_MS)
    assert folder.names() == ["in/a.txt"]
    folder.looks(4)
    assert folder.names() == ["done/a.txt"]


def test_an_outcome_that_was_missed_is_asked_for_again(make: MakeDriver, tmp_path: Path) -> None:
    folder = moving(make, tmp_path, answer=lambda _request: None)
    folder.put()

    def answer_unheard(number: int) -> None:
        if number == 4:
            for request in folder.driver.requests():
                folder.driver.complete(request, price(request))
            folder.driver.run()
            for at, end in folder.driver.log.end_offsets(_replies(folder.driver), "uncommitted", 1).items():
                folder.driver.log.trim(at, end)

    folder.looks(60, answer_unheard)
    assert folder.names() == ["done/a.txt"]


def _replies(driver: TopologyTestDriver) -> list[TopicPartition]:
    count = driver.log.topics([driver.names.replies], 1)[driver.names.replies].partitions
    return [TopicPartition(driver.names.replies, number) for number in range(count)]


def test_a_stranger_who_writes_into_the_topic_of_replies_stops_nobody(make: MakeDriver, tmp_path: Path) -> None:
    folder = moving(make, tmp_path)
    folder.put()

    def write(_number: int) -> None:
        for junk in (None, b"", b"junk"):
            folder.driver.send_raw(folder.driver.names.replies, junk)

    folder.looks(5, write)
    assert folder.names() == ["done/a.txt"]


def test_only_what_succeeded_is_deleted(make: MakeDriver, tmp_path: Path) -> None:
    folder = Folder(make, tmp_path, "input.after=delete", answer=refuses_bad)
    folder.put("good.txt")
    folder.put("bad.txt", "bad\n")
    folder.looks(14)
    assert folder.names() == ["in/bad.txt"]
    (moved,) = [fact for fact in folder.driver.facts() if isinstance(fact, InputMoved)]
    assert moved.moved_to == ""


def test_what_failed_has_a_place_where_the_rest_is_deleted(make: MakeDriver, tmp_path: Path) -> None:
    folder = Folder(make, tmp_path, "input.after=delete", f"input.failed={tmp_path / 'failed'}", answer=refuses_bad)
    folder.put("bad.txt", "bad\n")
    folder.looks(14)
    assert folder.names() == ["failed/bad.txt"]


def test_a_ready_file_goes_with_its_object(make: MakeDriver, tmp_path: Path) -> None:
    folder = moving(make, tmp_path, "input.ready.suffix=.ok")
    folder.put()
    folder.put("a.txt.ok", "")
    folder.looks()
    assert folder.names() == ["done/a.txt", "done/a.txt.ok"]


def test_an_object_that_is_replaced_before_it_is_moved_is_played_too(make: MakeDriver, tmp_path: Path) -> None:
    folder = moving(make, tmp_path)
    folder.put()

    def replace(number: int) -> None:
        if number == 2:
            folder.driver.run()
            assert folder.asked == ["apple", "pear"]
            folder.put(content="cherry\n")

    folder.looks(8, replace)
    assert folder.asked == ["apple", "pear"], "its output has the name of the first one's, so nothing was asked"
    assert folder.names() == ["failed/a.txt"]
    assert (tmp_path / "failed" / "a.txt").read_text() == "cherry\n"


def test_the_next_owner_finishes_what_is_on_its_way(make: MakeDriver, tmp_path: Path) -> None:
    folder = moving(make, tmp_path)
    path = folder.put()
    folder.looks(2)
    (execution,) = {fact.execution_id for fact in folder.driver.facts()}
    path.rename(path.with_name(f".a.txt.{execution}.moving"))
    folder.driver.crash()
    folder.driver.run()
    folder.looks()
    assert folder.names() == ["done/a.txt"]
    assert folder.asked == ["apple", "pear"]


def test_what_is_on_its_way_and_is_not_what_ran_is_taken_for_new(make: MakeDriver, tmp_path: Path) -> None:
    folder = moving(make, tmp_path)
    path = folder.put()
    folder.looks(2)
    (execution,) = {fact.execution_id for fact in folder.driver.facts()}
    path.unlink()
    folder.put(f".a.txt.{execution}.moving", "cherry\n")
    folder.looks(5)
    assert folder.asked == ["apple", "pear"], "its output has the name of the first one's, so nothing was asked"
    assert folder.names() == ["failed/a.txt"]


def test_a_place_that_cannot_be_written_is_told_once_and_tried_again(
    make: MakeDriver, tmp_path: Path, logged: list[Any]
) -> None:
    (tmp_path / "done").write_text("no folder")
    folder = moving(make, tmp_path)
    folder.put()
    folder.looks(8)
    assert len(events(logged, "cannot be moved away")) == 1
    (tmp_path / "done").unlink()
    folder.looks()
    assert folder.names() == ["done/a.txt"]
    assert folder.asked == ["apple", "pear"]


@pytest.mark.parametrize("sends_before", range(3), ids=["submission", "second submission", "note of a move"])
def test_a_broker_that_is_away_for_a_while_costs_time_only(
    make: MakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[Any], sends_before: int
) -> None:
    folder = moving(make, tmp_path)
    folder.put("a.txt")
    folder.put("b.txt", "cherry\n")
    sent: list[object] = []
    send = submissions.send

    def failing(*args: Any, timeout_s: float) -> None:
        sent.append(args[-1])
        if sends_before < len(sent) <= sends_before + 2:
            raise LogUnavailable("nobody answers")
        send(*args, timeout_s=timeout_s)

    monkeypatch.setattr("streams.roles.object_source.send", failing)
    folder.looks(10)
    assert len(events(logged, "does not answer")) == 2
    assert folder.asked == ["apple", "cherry", "pear"]
    assert folder.names() == ["done/a.txt", "done/b.txt"]
    moved = [fact for fact in folder.driver.facts() if isinstance(fact, InputMoved)]
    assert len(moved) == 2


def test_what_was_moved_starts_nothing_when_nobody_remembers_it(make: MakeDriver, tmp_path: Path) -> None:
    folder = moving(make, tmp_path)
    folder.put()
    folder.looks()
    folder.driver.advance(500 * DAY_MS)
    folder.driver.crash()
    folder.driver.run()
    folder.looks()
    assert folder.asked == ["apple", "pear"]
    assert folder.names() == ["done/a.txt"]


def test_places_below_the_folder_are_not_looked_into(make: MakeDriver, tmp_path: Path) -> None:
    below = tmp_path / "in" / "done"
    sets = (
        "input.after=move",
        f"input.done={below}",
        f"input.failed={tmp_path / 'failed'}",
        'input.include=["**/*.txt"]',
    )
    folder = Folder(make, tmp_path, *sets)
    folder.put()
    folder.looks(10)
    assert folder.names() == ["in/done/a.txt"]
    assert folder.asked == ["apple", "pear"]
    assert [path.name for path in folder.place.iterdir()] == ["done"]
