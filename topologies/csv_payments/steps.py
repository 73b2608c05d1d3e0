"""The functions of csv-payments that pipeline.yaml names: read the file, join the answer to its payment, make the output row.

All but the reading of the file are pure: the same input gives the same output, however often they run.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from csv_input import read_rows
from domain import (
    ApprovedPaymentStatus,
    PaymentOutput,
    PaymentRecord,
    PaymentsFile,
    ProviderApproval,
    ProviderRejection,
    UnapprovedPaymentStatus,
)

PAYMENTS = uuid.UUID("0f6f9a9e-5d0b-5c0e-9a35-7b1f6b1f0c11")
"""Namespace of payment ids. Another one would pay every payment again, under a new id."""

CONVERSATIONS = uuid.UUID("6a1f2f53-2b1c-5a86-8c0e-3f1d0f7c9e22")
"""Namespace of conversation ids."""

CENTS = 2
"""Decimals that an amount is written with at least."""


def read_payments(file: PaymentsFile) -> Iterator[PaymentRecord]:
    """Yield the payments of a file in file order, after the whole file was found good.

    Args:
        file: The input file; only its path is used.

    Yields:
        One record per data row. Ids depend on the file's absolute path and the row's four values alone, so another
        run over the same file, or the same file named by a relative path, gives the same ids.

    Raises:
        PaymentsFileError: Before the first record if any row is bad; names the file and up to 20 rows.
    """
    # Links are not followed: a mounted folder may move them between restarts while the path stays.
    path = os.path.normpath(Path(file.path).absolute())
    for row in read_rows(path):
        yield PaymentRecord(
            id=record_id(path, row.csv_id, row.recipient, row.amount, row.currency),
            csvId=row.csv_id,
            recipient=row.recipient,
            amount=row.amount,
            currency=row.currency,
            csvPaymentsInputFilePath=path,
        )


def record_id(path: str, csv_id: str, recipient: str, amount: Decimal, currency: str) -> uuid.UUID:
    """The payment's id, made of everything that makes it another payment.

    `5.10` and `5.1` are one amount. Free text is length-prefixed, so no two rows share a name by moving a separator.
    """
    name = f"{len(path)}:{path}|{len(csv_id)}:{csv_id}|{len(recipient)}:{recipient}|{normalised(amount)}|{currency}"
    return uuid.uuid5(PAYMENTS, name)


def conversation_id(payment_id: uuid.UUID) -> uuid.UUID:
    """The id of the conversation with the provider about a payment."""
    return uuid.uuid5(CONVERSATIONS, str(payment_id))


class ProjectPaymentStatus:
    """Joins the provider's decision to the payment that it is about."""

    def project(
        self, request: PaymentRecord, completion: ProviderApproval | ProviderRejection, metadata: object
    ) -> ApprovedPaymentStatus | UnapprovedPaymentStatus:
        """The status of the payment; `metadata` (who answered, and when) is not needed."""
        del metadata
        told: dict[str, Any] = {
            "reference": completion.reference,
            "message": completion.message,
            "fee": completion.fee,
            "statusCode": completion.statusCode,
        }
        if isinstance(completion, ProviderApproval):
            return ApprovedPaymentStatus(paymentRecord=request, status=completion.status, **told)
        return UnapprovedPaymentStatus(paymentRecord=request, status=completion.status, **told)


def approved(status: ApprovedPaymentStatus) -> PaymentOutput:
    """The output row of a payment that was made."""
    return _output(status)


def unapproved(status: UnapprovedPaymentStatus) -> PaymentOutput:
    """The output row of a payment that was refused."""
    return _output(status)


def finalize(output: PaymentOutput) -> PaymentOutput:
    """The row as it is: both branches meet here."""
    return output


def _output(status: ApprovedPaymentStatus | UnapprovedPaymentStatus) -> PaymentOutput:
    payment = status.paymentRecord
    return PaymentOutput(
        csvId=payment.csvId,
        recipient=payment.recipient,
        amount=with_cents(payment.amount),
        currency=payment.currency,
        status=status.status,
        message=status.message,
        reference=status.reference,
        fee=with_cents(status.fee),
        conversationId=conversation_id(payment.id),
    )


# Both work on the text of an amount: arithmetic would round to the 28 digits of Python's decimal context.


def normalised(amount: Decimal) -> str:
    """The amount without zeros at its end: 5.10 -> 5.1, 100.00 -> 100."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def with_cents(amount: Decimal) -> Decimal:
    """The amount with at least two decimals, never rounded: 6730.3 -> 6730.30, 1.005 -> 1.005."""
    whole, _, decimals = f"{amount:f}".partition(".")
    return amount if len(decimals) >= CENTS else Decimal(f"{whole}.{decimals:0<{CENTS}}")
