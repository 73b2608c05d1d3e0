"""The author's test of the pipeline; not named `test_...`, as only an environment with an installed kawait can run it."""

from pathlib import Path

import pytest

from kawait import TopologyTestDriver, UsageError
from schemas.loan import Wish

PIPELINE = Path(__file__).with_name("pipeline.yaml")


def test_ann_gets_her_loan() -> None:
    driver = TopologyTestDriver(PIPELINE, answer=lambda _request: {"yes": True})
    loan = driver.submit(Wish(name="Ann", amount=100))
    driver.run()
    assert driver.result(loan) == {"text": "Dear Ann, yes."}
    driver.close()


def test_a_wish_must_be_one() -> None:
    driver = TopologyTestDriver(PIPELINE)
    with pytest.raises(UsageError, match="amount"):
        driver.submit({"name": "Ann"})
    driver.close()
