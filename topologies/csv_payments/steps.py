"""The functions of csv-payments that pipeline.yaml names: read the file, join the answer to its payment, make the row.

They are pure but for reading the input file, and each runs once per payment, so they stay cheap: a value that was
validated on its way in is not validated again.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

# A pipeline's modules are imported from its own folder; this one is also a package of the distribution.
if TYPE_CHECKING or __package__:
    from topologies.csv_payments.csv_input import CsvRow, PaymentsFileError, read_rows
    from topologies.csv_payments.domain import (
        ApprovedPaymentStatus,
        PaymentOutput,
        PaymentRecord,
        PaymentsFile,
        ProviderApproval,
        ProviderRejection,
        UnapprovedPaymentStatus,
    )
else:
    from csv_input import CsvRow, PaymentsFileError, read_rows
    from domain import (
        ApprovedPaymentStatus,
        PaymentOutput,
        PaymentRecord,
        PaymentsFile,
        ProviderApproval,
        ProviderRejection,
        UnapprovedPaymentStatus,
    )

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "PaymentsFileError",
    "ProjectPaymentStatus",
    "approved",
    "finalize",
    "read_payments",
    "unapproved",
]

_UUIDS: Final = TypeAdapter(uuid.UUID)
_uuid_of: Final[Callable[[bytes], uuid.UUID]] = _UUIDS.validator.validate_python
_uuid_text: Final[Callable[[uuid.UUID], str]] = partial(_UUIDS.serializer.to_python, mode="json")
"""As `str`, in half its time."""

CENTS: Final = 2
"""Decimals that an amount is written with at least."""


class Uuid5:
    """`uuid.uuid5` within one namespace, in less than half its time: the namespace is hashed once, and pydantic makes the id of its bytes."""

    def __init__(self, namespace: str) -> None:
        self._start = hashlib.sha1(uuid.UUID(namespace).bytes, usedforsecurity=False)

    def __call__(self, name: str) -> uuid.UUID:
        """The id of a name."""
        sha1 = self._start.copy()
        sha1.update(name.encode())
        digest = bytearray(sha1.digest()[:16])
        digest[6] = digest[6] & 0x0F | 0x50  # version 5
        digest[8] = digest[8] & 0x3F | 0x80  # the variant of RFC 4122
        return _uuid_of(bytes(digest))


record_uuid: Final = Uuid5("0f6f9a9e-5d0b-5c0e-9a35-7b1f6b1f0c11")
conversation_uuid: Final = Uuid5("6a1f2f53-2b1c-5a86-8c0e-3f1d0f7c9e22")


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
        yield _record(path, row)


def _record(path: str, row: CsvRow) -> PaymentRecord:
    return PaymentRecord(
        id=record_id(path, row.csv_id, row.recipient, row.amount, row.currency),
        csvId=row.csv_id,
        recipient=row.recipient,
        amount=row.amount,
        currency=row.currency,
        csvPaymentsInputFilePath=path,
    )


def record_id(path: str, csv_id: str, recipient: str, amount: Decimal, currency: str) -> uuid.UUID:
    """The payment's id: uuid5 over path, csvId, recipient, normalised amount and currency (SURFACE csv-payments).

    `5.10` and `5.1` are one amount. Free text is length-prefixed, so no two rows share a name by moving a separator.
    """
    name = f"{len(path)}:{path}|{len(csv_id)}:{csv_id}|{len(recipient)}:{recipient}|{_normalised(amount)}|{currency}"
    return record_uuid(name)


def conversation_id(payment_id: uuid.UUID) -> uuid.UUID:
    """The conversation's id: uuid5 over the record id (SURFACE csv-payments)."""
    return conversation_uuid(_uuid_text(payment_id))


class ProjectPaymentStatus:
    """Joins the provider's decision to the payment it is about; a `kawait.Projector`."""

    def project(
        self, request: PaymentRecord, completion: ProviderApproval | ProviderRejection, metadata: object
    ) -> ApprovedPaymentStatus | UnapprovedPaymentStatus:
        """The canonical status; deterministic, `metadata` is not needed."""
        del metadata
        arm = ApprovedPaymentStatus if completion.status == "Complete" else UnapprovedPaymentStatus
        return arm.model_validate({**completion.__dict__, "paymentRecord": request})


def approved(status: ApprovedPaymentStatus) -> PaymentOutput:
    """The output row of a payment that was made."""
    return _output(status)


def unapproved(status: UnapprovedPaymentStatus) -> PaymentOutput:
    """The output row of a payment that was refused."""
    return _output(status)


def finalize(output: PaymentOutput) -> PaymentOutput:
    """The row unchanged: both branches meet here (BEHAVIOUR 6.6)."""
    return output


def _output(status: ApprovedPaymentStatus | UnapprovedPaymentStatus) -> PaymentOutput:
    record = status.paymentRecord
    return PaymentOutput(
        csvId=record.csvId,
        recipient=record.recipient,
        amount=with_cents(record.amount),
        currency=record.currency,
        status=status.status,
        message=status.message,
        reference=status.reference,
        fee=with_cents(status.fee),
        conversationId=conversation_id(record.id),
    )


def _normalised(amount: Decimal) -> str:
    # Decimal.normalize would round to the context's 28 digits; text never does.
    text = str(amount)
    if "E" in text:
        text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def with_cents(amount: Decimal) -> Decimal:
    """The amount with at least two decimals, never rounded: 6730.3 -> 6730.30, 1.005 -> 1.005."""
    if str(amount)[-3:-2] == ".":  # nearly every amount has its two
        return amount
    whole, _, fraction = f"{amount:f}".partition(".")
    return amount if len(fraction) >= CENTS else Decimal(f"{whole}.{fraction:0<{CENTS}}")
