"""The payload types of csv-payments, as they travel: field names are the wire names (BEHAVIOUR 6.2, SURFACE csv-payments).

A payment goes through four shapes: `PaymentRecord` is what a row asks for, `ProviderDecision` is what the provider
answers, `PaymentStatus` is both together, `PaymentOutput` is the row that is written.
"""

# ruff: noqa: N815 - camelCase fields are the wire names; aliases would only give each field a second name.

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

MAX_AMOUNT_DIGITS = 38
"""Digits of an amount or fee, before and after the point; bounds what `1E+999999` could make of an output row."""

type_config = ConfigDict(frozen=True)

Money = Annotated[Decimal, Field(max_digits=MAX_AMOUNT_DIGITS)]


class PaymentsFile(BaseModel):
    """One input file, as the filesystem source found it."""

    model_config = type_config

    path: str
    """Where the file is. Part of every record id, so a file keeps its ids as long as it keeps its path."""
    name: str = ""
    size: int | None = None
    """Bytes."""
    sha256: str | None = None


class PaymentRecord(BaseModel):
    """One row of an input file: a payment that the provider is asked to make."""

    model_config = type_config

    id: UUID
    csvId: str
    recipient: str
    amount: Money
    currency: str
    csvPaymentsInputFilePath: str


class ProviderApproval(BaseModel):
    """The provider made the payment."""

    model_config = type_config

    status: Literal["Complete"]
    reference: str
    message: str
    fee: Money
    statusCode: int


class ProviderRejection(BaseModel):
    """The provider refused the payment."""

    model_config = type_config

    status: Literal["Rejected"]
    reference: str
    message: str
    fee: Money
    statusCode: int


ProviderDecision = Annotated[ProviderApproval | ProviderRejection, Field(discriminator="status")]
"""What the provider answers: only the facts that it owns (seeds/await-boundaries: constructing output)."""


class ApprovedPaymentStatus(ProviderApproval):
    """An approval together with the payment that it is about."""

    paymentRecord: PaymentRecord


class UnapprovedPaymentStatus(ProviderRejection):
    """A rejection together with the payment that it is about."""

    paymentRecord: PaymentRecord


PaymentStatus = Annotated[ApprovedPaymentStatus | UnapprovedPaymentStatus, Field(discriminator="status")]
"""The await step's canonical output."""


class PaymentOutput(BaseModel):
    """One row of the output file; the order of the fields is the order of its columns (SURFACE csv-payments)."""

    model_config = type_config

    csvId: str
    recipient: str
    amount: Decimal
    currency: str
    status: str
    message: str
    reference: str
    fee: Decimal
    conversationId: UUID
