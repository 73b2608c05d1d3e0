"""The types that travel; their field names are the names in JSON, on the log and in the output file.

A payment goes through four shapes: `PaymentRecord` is what a row asks for, `ProviderDecision` is what the provider answers, `PaymentStatus`
is both together, `PaymentOutput` is the row that is written.
"""

# ruff: noqa: N815 - aliases would only give each field a second name.

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

AMOUNT_DIGITS_MAX = 38
"""Digits of an amount or fee, before and after the point; bounds what `1E+999999` could make of an output row."""

Money = Annotated[Decimal, Field(max_digits=AMOUNT_DIGITS_MAX)]


class Value(BaseModel):
    """A value: it does not change, and equal fields make equal values."""

    model_config = ConfigDict(frozen=True)


class PaymentsFile(Value):
    """One input file, as it was found in the input folder."""

    path: str
    """Where the file is. Part of every record id, so a file keeps its ids as long as it keeps its path."""
    name: str = ""
    size: int | None = None
    """Bytes."""
    sha256: str | None = None


class PaymentRecord(Value):
    """One row of an input file: a payment that the provider is asked to make."""

    id: UUID
    csvId: str
    recipient: str
    amount: Money
    currency: str
    csvPaymentsInputFilePath: str


class ProviderApproval(Value):
    """The provider made the payment."""

    status: Literal["Complete"]
    reference: str
    message: str
    fee: Money
    statusCode: int


class ProviderRejection(Value):
    """The provider refused the payment."""

    status: Literal["Rejected"]
    reference: str
    message: str
    fee: Money
    statusCode: int


ProviderDecision = Annotated[ProviderApproval | ProviderRejection, Field(discriminator="status")]
"""What the provider answers: only what it knows itself."""


class ApprovedPaymentStatus(ProviderApproval):
    """An approval together with the payment that it is about."""

    paymentRecord: PaymentRecord


class UnapprovedPaymentStatus(ProviderRejection):
    """A rejection together with the payment that it is about."""

    paymentRecord: PaymentRecord


PaymentStatus = Annotated[ApprovedPaymentStatus | UnapprovedPaymentStatus, Field(discriminator="status")]
"""What the pipeline goes on with."""


class PaymentOutput(Value):
    """One row of the output file; the order of the fields is the order of its columns."""

    csvId: str
    recipient: str
    amount: Decimal
    currency: str
    status: str
    message: str
    reference: str
    fee: Decimal
    conversationId: UUID
