"""Calls that each keep to `callTimeout`, and many of them in one job; and one that does not."""

from __future__ import annotations

import threading

import pytest

from tests.faults.ground import Outcome, RealTime, author_project, outcome_of

ITEMS = 10
HANGING_ITEM = 1
PATIENCE_S = 15.0
NAMES = ("source", "segment", "mixed", "hang")


def _project() -> None:
    """A call may take a second, and none but the one that hangs takes a third of it; two attempts each."""
    limits = "callTimeout: PT1S, retry: {attempts: 2, base: PT0.1S}"
    ask = '  - {name: Ask, input: "calls:Line", output: "calls:Line", $ASK}\n'

    def step(name: str, gives: str, run: str, more: str = limits) -> str:
        takes = "Job" if name == "Split" else "Line"
        cardinality = "ONE_TO_MANY" if name == "Split" else "ONE_TO_ONE"
        return f'  - {{name: {name}, cardinality: {cardinality}, input: "calls:{takes}", output: "calls:{gives}", run: "calls:{run}", {more}}}\n'

    fast = step("Split", "Line", "fast")
    steps = {
        "source": step("Split", "Line", "slow_split") + ask + step("End", "Done", "later"),
        "segment": fast + step("End", "Done", "slow_end"),
        "mixed": fast + ask + step("Slow", "Line", "slow") + step("End", "Done", "later"),
        "hang": fast + ask + step("End", "Done", "may_hang"),
    }
    author_project(
        calls=f"""
            import asyncio
            import time
            from pydantic import BaseModel
            SLOW_S = 0.3
            class Job(BaseModel):
                count: int
            class Line(BaseModel):
                index: int
            class Done(BaseModel):
                index: int
            def fast(job):
                for index in range(job.count):
                    yield Line(index=index)
            def slow_split(job):
                for line in fast(job):
                    time.sleep(SLOW_S)
                    yield line
            def slow(line):
                time.sleep(SLOW_S)
                return line
            def slow_end(line):
                return Done(index=slow(line).index)
            async def later(line):
                await asyncio.sleep(0.01)
                return Done(index=line.index)
            async def may_hang(line):
                if line.index == {HANGING_ITEM}:
                    await asyncio.sleep(3600)
                return await later(line)
            """,
        **{f"{name}_yaml": f"app: {name}\nsteps:\n{text}" for name, text in steps.items()},
    )


def _play(worker: RealTime, outcome: Outcome) -> None:
    execution = worker.submit({"count": ITEMS})

    def is_over() -> bool:
        if worker.pipeline.await_steps:
            worker.answer(lambda request: {"index": request.item_index}, at_least=ITEMS)
        return worker.end_of(execution) is not None

    if worker.until(is_over, PATIENCE_S):
        charged = sorted({item for item in worker.failed_attempts(execution) if item is not None})
        outcome[worker.pipeline.app] = {"end": worker.end_of(execution), "charged": charged}


def side_by_side() -> Outcome:
    _project()
    outcome: Outcome = {}
    workers = [RealTime(f"{name}.yaml") for name in NAMES]
    players = [threading.Thread(target=_play, args=(worker, outcome)) for worker in workers]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert sorted(outcome) == sorted(NAMES), outcome
    return outcome


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: callTimeout covers a pull of many items")
def test_a_source_may_take_its_call_timeout_for_each_item() -> None:
    assert outcome_of(side_by_side)["source"]["end"] == "RunSucceeded"


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: callTimeout covers a whole segment")
def test_a_step_of_a_segment_may_take_its_call_timeout_for_each_item() -> None:
    assert outcome_of(side_by_side)["segment"]["end"] == "RunSucceeded"


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: callTimeout covers a chunk of async suffixes")
def test_a_step_before_an_async_one_may_take_its_call_timeout_for_each_item() -> None:
    assert outcome_of(side_by_side)["mixed"] == {"end": "RunSucceeded", "charged": []}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: neighbours are blamed for an async call that hangs")
def test_an_async_call_that_hangs_is_charged_to_its_own_item_only() -> None:
    assert outcome_of(side_by_side)["hang"]["charged"] == [HANGING_ITEM]
