"""Gathering: how large a batch is, and who is in it."""

from __future__ import annotations

from typing import Any, cast

from schemas import limits
from streams.clock import ManualClock
from streams.engine.gathering import Gathering
from streams.engine.owned_tasks import OwnedTasks
from streams.engine.pool import Pool
from streams.engine.task import Task
from streams.log.seam import Record
from streams.roles.core.agenda import Agenda


class Backlog:
    """A task with more events than any batch takes."""

    def __init__(self, due_ms: int | None) -> None:
        self._due_ms = due_ms

    def has_work(self) -> bool:
        return True

    def next_due_ms(self) -> int | None:
        return self._due_ms

    def events(self, room: int) -> list[Any]:
        return [self] * room


class Owned:
    """As many of them as a worker owns."""

    def __init__(self, tasks: int, due_ms: int | None) -> None:
        self.all_running = [Backlog(due_ms) for _ in range(tasks)]


CLOCK = ManualClock()
SOON = CLOCK.now_ms()
LATER = CLOCK.now_ms() + 60_000


def gathering(tasks: int, due_ms: int | None = SOON) -> Gathering:
    return Gathering(cast("OwnedTasks", Owned(tasks, due_ms)), None, CLOCK)


def test_each_task_has_its_part_of_a_batch() -> None:
    found = cast("list[Any]", gathering(4).batch())
    assert sorted(found.count(task) for task in set(found)) == [limits.BATCH_RECORDS_MAX // 4] * 4


def test_a_slow_batch_makes_the_next_ones_smaller_until_they_are_quick_again() -> None:
    """Timers wait for a batch: one of several seconds would make all of them late."""
    made = gathering(1)
    made.took(limits.BATCH_RECORDS_MAX, 10 * limits.BATCH_S_MAX)
    assert len(made.batch()) == limits.BATCH_RECORDS_MAX // 10
    made.took(400, limits.BATCH_S_MAX / 2)
    assert len(made.batch()) == limits.BATCH_RECORDS_MAX // 5
    for _ in range(10):
        made.took(400, 0.01)
    assert len(made.batch()) == limits.BATCH_RECORDS_MAX


def test_where_no_timer_is_due_a_slow_batch_stays_as_large_as_it_is() -> None:
    for due_ms in (None, LATER):
        made = gathering(1, due_ms)
        made.took(limits.BATCH_RECORDS_MAX, 10 * limits.BATCH_S_MAX)
        assert len(made.batch()) == limits.BATCH_RECORDS_MAX


def test_no_slowness_makes_batches_smaller_than_worth_their_transaction() -> None:
    made = gathering(1)
    for _ in range(10):
        made.took(len(made.batch()), 60.0)
    assert len(made.batch()) == limits.BATCH_RECORDS_MIN


def test_commands_have_a_share_beside_answers_and_the_whole_room_where_there_are_none() -> None:
    """A backlog of new work must not hold up the answers that end what has begun, nor the deadlines that wait for those."""
    agenda = Agenda(cast("Task", None), cast("Pool", None))
    record = cast("Record", None)
    for number in range(100):
        agenda.wake_command(f"command {number}", record)
        agenda.wake(f"answer {number}")
    first = [entry.event for entry in agenda.take(40)]
    assert sum(event.startswith("answer") for event in first) >= 34
    assert first[0] == "command 0"
    ones = [entry.event for _ in range(limits.COMMANDS_SHARE) for entry in agenda.take(1)]
    assert any(event.startswith("command") for event in ones), "a small room has a place for them now and then"
    while agenda.ready:
        assert list(agenda.take(40))
    assert len(list(agenda.take(40))) == 40
