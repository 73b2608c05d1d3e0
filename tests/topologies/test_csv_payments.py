"""csv-payments as shipped, on the driver: both paths byte for byte, and every trouble that a CSV file can have (SURFACE csv-payments)."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from topologies.csv_payments.generate import write_payments
from topologies.csv_payments.mock import reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.envelopes import RequestEnvelope
    from streams.testing import TopologyTestDriver
