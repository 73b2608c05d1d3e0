"""The same answers without trouble: an undisturbed run on the other path, which must end with the same outputs, byte for byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec

from schemas import facts
from schemas.names import Names
from state.execution import ExecutionRecord, ExecutionStatus
from state.tables.memory import MemoryStoreFactory
from state.tables.overlay import CheckedOverlay
from streams.clock import ManualClock
from streams.doors.submissions import send
from streams.engine.aside import AtOnce
from streams.log.memory.log import MemoryLog
from streams.simulation.folder import Folder
from streams.simulation.ledger import Ledger, records_of
from streams.simulation.machines import QuietMetrics
from streams.simulation.outside import Outside
from streams.simulation.scenario import OUTPUT_TOPIC, Scenario, without_trace
from streams.simulation.violation import Breach, Violation
from streams.testing.inline_pool import InlinePool
from streams.worker.application import take_up
from streams.worker.assembly import Assembly
from streams.worker.topics import ensure_topics
from topologies.pipeline.ends import ObjectOutput, TopicOutput, TopicSource
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import AwaitStep

TIMEOUT_MS_MAX = 60_000
"""Nobody waits for months in an undisturbed run."""


class Outcome(msgspec.Struct):
    """What one execution left behind.

    Attributes:
        lines: Its records on the output topic, sorted.
        file: The object that it published.
    """

    status: ExecutionStatus
    result: bytes | None
    lines: list[bytes]
    file: bytes | None


class _Outcomes:
    """What the executions of one run left behind."""

    def __init__(self, scenario: Scenario, ledger: Ledger, log: MemoryLog) -> None:
        self._output = scenario.pipeline.output
        self._ledger = ledger
        self._lines: dict[str, list[bytes]] = {}
        if isinstance(self._output, TopicOutput):
            for record in records_of(log, OUTPUT_TOPIC):
                self._lines.setdefault((record.key or b"").decode(), []).append(record.value or b"")

    def of(self, execution_id: str) -> Outcome:
        """The outcome of one execution that has ended."""
        execution = self._ledger.ended_as(execution_id)
        assert execution is not None
        lines = sorted(self._lines.get(execution_id, []))
        return Outcome(execution.status, execution.result, lines, self._published(execution))

    def _published(self, execution: ExecutionRecord) -> bytes | None:
        if not isinstance(self._output, ObjectOutput):
            return None
        path = self._output.location / f"{execution.execution_id}.out"
        if execution.status is ExecutionStatus.SUCCEEDED and execution.outputs != [str(path)]:
            raise Violation(Breach.WRONG_PUBLICATION, f"{execution.execution_id} says it published {execution.outputs}")
        return path.read_bytes() if path.exists() else None


def check_undisturbed(scenario: Scenario, ledger: Ledger, log: MemoryLog, folder: Folder | None) -> None:
    """An undisturbed run on the other path, given the same answers, ends with the same outputs, byte for byte."""
    outcomes = _Outcomes(scenario, ledger, log)
    endings = ledger.ended
    succeeded = [execution_id for execution_id, ending in endings.items() if isinstance(ending, facts.RunSucceeded)]
    for execution_id in scenario.submissions:
        if execution_id not in succeeded:
            _check_lines(ledger, execution_id, outcomes.of(execution_id))
    if not succeeded:
        return
    if folder is None:
        _compare(scenario, ledger, outcomes, succeeded)
        return
    for execution_id in succeeded:
        with folder.set_back(scenario.submissions[execution_id]):
            _compare(scenario, ledger, outcomes, [execution_id])


def _compare(scenario: Scenario, ledger: Ledger, outcomes: _Outcomes, succeeded: list[str]) -> None:
    other = _Undisturbed(_other_path(scenario), ledger, succeeded)
    other.run()
    calm = other.outcomes()
    for execution_id in succeeded:
        mine, theirs = outcomes.of(execution_id), calm.of(execution_id)
        if mine != theirs:
            ending = other.ledger.ended[execution_id]
            raise Violation(
                Breach.OUTPUTS_DIFFER,
                f"{execution_id} ended as {mine}; undisturbed, on the other path, as {theirs} ({ending})",
            )


def _check_lines(ledger: Ledger, execution_id: str, outcome: Outcome) -> None:
    """An execution that did not succeed wrote no other lines than the outputs of its finished items."""
    stored = Counter(
        payload
        for fact in ledger.facts
        if isinstance(fact, facts.ContinuationCompleted) and fact.execution_id == execution_id
        for payload in fact.outputs
    )
    if Counter(outcome.lines) - stored:
        raise Violation(
            Breach.WRONG_PUBLICATION,
            f"{execution_id} ({outcome.status}) wrote {outcome.lines}, the outputs of its items are {stored}",
        )


def _other_path(scenario: Scenario) -> Scenario:
    """The same scenario with live and suspending swapped."""
    pipeline = scenario.pipeline
    steps = tuple(
        replace(step, live=not step.live, timeout_ms=min(step.timeout_ms, TIMEOUT_MS_MAX))
        if isinstance(step, AwaitStep)
        else step
        for step in pipeline.steps
    )
    output, source = pipeline.output, pipeline.source
    if isinstance(source, TopicSource):
        source = None  # what it submitted is submitted by hand
    if isinstance(output, ObjectOutput):
        output = replace(output, location=Path(f"{output.location}-undisturbed"))
    return replace(scenario, pipeline=replace(pipeline, source=source, steps=steps, output=output), silence=0.0)


class _Undisturbed:
    """One machine, no trouble, the answers of another run."""

    def __init__(self, scenario: Scenario, answers: Ledger, executions: list[str]) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(clock=self.clock)
        self._scenario = scenario
        self._answers = answers
        self._executions = executions
        pipeline: Pipeline = scenario.pipeline
        ensure_topics(pipeline, self.log)
        self._worker = Assembly(
            pipeline=pipeline,
            log=self.log,
            clock=self.clock,
            stores=MemoryStoreFactory(),
            instance="undisturbed",
            static=True,
            taken_up=take_up(pipeline, self.log),
            metrics=QuietMetrics(),
            make_pool=lambda: InlinePool(self.clock),
            make_overlay=CheckedOverlay,
            aside=AtOnce(),
            pace_s=0.0,
        ).build()
        self.ledger = Ledger(scenario, self.log, Names.of(pipeline.app), without_trace)
        self._outside = Outside(scenario, self.log, Random(1), without_trace, transacts=False)  # noqa: S311 - not used for anything secret

    def outcomes(self) -> _Outcomes:
        """What its executions left behind."""
        return _Outcomes(self._scenario, self.ledger, self.log)

    def run(self) -> None:
        """Submit the executions and go on until all of them have ended."""
        self._scenario.author.reset()
        producer = self.log.plain_producer()
        for execution_id in self._executions:
            send(self._scenario.pipeline, producer, self._scenario.submissions[execution_id], timeout_s=1)
        quiet, pause_ms = 0, 100
        for _ in range(2_000):
            moved = False
            for loop in self._worker.loops.values():
                moved |= loop.step()
            moved |= any(pool.is_busy for pool in self._worker.pools)
            moved |= self._answer()
            self.ledger.follow()
            if all(execution_id in self.ledger.ended for execution_id in self._executions):
                return
            quiet = 0 if moved else quiet + 1
            if quiet > 2:
                self.clock.advance(pause_ms)
                pause_ms = min(pause_ms * 2, 30_000)
            elif moved:
                pause_ms = 100
        raise Violation(Breach.OUTPUTS_DIFFER, f"the undisturbed run does not come to rest: {self.ledger.rows.by_key}")

    def _answer(self) -> bool:
        self._outside.look()
        open_, self._outside.open = self._outside.open, []
        for iid in open_:
            admitted = self._answers.admitted.get(iid)
            if admitted is not None and iid not in self._answers.timed_out:
                value = msgspec.json.decode(admitted.completion if admitted.answer is None else admitted.answer)
                self._outside.answer_with(self._outside.questions[iid], value)
        return bool(open_)
