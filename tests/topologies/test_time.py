"""Time: whose clock a deadline follows, when an answer counts as come in, and what a deadline waits for (DECISIONS 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from schemas import facts, limits
from schemas.errors import LogUnavailable, UsageError
from schemas.topics import external_topic
from streams.clock import SkewedClock
from streams.doors.outcomes import Outcomes
from streams.worker.run import report_gauges
from streams.worker.topics import topic_remarks
from tests.faults.ground import restart_with
from tests.topologies.outside import answer, price

if TYPE_CHECKING:
    from schemas.envelopes import RequestEnvelope
    from streams.clock import Clock
    from streams.log.memory.producer import MemoryProducer
    from streams.testing.driver import TopologyTestDriver

MINUTE = 60_000
HOUR = 60 * MINUTE
LINE = {"basket": "b1", "sku": "apple"}
BASKET = {"id": "b1", "lines": ["apple", "pear", "plum"]}
ONE_PARTITION = ("kafka.partitions=1",)


def asked(driver: TopologyTestDriver, payload: Any = LINE) -> tuple[str, list[RequestEnvelope]]:
    execution = driver.submit(payload)
    driver.run()
    return execution, driver.new_requests()


def steps(driver: TopologyTestDriver, *roles: str, turns: int = 20) -> None:
    """Only these roles go on."""
    for _ in range(turns):
        for role in roles:
            driver.worker.loops[role].step()


def without_append_time(driver: TopologyTestDriver) -> None:
    """The response topic was made by others: it keeps its senders' times."""
    (topic,) = driver.pipeline.response_topics
    driver.log.delete_topic(topic)
    driver.log.create_topics([external_topic(topic, partitions=driver.pipeline.partitions, replication_factor=1)], 1)
    driver.crash()  # a worker does not go on with another topic than it has taken up


def refused(driver: TopologyTestDriver) -> list[str]:
    return [refusal.reason for refusal in driver.refusals()]


# --- what a deadline waits for -------------------------------------------------------------------------------------------------------


