"""More items than an aggregate after the await may take."""

from __future__ import annotations

import json

from tests.faults.ground import Outcome, author_project, counted_reads, driver_of, limits, outcome_of

ITEMS = 600
ITEMS_MAX = 200


def too_many_items() -> Outcome:
    author_project(
        sums="""
            from pydantic import BaseModel
            class Job(BaseModel):
                count: int
            class Line(BaseModel):
                id: int
            class Total(BaseModel):
                count: int
            def split(job):
                for number in range(job.count):
                    yield Line(id=number)
            def total(lines):
                return Total(count=len(lines))
            """,
        sums_yaml="""
            app: sums
            steps:
              - {name: Split, cardinality: ONE_TO_MANY, input: "sums:Job", output: "sums:Line", run: "sums:split"}
              - {name: Ask, input: "sums:Line", output: "sums:Line", $ASK}
              - {name: Total, cardinality: MANY_TO_ONE, input: "sums:Line", output: "sums:Total", run: "sums:total"}
            """,
    )
    driver = driver_of("sums.yaml", answer=lambda request: json.loads(bytes(request.request_payload)))
    execution = driver.submit({"count": ITEMS})
    with counted_reads() as reads:
        driver.run()
    assert driver.status(execution) == "FAILED", driver.status(execution)
    return {"requests": len(driver.requests()), "items read": reads.asked["items"] + reads.scanned["items"]}


def test_no_request_is_sent_for_more_items_than_the_aggregate_takes() -> None:
    assert outcome_of(too_many_items, AGGREGATE_ITEMS_MAX=ITEMS_MAX)["requests"] == 0


def test_no_more_items_are_read_than_the_aggregate_takes() -> None:
    read = outcome_of(too_many_items, AGGREGATE_ITEMS_MAX=ITEMS_MAX)["items read"]
    assert read <= ITEMS_MAX + limits.PUBLISH_CHUNK_ITEMS  # they are read in slices
