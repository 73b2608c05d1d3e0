"""Two different requests whose declared fields are written alike."""

from __future__ import annotations

from tests.faults.ground import Outcome, author_project, driver_of, outcome_of


def keys() -> Outcome:
    author_project(
        payments="""
            from pydantic import BaseModel
            class Payment(BaseModel):
                recipient: str
                reference: str | None = None
            class Paid(BaseModel):
                ok: bool
            """,
        pay_yaml="""
            app: pay
            steps:
              - {name: Ask, input: "payments:Payment", output: "payments:Paid", idempotencyKeyFields: [recipient, reference], $ASK}
            """,
    )

    def keys_of(*payments: dict[str, str]) -> list[str]:
        driver = driver_of("pay.yaml")
        for payment in payments:
            driver.submit(payment)
        driver.run()
        return [request.idempotency_key for request in driver.requests()]

    return {
        "separated": keys_of(
            {"recipient": "Ann:reference=7", "reference": "8"}, {"recipient": "Ann", "reference": "7:reference=8"}
        ),
        "null": keys_of({"recipient": "Bob"}, {"recipient": "Bob", "reference": "<null>"}),
    }


def test_a_value_that_holds_the_keys_own_separators_makes_another_key() -> None:
    first, second = outcome_of(keys)["separated"]
    assert first != second


def test_no_value_and_a_text_that_looks_like_it_are_two_keys() -> None:
    first, second = outcome_of(keys)["null"]
    assert first != second
