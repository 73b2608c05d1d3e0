"""An output file whose writing takes longer than a call may, and goes on all the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ground import SHOP, Outcome, RealTime, outcome_of, price, put_file, slow_writes

ROWS = 60
ROWS_A_WRITE = 10
WRITE_S = 0.2
LIMIT_MS = 600
PATIENCE_S = 15.0


def written_slowly() -> Outcome:
    basket = put_file("in/basket.txt", " ".join(f"sku-{number}" for number in range(ROWS)) + "\n")
    worker = RealTime(SHOP / "files.yaml", sets=(f"output.location={Path('out').absolute()}",))
    with slow_writes(WRITE_S):
        execution = worker.submit(file=basket)

        def is_over() -> bool:
            worker.answer(price)
            return worker.end_of(execution) is not None

        assert worker.until(is_over, PATIENCE_S)
        writers = [type(fact).__name__ for fact in worker.facts(execution)].count("TerminalPublicationPrepared")
        return {"end": worker.end_of(execution), "writers": writers}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: a publication that moves is given up as one call")
def test_an_output_that_is_written_slowly_is_written_once_and_published() -> None:
    outcome = outcome_of(
        written_slowly,
        CALL_TIMEOUT_DEFAULT_MS=LIMIT_MS,
        PUBLISH_CHUNK_ITEMS=ROWS_A_WRITE,
        PUBLICATION_ATTEMPTS_MAX=2,
    )
    assert outcome == {"end": "RunSucceeded", "writers": 1}
