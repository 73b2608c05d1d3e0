"""The steps of csv-payments: stable ids, the projector, and the output row."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from streams.demo.provider_answers import APPROVAL, REJECTION
from tests.csv_payments.author import domain, steps

DECISION: TypeAdapter[domain.ProviderApproval | domain.ProviderRejection] = TypeAdapter(domain.ProviderDecision)
STATUS: TypeAdapter[domain.ApprovedPaymentStatus | domain.UnapprovedPaymentStatus] = TypeAdapter(domain.PaymentStatus)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "payments.csv"
    path.write_text("ID,Recipient,Amount,Currency\n1,Ann,10.50,EUR\n2,Bob,6730.3,KRW\n")
    return path


def payments(path: Path | str) -> list[domain.PaymentRecord]:
    return list(steps.read_payments(domain.PaymentsFile(path=str(path))))


def project(record: domain.PaymentRecord, answer: bytes) -> domain.PaymentOutput:
    status = steps.ProjectPaymentStatus().project(record, DECISION.validate_json(answer), None)
    stored = STATUS.validate_json(STATUS.dump_json(status))
    assert stored == status
    match stored:
        case domain.ApprovedPaymentStatus():
            return steps.finalize(steps.approved(stored))
        case domain.UnapprovedPaymentStatus():
            return steps.finalize(steps.unapproved(stored))


def test_ids_are_the_same_in_every_run_and_however_the_path_is_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = payments(file)
    monkeypatch.chdir(file.parent)
    assert payments("payments.csv") == first
    assert payments(file.parent / ".." / file.parent.name / "payments.csv") == first
    assert first[0].csvPaymentsInputFilePath == str(file)


def test_ids_are_pinned() -> None:
    """A change here would pay every payment again under a new id."""
    payment_id = steps.record_id("/in/payments.csv", "1", "Ann", Decimal("10.50"), "EUR")
    assert str(payment_id) == "48e31337-159c-583b-8051-8c3b5f210003"
    assert str(steps.conversation_id(payment_id)) == "76a3ef45-d31c-5c87-95d9-58063d19f25a"


@pytest.mark.parametrize(
    ("one", "other"), [("10", "10.00"), ("1E-7", "0.00000010"), ("0E-9", "0"), ("1E+3", "1000"), ("-2.50", "-2.5")]
)
def test_one_amount_is_one_payment_however_it_is_written(one: str, other: str) -> None:
    ids = {steps.record_id("/a", "1", "Ann", Decimal(amount), "EUR") for amount in (one, other)}
    assert len(ids) == 1


def test_ids_differ_by_every_part_and_not_by_trailing_zeros() -> None:
    base = ("/a", "1", "Ann", Decimal("10.50"), "EUR")
    others = [("/b", *base[1:]), ("/a", "2", *base[2:]), (*base[:2], "An", *base[3:]), (*base[:4], "USD")]
    others += [(*base[:3], Decimal("10.51"), "EUR"), ("/a", "1|3:Ann", "", *base[3:])]
    ids = {steps.record_id(*parts) for parts in [base, *others]}
    assert len(ids) == 7
    assert steps.record_id(*base) == steps.record_id("/a", "1", "Ann", Decimal("10.5"), "EUR")
    assert steps.record_id("/a", "1", "Ann", Decimal(100), "EUR") != steps.record_id(
        "/a", "1", "Ann", Decimal(1), "EUR"
    )


def test_reading_is_lazy(file: Path) -> None:
    rows = steps.read_payments(domain.PaymentsFile(path=str(file)))
    assert isinstance(rows, Iterator)
    assert next(rows).csvId == "1"


def test_an_approval_becomes_an_output_row(file: Path) -> None:
    record = payments(file)[1]
    output = project(record, bytes(APPROVAL))
    assert list(output.model_dump()) == (
        ["csvId", "recipient", "amount", "currency", "status", "message", "reference", "fee", "conversationId"]
    )
    assert (str(output.amount), output.status, output.message) == ("6730.30", "Complete", "Mock response")
    assert (output.reference, str(output.fee)) == ("101", "1.01")
    assert output.conversationId == steps.conversation_id(record.id)


def test_a_rejection_says_so(file: Path) -> None:
    output = project(payments(file)[0], bytes(REJECTION))
    assert output.status == "Rejected"
    assert "rejected" in output.message


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b'{"status": "Maybe", "reference": "1", "message": "", "fee": "1", "statusCode": 1}',
        b'{"status": "Complete", "reference": "1", "message": "", "fee": "many", "statusCode": 1}',
        b'{"status": "Complete", "reference": "1", "message": "", "fee": "NaN", "statusCode": 1}',
        b'{"status": "Complete", "reference": "1", "message": "", "fee": "1E+999999", "statusCode": 1}',
        b'{"status": "Complete", "reference": "1", "message": "", "statusCode": 1}',
    ],
)
def test_a_wrong_shaped_answer_is_no_decision(answer: bytes) -> None:
    with pytest.raises(ValidationError):
        DECISION.validate_json(answer)


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("6730.3", "6730.30"),
        ("5", "5.00"),
        ("1.005", "1.005"),
        ("-0.5", "-0.50"),
        ("1E+3", "1000.00"),
        ("9" * 37 + ".1", "9" * 37 + ".10"),
    ],
)
def test_amounts_get_two_decimals_and_are_never_rounded(read: str, written: str) -> None:
    assert str(steps.with_cents(Decimal(read))) == written
