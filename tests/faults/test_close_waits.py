"""Giving a partition up while several publications of it wait for a thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ground import Outcome, limits, outcome_of, put_file, shop, waits_by_hand

FILES = 6


def with_publications_under_way() -> Outcome:
    driver = shop("files", sets=(f"output.location={Path('out').absolute()}",))
    driver.hold()
    for number in range(FILES):
        driver.submit(file=put_file(f"in/{number}.txt", "\n"))  # empty: straight to its publication
    for _ in range(10):
        driver.run()
        if driver.fact_names().count("TerminalPublicationPrepared") == FILES:
            break
        for pool in driver.pools:
            for _ in range(len(pool.jobs)):
                pool.run_one()
    else:
        raise RuntimeError(driver.fact_names())
    before_ms = driver.clock.now_ms()
    with waits_by_hand(driver.clock):
        driver.close()
    return {"waited_ms": driver.clock.now_ms() - before_ms}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K8: each effect is waited for, one after the other")
def test_giving_a_partition_up_waits_once_for_all_its_effects() -> None:
    half_a_session_ms = limits.SESSION_TIMEOUT_MS / 2
    assert outcome_of(with_publications_under_way)["waited_ms"] <= half_a_session_ms
