"""`kawait describe`: complete, stable, and silent about secrets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.topics import TOPICS
from tests.pipeline.conftest import ENVIRON, ORDERS, PAYMENTS, SECRET, Load
from topologies.pipeline.describing import describe, duration_text, mermaid, source_text
from topologies.reading.fields import DURATION_MAX_MS, duration_ms
from topologies.reading.loading import load_pipeline


def test_describe_names_everything_of_the_example() -> None:
    text = describe(load_pipeline(PAYMENTS, environ=ENVIRON))
    for part in (
        "pipeline csv-payments, app csv-payments, 12 partitions",
        "segment 1",
        "segment 2",
        "ONE_TO_MANY   domain:PaymentsFile -> domain:PaymentRecord",
        "one interaction an item; each item goes on by itself until the end",
        "asks on csv-payments.payment.requests",
        "timeout PT5M, then the execution fails; answers need the resume token",
        "live window 1024 items, idle PT30S; late and refused answers: payments-operations",
        "idempotency key: csvPaymentsInputFilePath, csvId",
        "accepts domain:ApprovedPaymentStatus -> domain:PaymentOutput",
        "external: answers to await-payment-provider",
        "verified with k1",
    ):
        assert part in text, part
    assert all(f"csv-payments.{topic.suffix}" in text for topic in TOPICS)
    assert SECRET not in text


def test_describe_says_when_an_object_is_whole_and_what_becomes_of_it() -> None:
    def source(*overrides: str) -> str:
        return source_text(load_pipeline(PAYMENTS, environ=ENVIRON, overrides=overrides))

    assert source().endswith("every PT10S; whole when unchanged for PT10S; kept afterwards")
    assert "whole once NAME.ok is there" in source("input.ready.suffix=.ok")
    moved = source("input.after=move", "input.done=/d", "input.failed=/f")
    assert moved.endswith("moved to /d afterwards, to /f when failed")
    assert source("input.after=delete").endswith("deleted afterwards, kept when failed")


def test_describe_of_scalar_and_itemised_awaits() -> None:
    text = describe(load_pipeline(ORDERS, environ={}))
    assert text.count("boundary: one unit an execution, one interaction\n") == 2
    assert "until step 5 collect" in text
    assert 'then the answer is {"order_id":"none"}' in text
    assert "then the item is left out" in text
    assert "records of topic orders.out: domain:Decision, key {order_id}" in text
    assert "the broker's default" in text


def test_mermaid_draws_segments_boundaries_and_branches() -> None:
    lines = mermaid(load_pipeline(PAYMENTS, environ=ENVIRON)).splitlines()
    text = "\n".join(lines)
    assert lines[0] == "flowchart TD"
    assert sum("subgraph" in line for line in lines) == sum(line.strip() == "end" for line in lines) == 2
    for edge in (
        'source -->|"PaymentsFile"| s0',
        's1 -->|"ApprovedPaymentStatus"| s2',
        's1 -->|"UnapprovedPaymentStatus"| s3',
        's2 -->|"PaymentOutput"| s4',
        's3 -->|"PaymentOutput"| s4',
        's4 -->|"PaymentOutput"| output',
        's1 -.->|"csv-payments.payment.requests"| outside1',
    ):
        assert edge in text, edge


def test_mermaid_labels_are_escaped(payments: str, load: Load) -> None:
    text = mermaid(load(payments.replace("name: Process Approved,", "name: '\"<b>\" & approved',")))
    assert "&quot;&lt;b&gt;&quot; &amp; approved" in text


@given(st.integers(1, DURATION_MAX_MS))
def test_durations_read_as_they_are_printed(ms: int) -> None:
    assert duration_ms(duration_text(ms)) == ms


def test_durations() -> None:
    assert [duration_ms(text) for text in ("PT5M", "PT1H30M", "P1DT1S", "P2W", "PT0.25S", "P7D")] == [
        300_000,
        5_400_000,
        86_401_000,
        1_209_600_000,
        250,
        604_800_000,
    ]
    assert [
        duration_ms(text) for text in ("", "P", "PT", "5m", "PT5", "P1Y", "P1M", "PT-5M", "-PT5M", "pt5m", "PT5M ")
    ] == [None] * 11
    assert [duration_text(ms) for ms in (0, 250, 300_000, 86_400_000, 90_061_001)] == [
        "PT0S",
        "PT0.25S",
        "PT5M",
        "P1D",
        "P1DT1H1M1.001S",
    ]
