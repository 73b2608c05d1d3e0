"""A validator of the author's that raises something else than a ValueError."""

from __future__ import annotations

import sys

import pytest

from tests.faults.ground import Outcome, author_project, driver_of, outcome_of

ANSWERS = 100


def _answered(*, one_is_bad: bool) -> Outcome:
    driver = driver_of("desk.yaml")
    executions = [driver.submit({"id": f"{number}"}) for number in range(ANSWERS)]
    driver.run()
    calls_before = desk_calls()
    for number, request in enumerate(driver.new_requests()):
        driver.complete(request, {"code": 7 if one_is_bad and number == ANSWERS // 2 else "x"})
    for _ in range(20):
        driver.run()
    assert sum(driver.status(execution) == "SUCCEEDED" for execution in executions) == ANSWERS - one_is_bad
    return {
        "refused": [refusal.reason for refusal in driver.refusals()],
        "dead": [letter.reason for letter in driver.dead_letters()],
        "calls": desk_calls() - calls_before,
    }


def desk_calls() -> int:
    """How often the validator ran."""
    return len(sys.modules["desk"].calls)


def one_bad_answer_among_many() -> Outcome:
    author_project(
        desk="""
            from pydantic import BaseModel, field_validator
            calls = []
            class Ask(BaseModel):
                id: str
            class Answer(BaseModel):
                code: str
                @field_validator("code", mode="before")
                @classmethod
                def trim(cls, value):
                    calls.append(value)
                    return value.strip()  # a number has none
            """,
        desk_yaml="""
            app: desk
            steps:
              - {name: Ask, input: "desk:Ask", output: "desk:Answer", $ASK}
            """,
    )
    good = _answered(one_is_bad=False)
    return {**_answered(one_is_bad=True), "calls of good ones": good["calls"]}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: a validator that raises is a dead letter")
def test_an_answer_whose_validator_raises_is_refused_and_not_dead_lettered() -> None:
    outcome = outcome_of(one_bad_answer_among_many)
    assert (outcome["refused"], outcome["dead"]) == (["wrong-shape"], [])


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: a validator that raises has its batch decided anew")
def test_an_answer_whose_validator_raises_has_no_other_answer_judged_again() -> None:
    outcome = outcome_of(one_bad_answer_among_many)
    assert outcome["calls"] <= outcome["calls of good ones"]
