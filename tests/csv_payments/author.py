"""The modules of csv-payments, imported as the runtime imports them: by their own names, from their own folder."""

from __future__ import annotations

from pathlib import Path

from topologies.reading.modules import AuthorModules

PROJECT = Path(__file__).parents[2] / "topologies" / "csv_payments"

with AuthorModules(PROJECT):
    import csv_input
    import domain
    import steps

__all__ = ["PROJECT", "csv_input", "domain", "steps"]
