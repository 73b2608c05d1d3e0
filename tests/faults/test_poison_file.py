"""A file in the input folder that is not of the pipeline's input type."""

from __future__ import annotations

from pathlib import Path

from tests.faults.ground import Outcome, author_project, driver_of, look_at_input, outcome_of, put_file

SIZE_MAX = 1_000


def one_file_too_large() -> Outcome:
    author_project(
        lines="""
            from pydantic import BaseModel, Field
            class File(BaseModel):
                path: str
                size: int = Field(le=1_000)
            class Line(BaseModel):
                text: str
            def read(file):
                yield Line(text=file.path)
            """,
        lines_yaml="""
            app: lines
            input: {from: object, provider: filesystem, location: in}
            steps:
              - {name: Read, cardinality: ONE_TO_MANY, input: "lines:File", output: "lines:Line", run: "lines:read"}
            output: {to: object, provider: filesystem, location: out, key: "{groupKey}.out", format: csv}
            """,
    )
    put_file("in/a-large.txt", "x" * SIZE_MAX + "\n")
    put_file("in/b-good.txt", "x\n")
    driver = driver_of("lines.yaml")
    stopped = look_at_input(driver)
    return {
        "stopped": [str(error) for error in stopped],
        "dead": ["a-large.txt" in f"{letter}" for letter in driver.dead_letters()],
        "published": sorted(path.name for path in Path("out").glob("*")),
    }


def test_a_file_that_is_not_of_the_input_type_stops_no_worker() -> None:
    assert outcome_of(one_file_too_large)["stopped"] == []


def test_a_file_that_is_not_of_the_input_type_is_dead_lettered_once() -> None:
    assert outcome_of(one_file_too_large)["dead"] == [True]


def test_the_files_beside_it_are_played() -> None:
    assert outcome_of(one_file_too_large)["published"] == ["b-good.txt.out"]
