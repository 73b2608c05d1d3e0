"""Values that pass validation, and whose JSON does not lead back to them."""

from __future__ import annotations

import json

import pytest

from tests.faults.ground import (
    KawaitError,
    Outcome,
    author_project,
    driver_of,
    outcome_of,
    submission_id,
)

NO_NUMBER = b'{"rate": 1e999}'


def _project() -> None:
    pipeline = """
        app: lossy
        steps:
          - {name: Ask, input: "rates:Ask", output: "rates:GIVES", $ASK}
          - {name: End, input: "rates:GIVES", output: "rates:Done", run: "rates:end"}
        """
    author_project(
        rates="""
            from pydantic import BaseModel
            class Ask(BaseModel):
                id: str
            class Rate(BaseModel):
                rate: float
            class Maybe(BaseModel):
                rate: float | None = None
            class Done(BaseModel):
                text: str
            class Tagged(Ask):
                tags: set[str]
            def end(answer):
                return Done(text=str(answer.rate))
            def untag(tagged):
                return Ask(id=tagged.id)
            """,
        rate_yaml=pipeline.replace("GIVES", "Rate"),
        maybe_yaml=pipeline.replace("GIVES", "Maybe"),
        tagged_yaml="""
            app: tagged
            steps:
              - {name: Untag, input: "rates:Tagged", output: "rates:Ask", run: "rates:untag"}
            """,
    )


def no_number_first() -> Outcome:
    _project()
    outcome: Outcome = {}
    for name in ("rate", "maybe"):
        driver = driver_of(f"{name}.yaml")
        execution = driver.submit({"id": "a"})
        driver.run()
        (request,) = driver.new_requests()
        driver.complete(request, NO_NUMBER)
        driver.run()
        refused = [refusal.reason for refusal in driver.refusals()]
        driver.complete(request, {"rate": 1.5})
        for _ in range(5):
            driver.advance(5_000)
        outcome[name] = {"refused": refused, "result": driver.result(execution)}
    return outcome


def submission_of_a_set() -> Outcome:
    _project()
    try:
        return {"id": submission_id("tagged.yaml", json.dumps({"id": "a", "tags": list("abcdefgh")}).encode())}
    except KawaitError:
        return {"id": "refused at load"}


@pytest.mark.parametrize("shape", ["rate", "maybe"])
def test_an_answer_with_a_number_that_json_cannot_say_is_refused(shape: str) -> None:
    assert outcome_of(no_number_first)[shape]["refused"] == ["wrong-shape"]


@pytest.mark.parametrize("shape", ["rate", "maybe"])
def test_the_good_answer_after_it_is_the_one_that_counts(shape: str) -> None:
    assert outcome_of(no_number_first)[shape]["result"] == {"text": "1.5"}


def test_equal_payloads_are_one_submission_whatever_process_reads_them() -> None:
    ids = {outcome_of(submission_of_a_set, hash_seed=seed)["id"] for seed in (0, 1)}
    assert len(ids) == 1
