"""Make payments CSV files of any size: the same rows for the same seed, on every machine."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# fmt: off
FIRST_NAMES: Final = (
    "Natasha", "Marc", "Anthony", "Robert", "Alyssa", "Janet", "Rebecca", "Brett", "Darryl", "Kimberly", "James",
    "Stacy", "Frank", "Vincent", "Kyle", "Mark", "Ian", "Kristen", "April", "Zoë", "José", "Søren", "Chloé", "Ngozi",
    "Aarav", "Mei", "Yuki", "Olga", "Lucía", "Björn", "Amina", "Tomás",
)
LAST_NAMES: Final = (
    "Thomas", "Joyce", "Franco", "Koch", "Cole", "Carpenter", "Smith", "Walker", "Mendoza", "Page", "Bates", "Young",
    "Duncan", "Schultz", "Mclean", "Wade", "Contreras", "Powell", "Jensen", "O'Brien", "D'Angelo", "García", "Müller",
    "Sørensen", "Nakamura", "Okafor", "Łukasiewicz", "Smith-Jones", "Nguyễn",
)
CURRENCIES: Final = (
    "AUD", "ZAR", "CAD", "MXN", "NOK", "ILS", "SGD", "CHF", "KRW", "INR",
    "JPY", "DKK", "SEK", "USD", "EUR", "GBP", "NZD", "BRL", "PLN", "HKD",
)
# fmt: on
TITLES: Final = ("Mr.", "Mrs.", "Dr.")
CENTS_MIN: Final = 512
CENTS_MAX: Final = 999_989


def generate(path: str | Path, rows: int, seed: int = 1) -> Path:
    """Write a payments file, row by row.

    Args:
        path: The file to write; its folder is made if it is missing.
        rows: Data rows, ids 1 to `rows`. A longer file of the same seed starts with the same rows.
        seed: Decides everything else.

    Returns:
        The path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("ID", "Recipient", "Amount", "Currency"))
        writer.writerows(_rows(rows, seed))
    return target


def _rows(rows: int, seed: int) -> Iterator[tuple[int, str, str, str]]:
    # One draw a row, taken apart by divmod: several times faster than a draw for each cell.
    draw = random.Random(seed).getrandbits  # noqa: S311 - test data
    for row_id in range(1, rows + 1):
        bits = draw(64)
        bits, cents = divmod(bits, CENTS_MAX - CENTS_MIN + 1)
        bits, currency = divmod(bits, len(CURRENCIES))
        yield row_id, _recipient(bits), _amount(cents + CENTS_MIN), CURRENCIES[currency]


def _recipient(bits: int) -> str:
    bits, first = divmod(bits, len(FIRST_NAMES))
    bits, last = divmod(bits, len(LAST_NAMES))
    kind = bits % 100
    name = f"{FIRST_NAMES[first]} {LAST_NAMES[last]}"
    if kind < 3:
        return f"{TITLES[kind]} {name}"
    if kind == 3:
        return f'{FIRST_NAMES[first]} "{LAST_NAMES[last][:2]}" {LAST_NAMES[last]}'
    if kind == 4:
        return f"{LAST_NAMES[last]}, {FIRST_NAMES[first]}"
    return name


def _amount(cents: int) -> str:
    """The amount as banks' exports write it: a last zero is left out (6730.3), whatever the currency."""
    text = f"{cents // 100}.{cents % 100:02d}"
    return text.removesuffix("0") if cents % 100 else text