def test_a_thousand_answers_that_ingress_has_not_seen_are_all_in_time(make: Any) -> None:
    """Core runs, ingress is stopped for longer than the wait: no deadline rings before ingress has passed what lay there."""
    driver = make("items", sets=("steps.ask.await.live=false",))
    execution, requests = asked(driver, {"id": "b1", "lines": [f"s{number}" for number in range(1_000)]})
    driver.clock.advance(MINUTE // 2)
    for request in requests:
        driver.complete(request, price(request))
    for _ in range(10):
        driver.clock.advance(MINUTE)
        steps(driver, "core", "continuation", turns=3)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    driver.run()
    assert (driver.status(execution), refused(driver)) == ("SUCCEEDED", [])


def in_open_transaction(driver: TopologyTestDriver, requests: Sequence[RequestEnvelope]) -> MemoryProducer:
    """A provider that has written its answers and has not committed them."""
    producer = driver.log.producer("provider")
    producer.init(1)
    producer.begin()
    for request in requests:
        envelope = {
            "interactionId": request.interaction_id,
            "resumeToken": request.resume_token,
            "responsePayload": price(request),
        }
        producer.produce(driver.pipeline.response_topics[0], msgspec.json.encode(envelope), partition=0)
    return producer


@pytest.mark.parametrize("commits", [True, False])
def test_a_deadline_waits_for_the_providers_open_transaction(make: Any, commits: bool) -> None:
    """Its answers were there in time; whether they are answers is known at its end."""
    driver = make("scalar")
    execution, requests = asked(driver)
    driver.clock.advance(MINUTE // 2)
    producer = in_open_transaction(driver, requests)
    driver.advance(10 * MINUTE)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    if commits:
        producer.commit(1)
    else:
        producer.abort()
    driver.run()
    assert driver.status(execution) == ("SUCCEEDED" if commits else "FAILED")


def test_a_deadline_rings_behind_what_was_given_up_and_behind_markers(make: Any) -> None:
    """Ingress commits its position past them, or the deadline would never ring."""
    driver = make("scalar")
    execution, _ = asked(driver)
    producer = driver.log.producer("provider")
    producer.init(1)
    for number in range(driver.pipeline.partitions):
        producer.begin()
        producer.produce(driver.pipeline.response_topics[0], b"given up", partition=number)
        producer.abort()
    driver.advance(MINUTE)
    assert driver.status(execution) == "FAILED"


def test_a_gate_that_stays_shut_is_told_and_never_opens_by_itself(make: Any, logged: list[Any]) -> None:
    driver = make("scalar", sets=ONE_PARTITION)
    execution, _ = asked(driver)
    driver.send_raw(driver.pipeline.response_topics[0], b"junk")

    def held() -> float:
        report_gauges(driver.worker.loops["core"], driver.worker)
        return float(driver.metric("kawait_deadlines_held"))

    driver.clock.advance(MINUTE)
    steps(driver, "core")
    assert held() == 0
    for _ in range(100):
        driver.clock.advance(limits.GATE_SHUT_TOLD_MS)
        steps(driver, "core", turns=3)
        assert held() == 1
    assert driver.status(execution) == "WAITING_EXTERNAL"
    told = [entry for entry in logged if entry["event"].startswith("deadlines are held back")]
    assert [(entry["topic"], entry["group"]) for entry in told] == [("scalar.answered", "scalar.ingress")]
    driver.run()
    assert driver.status(execution) == "FAILED"
    assert held() == 0


def test_a_deadline_waits_while_the_broker_does_not_say(make: Any) -> None:
    driver = make("scalar")
    execution, requests = asked(driver)
    driver.complete(requests[0], price(requests[0]))
    driver.clock.advance(MINUTE)
    driver.log.set_available(available=False)
    steps(driver, "core")
    driver.log.set_available(available=True)
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"


def test_the_last_wait_for_a_continuation_lets_the_agents_start(make: Any) -> None:
    """All workers were away; core is back first, and the record that it emitted last still lies there."""
    driver = make("items", sets=("steps.ask.await.live=false", "steps.ask.timeout=P1D", *ONE_PARTITION))
    execution, requests = asked(driver, {"id": "b", "lines": ["apple"]})
    driver.complete(requests[0], price(requests[0]))
    steps(driver, "ingress", "core")
    while driver.fact_names(execution).count("ContinuationSegmentCreated") < limits.CONTINUATION_ATTEMPTS_MAX:
        driver.clock.advance(limits.CONTINUATION_TIMEOUT_MS)
        steps(driver, "core", turns=5)
    driver.clock.advance(48 * HOUR)
    driver.crash()
    steps(driver, "core")
    driver.run()
    assert (driver.status(execution), driver.dead_letters()) == ("SUCCEEDED", [])


# --- when an answer came in ------------------------------------------------------------------------------------------------------------


def test_the_stamp_of_the_response_topic_says_when_an_answer_came_in(make: Any) -> None:
    """It is what `completedAt` shows, however much later the answer was taken over."""
    driver = make("scalar")
    execution, requests = asked(driver)
    driver.clock.advance(7_000)
    came_in_ms = driver.clock.now_ms()
    driver.complete(requests[0], price(requests[0]))
    driver.clock.advance(9_000)
    driver.run()
    (admitted,) = [fact for fact in driver.facts(execution) if isinstance(fact, facts.BoundaryCompletionAdmitted)]
    assert admitted.completed_at_ms == came_in_ms


def test_an_answer_that_came_in_at_its_deadline_is_late_though_nothing_rang(make: Any) -> None:
    driver = make("scalar")
    execution, requests = asked(driver)
    driver.clock.advance(MINUTE)
    driver.complete(requests[0], price(requests[0]))
    steps(driver, "ingress")
    driver.worker.loops["core"].step()
    assert refused(driver) == ["late"]
    driver.run()
    assert driver.status(execution) == "FAILED"


def test_without_the_brokers_stamp_an_answer_is_in_time_until_its_deadline_rings(make: Any) -> None:
    """Nobody can say when it came in: no time is compared, and what it is shown with is when it was taken over."""
    driver = make("scalar", sets=ONE_PARTITION)
    without_append_time(driver)
    first, requests = asked(driver)
    driver.clock.advance(2 * MINUTE)
    driver.complete(requests[0], price(requests[0]))
    driver.clock.advance(1_000)
    driver.run()
    assert driver.status(first) == "SUCCEEDED"
    (admitted,) = [fact for fact in driver.facts(first) if isinstance(fact, facts.BoundaryCompletionAdmitted)]
    assert admitted.completed_at_ms == driver.clock.now_ms()
    second, requests = asked(driver, {"basket": "b1", "sku": "pear"})
    driver.advance(MINUTE)
    answer(driver, *requests)
    assert (driver.status(second), refused(driver)) == ("FAILED", ["late"])


def test_a_response_topic_without_the_brokers_stamp_is_told(make: Any) -> None:
    driver = make("scalar")
    assert topic_remarks(driver.pipeline, driver.log) == []
    without_append_time(driver)
    (remark,) = topic_remarks(driver.pipeline, driver.log)
    assert "scalar.answered has message.timestamp.type=CreateTime, not LogAppendTime" in remark
    assert "--add-config message.timestamp.type=LogAppendTime" in remark


# --- the broker's clock ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_ms", [30_000, -30_000, 200_000, -200_000])
def test_a_worker_whose_clock_is_wrong_goes_by_the_brokers(make: Any, skew_ms: int, logged: list[Any]) -> None:
    """It says so once; deadlines are set and rung by the broker's clock, and answers meet no other."""
    driver = make("scalar")
    restart_with(driver, clock=SkewedClock(driver.clock, skew_ms))
    execution, requests = asked(driver)
    assert requests[0].deadline_epoch_ms == driver.clock.now_ms() + MINUTE
    driver.advance(MINUTE - 1)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    driver.advance(1)
    assert driver.status(execution) == "FAILED"
    assert driver.metric("kawait_clock_difference_seconds") == -skew_ms / 1000
    driver.advance(HOUR)
    warnings = [entry for entry in logged if entry["event"].startswith("this machine's clock")]
    where = "ahead of" if skew_ms > 0 else "behind"
    assert [entry["detail"] for entry in warnings] == [f"{abs(skew_ms) / 1000:.1f} s {where} the broker's"]


def test_executions_move_between_workers_whose_clocks_differ(make: Any) -> None:
    """A deadline that one has set rings on time with another."""
    driver = make("scalar")
    restart_with(driver, clock=SkewedClock(driver.clock, 100_000))
    execution, _ = asked(driver)
    restart_with(driver, clock=SkewedClock(driver.clock, -100_000))
    driver.advance(MINUTE - 1)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    driver.advance(1)
    assert driver.status(execution) == "FAILED"


@pytest.mark.parametrize("skew_ms", [301_000, -301_000])
def test_a_worker_whose_clock_is_far_off_does_not_run(make: Any, skew_ms: int) -> None:
    driver = make("scalar")
    restart_with(driver, clock=SkewedClock(driver.clock, skew_ms))
    with pytest.raises(UsageError, match=r"this machine's clock is 301 s .* the broker's, more than 300 s.*NTP"):
        driver.run()


def test_nothing_is_decided_before_the_brokers_time_is_known(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make("scalar")

    def unknown(*_arguments: object, **_named: object) -> int:
        raise LogUnavailable("not now")

    with monkeypatch.context() as patched:
        patched.setattr("streams.log.memory.producer.MemoryPlainProducer.send", unknown)
        driver.crash()
        for _ in range(50):
            driver.worker.loops["core"].step()
        assert not driver.worker.is_ready
    assert driver.status(asked(driver)[0]) == "WAITING_EXTERNAL"


def test_setting_the_machines_clock_moves_no_deadline(make: Any) -> None:
    driver = make("scalar")
    clock = SkewedClock(driver.clock, 0)
    restart_with(driver, clock=clock)
    execution, _ = asked(driver)
    for by_ms in (200_000, -200_000):
        clock.set(by_ms)
        driver.run()
        assert driver.status(execution) == "WAITING_EXTERNAL"
    driver.advance(MINUTE)
    assert driver.status(execution) == "FAILED"


class SleepyClock:
    """Of a machine that sleeps at times: its seconds stand still meanwhile."""

    def __init__(self, true: Clock) -> None:
        self._true = true
        self.slept_ms = 0

    def now_ms(self) -> int:
        return self._true.now_ms()

    def monotonic_s(self) -> float:
        return self._true.monotonic_s() - self.slept_ms / 1000


def test_a_machine_that_slept_asks_for_the_time_before_it_sets_a_deadline(make: Any) -> None:
    driver = make("scalar")
    clock = SleepyClock(driver.clock)
    restart_with(driver, clock=clock)
    driver.run()
    driver.clock.advance(HOUR)
    clock.slept_ms += HOUR
    _, requests = asked(driver)
    assert requests[0].deadline_epoch_ms == driver.clock.now_ms() + MINUTE


def test_whoever_waits_for_an_outcome_takes_no_notice_of_probes(make: Any) -> None:
    driver = make("scalar", answer=price)
    with Outcomes(driver.log, driver.pipeline.app, clock=driver.clock) as outcomes:
        for _ in range(3):
            driver.advance(limits.PROBE_EVERY_MS)
        execution = driver.submit(LINE)
        driver.run()
        assert outcomes.wait([execution], timeout_s=1)[execution].succeeded


# --- fairness ----------------------------------------------------------------------------------------------------------------------------


def test_rings_take_only_their_share_of_a_batch(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of deadlines at once hold up nobody: a record that comes meanwhile is decided in the next batch."""
    driver = make("scalar", sets=ONE_PARTITION)
    monkeypatch.setattr(limits, "BATCH_RECORDS_MAX", 80)
    for number in range(200):
        driver.submit({"basket": "b", "sku": f"s{number}"})
    driver.run()
    driver.clock.advance(MINUTE)
    steps(driver, "ingress")
    core = driver.worker.loops["core"]
    while driver.fact_names().count("InteractionTimedOut") == 0:
        core.step()
    assert driver.fact_names().count("InteractionTimedOut") == 80 // limits.RINGS_SHARE
    other = driver.submit({"basket": "b", "sku": "other"})
    for _ in range(3):
        core.step()
    assert "RunSubmitted" in driver.fact_names(other)
    assert driver.fact_names().count("InteractionTimedOut") < 200
    driver.run()
    assert driver.fact_names().count("InteractionTimedOut") == 200


def test_a_steady_backlog_of_one_partition_starves_no_other(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make("scalar", sets=("kafka.partitions=3",))
    driver.run()
    monkeypatch.setattr(limits, "BATCH_RECORDS_MAX", 5)
    executions = [driver.submit({"basket": "b", "sku": f"s{number}"}) for number in range(12)]
    for _ in range(60):
        for number in range(3):
            for _ in range(5):
                driver.send_raw(driver.names.completions, b"junk", partition=number)
        for loop in driver.worker.loops.values():
            loop.step()
    assert [driver.status(execution) for execution in executions] == ["WAITING_EXTERNAL"] * 12


def test_a_gate_opens_while_records_always_wait(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backlog of three partitions grows all the time: a batch never takes all that is read, and timers ring all the same."""
    driver = make("scalar", sets=("kafka.partitions=3", "steps.ask.timeout=PT5S"))
    executions = [driver.submit({"basket": "b", "sku": f"s{number}"}) for number in range(12)]
    driver.run()
    monkeypatch.setattr(limits, "BATCH_RECORDS_MAX", 5)
    core = driver.worker.loops["core"]
    for _ in range(150):
        driver.clock.advance(1_000)
        for number in range(3):
            for _ in range(4):
                driver.send_raw(driver.names.completions, b"junk", partition=number)
        for loop in driver.worker.loops.values():
            loop.step()
    assert all(task.is_waiting() for task in core.tasks.values())
    assert [driver.status(execution) for execution in executions] == ["FAILED"] * 12


def test_a_backlog_holds_each_deadline_for_as_long_as_it_lasts_and_no_longer(make: Any) -> None:
    """Rounds of a gate are under way side by side: a deadline behind another does not wait for the other's answers first."""
    driver = make("scalar", sets=ONE_PARTITION)
    first, _ = asked(driver)
    driver.clock.advance(10_000)
    second, requests = asked(driver, {"basket": "b1", "sku": "pear"})
    driver.clock.advance(MINUTE - 10_000)
    driver.send_raw(driver.pipeline.response_topics[0], b"junk")
    steps(driver, "core")
    driver.clock.advance(9_999)
    driver.complete(requests[0], price(requests[0]))
    driver.clock.advance(1)
    steps(driver, "core")
    ingress = driver.worker.loops["ingress"]
    gates = next(iter(driver.worker.loops["core"].tasks.values())).deadlines._gates
    assert [len(lane.rounds) for lane in gates.lanes if lane.rounds] == [2]
    while not refused(driver) and driver.status(first) != "FAILED":
        ingress.step()
        steps(driver, "core", turns=2)
    driver.run()
    assert (driver.status(first), driver.status(second)) == ("FAILED", "SUCCEEDED")
