"""A call that computes for ever and never gives the interpreter lock away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ground import Outcome, RealTime, author_project, outcome_of

NEIGHBOURS = 3
PATIENCE_S = 60.0


def neighbours_of_a_hang() -> Outcome:
    """`callTimeout` is longer than it may take to find out that the process answers nobody."""
    author_project(
        words="""
            import re
            from pathlib import Path
            from pydantic import BaseModel
            class Word(BaseModel):
                text: str
            def match(word):
                if word.text.startswith("aa"):
                    Path("hangs").touch()
                re.fullmatch(r"(a+)+", word.text)
                return word
            """,
        words_yaml="""
            app: words
            steps:
              - {name: Match, input: "words:Word", output: "words:Word", run: "words:match", callTimeout: PT12S, retry: {attempts: 1}}
            """,
    )
    worker = RealTime("words.yaml", in_step_process=True)
    worker.submit({"text": "a" * 60 + "b"})
    assert worker.until(Path("hangs").exists, PATIENCE_S)
    neighbours = [worker.submit({"text": f"neighbour {number}"}) for number in range(NEIGHBOURS)]
    worker.until(lambda: all(map(worker.end_of, neighbours)), PATIENCE_S)
    return {"ends": [worker.end_of(neighbour) for neighbour in neighbours]}


@pytest.mark.nightly
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: a call that keeps the lock ends its neighbours")
def test_a_call_that_keeps_the_interpreter_lock_costs_no_neighbour_anything() -> None:
    assert outcome_of(neighbours_of_a_hang, limit_s=90.0)["ends"] == ["RunSucceeded"] * NEIGHBOURS
