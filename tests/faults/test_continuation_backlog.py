"""The answer to a continuation lies in `completions` when the last wait for it is over."""

from __future__ import annotations

from tests.faults.ground import HOUR_MS, Outcome, limits, outcome_of, price, shop

TURNS = 60


def answered_while_the_core_was_away() -> Outcome:
    driver = shop("items", sets=("steps.ask.await.live=false", "steps.ask.timeout=P1D"))

    def run_without_continuation() -> None:
        for _ in range(TURNS):
            driver.worker.loops["ingress"].step()
            driver.worker.loops["core"].step()

    execution = driver.submit({"id": "b", "lines": ["apple"]})
    driver.run()
    (request,) = driver.new_requests()
    driver.complete(request, price(request))
    run_without_continuation()
    for _ in range(12 * 6):  # twelve hours without an agent: emitted as often as it may be
        if driver.fact_names(execution).count("ContinuationSegmentCreated") == limits.CONTINUATION_ATTEMPTS_MAX:
            break
        driver.clock.advance(limits.CONTINUATION_TIMEOUT_MS)
        run_without_continuation()
    else:
        raise RuntimeError("the continuation was not emitted as often as it may be")
    for _ in range(TURNS):
        driver.worker.loops["continuation"].step()
    driver.clock.advance(12 * HOUR_MS)
    driver.crash()
    driver.run()
    return {"status": driver.status(execution), "dead": [letter.reason for letter in driver.dead_letters()]}


def test_a_continuation_that_was_answered_is_never_lost() -> None:
    assert outcome_of(answered_while_the_core_was_away) == {"status": "SUCCEEDED", "dead": []}
