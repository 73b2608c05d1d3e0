"""`output.format: csv` for a type that is no row."""

from __future__ import annotations

from pathlib import Path

from tests.faults.ground import KawaitError, Outcome, author_project, driver_of, outcome_of

REASON = "refunded 100.00"


def _project() -> None:
    pipeline = """
        app: late
        input: {from: object, provider: filesystem, location: in}
        steps:
          - {name: Read, cardinality: ONE_TO_MANY, input: "payments:File", output: "payments:Line", run: "payments:read"}
          - {name: Ask, input: "payments:Line", output: "payments:Line", $ASK}
          - {name: End, input: "payments:Line", output: "payments:GIVES", run: "payments:RUN"}
        output: {to: object, provider: filesystem, location: out, key: "{groupKey}.out", format: csv}
        """
    author_project(
        payments=f"""
            from pathlib import Path
            from typing import Literal
            from pydantic import BaseModel
            class File(BaseModel):
                path: str
            class Line(BaseModel):
                id: str
            class Good(BaseModel):
                kind: Literal["good"] = "good"
                id: str
            class Bad(BaseModel):
                kind: Literal["bad"] = "bad"
                id: str
                why: str
            class Nested(BaseModel):
                id: str
                tags: list[str]
            Either = Good | Bad
            def read(file):
                for text in Path(file.path).read_text().split():
                    yield Line(id=text)
            def nested(line):
                return Nested(id=line.id, tags=["a"])
            def either(line):
                return Good(id=line.id) if line.id < "b" else Bad(id=line.id, why="{REASON}")
            """,
        nested_yaml=pipeline.replace("GIVES", "Nested").replace("RUN", "nested"),
        either_yaml=pipeline.replace("GIVES", "Either").replace("RUN", "either"),
    )
    Path("letters.txt").write_text("a b c\n")


def _played(pipeline: str) -> tuple[int, str | None]:
    """How many requests were sent, and what was published; nothing at all where it is refused at load."""
    try:
        driver = driver_of(pipeline, answer=lambda request: {"id": "abc"[request.item_index or 0]})
    except KawaitError:
        return 0, None
    driver.submit(file="letters.txt")
    for _ in range(10):
        driver.advance(10_000)
    published = Path("out", "letters.txt.out")
    return len(driver.requests()), published.read_text() if published.exists() else None


def played() -> Outcome:
    _project()
    requests, _ = _played("nested.yaml")
    _, published = _played("either.yaml")
    return {"requests": requests, "published": published}


def test_no_request_is_sent_for_an_output_that_cannot_be_a_row() -> None:
    assert outcome_of(played)["requests"] == 0


def test_what_is_published_has_the_columns_of_every_arm() -> None:
    published = outcome_of(played)["published"]
    assert published is None or published.count(REASON) == 2
