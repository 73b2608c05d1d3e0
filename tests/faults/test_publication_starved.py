"""An output file that is ready, while all threads are busy with other work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ground import MINUTE_MS, Outcome, limits, outcome_of, put_file, shop


def no_thread_is_free_for_long() -> Outcome:
    empty = put_file("in/empty.txt", "\n")
    driver = shop("files", sets=(f"output.location={Path('out').absolute()}",))
    execution = driver.submit(file=empty)
    driver.hold()
    for _ in range(
        3 * limits.PUBLICATION_ATTEMPTS_MAX
    ):  # what comes before the publication, and its retries, take turns too
        driver.run()
        driver.clock.advance(MINUTE_MS)
        for pool in driver.pools:
            for _ in range(len(pool.jobs)):
                pool.run_one()
    driver.release()
    driver.advance(MINUTE_MS)
    driver.advance(MINUTE_MS)
    published = [path.name for path in Path("out").glob("*")]
    return {"status": driver.status(execution), "published": published}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: a publication that cannot start is a failed attempt")
def test_an_output_that_waits_long_for_a_thread_is_published_in_the_end() -> None:
    assert outcome_of(no_thread_is_free_for_long) == {"status": "SUCCEEDED", "published": ["empty.txt.out"]}
