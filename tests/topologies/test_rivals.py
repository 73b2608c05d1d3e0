"""The broker says that our instance name belongs to another member: a newer process, or a ghost of our own (DESIGN 6 'Set-up')."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas.errors import InstanceFenced, LogUnavailable
from streams.engine.membership import RIVAL_S_MAX
from streams.log.seam import GroupConsumer, TopicPartition

LINE = {"basket": "b1", "sku": "apple"}


class Nobody:
    """Takes what it is assigned and does nothing with it."""

    def on_assign(self, partitions: Sequence[TopicPartition]) -> None: ...
    def on_revoke(self, partitions: Sequence[TopicPartition]) -> None: ...
    def on_lost(self, partitions: Sequence[TopicPartition]) -> None: ...


def rival_of(driver: Any) -> GroupConsumer:
    """A member under the core's name."""
    names = driver.names
    topics = (names.commands, names.completions)
    rival: GroupConsumer = driver.log.group_consumer(
        group=names.group("core"), instance="driver", topics=topics, rebalance=Nobody()
    )
    rival.poll(1, 0.0)
    return rival


def live_on(driver: Any, loop: Any, rival: GroupConsumer) -> None:
    """Both go on for longer than a ghost could."""
    for _ in range(100):
        loop.step()
        rival.poll(1, 0.0)
        driver.clock.advance(500)


def without_producer(driver: Any) -> Any:
    """The core has lost its producer, and meets the rival while it waits to make a new one."""
    driver.run()
    loop = driver.worker.loops["core"]
    loop._take_over_own(fenced=True)
    return loop


def test_a_member_that_is_gone_after_its_session_timeout_was_a_ghost(make: Any, logged: list[Any]) -> None:
    """Measured: the broker restarts, the client loses its offsets request, and its own second join fences it. Work goes on by itself."""
    driver = make("scalar")
    loop = without_producer(driver)
    rival_of(driver).close()
    for _ in range(3):
        driver.step()
    driver.clock.advance(int(RIVAL_S_MAX * 1000))
    execution = driver.submit(LINE)
    driver.run()
    assert loop.is_ready
    assert driver.status(execution) == "WAITING_EXTERNAL"
    assert [entry["event"] for entry in logged if "joining anew" in entry["event"]] == [
        "fenced by a member that is gone; joining anew"
    ]


def test_a_member_that_stays_is_a_newer_process(make: Any) -> None:
    """The newest wins: we write nothing, take nothing from it, and end."""
    driver = make("scalar")
    loop = without_producer(driver)
    rival = rival_of(driver)
    with pytest.raises(InstanceFenced):
        live_on(driver, loop, rival)
    assert loop._producer is None
    assert driver.clock.monotonic_s() >= RIVAL_S_MAX


def test_while_the_broker_is_away_nobody_is_judged(make: Any) -> None:
    driver = make("scalar")
    loop = without_producer(driver)
    rival = rival_of(driver)
    loop.step()
    driver.log.set_available(available=False)
    for _ in range(100):
        loop.step()
        driver.clock.advance(1_000)
    driver.log.set_available(available=True)
    loop.step()  # the rival gets its time once more
    with pytest.raises(InstanceFenced):
        live_on(driver, loop, rival)


def test_who_has_a_producer_asks_it(make: Any, logged: list[Any]) -> None:
    """Who still holds the transactional id was fenced by nobody else; no waiting."""
    driver = make("scalar")
    driver.run()
    rival_of(driver).close()
    execution = driver.submit(LINE)
    driver.run()
    assert driver.status(execution) == "WAITING_EXTERNAL"
    assert any("own earlier join" in entry["event"] for entry in logged)
    driver.log.producer(driver.names.transactional_id("core", "driver")).init(1)  # now a newer process has it
    rival_of(driver)
    with pytest.raises(InstanceFenced):
        driver.run()


def test_an_unanswered_question_is_asked_again(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make("scalar")
    driver.run()
    rival_of(driver).close()
    loop = driver.worker.loops["core"]
    answers = [LogUnavailable("away"), True]

    def holds_id(*_asked: object) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    monkeypatch.setattr(loop._producer, "holds_id", holds_id)
    loop.step()
    assert answers == [True]
    driver.run()
    assert answers == []
    assert loop.is_ready
