"""Generated payments files: reproducible, and as odd as real ones."""

from __future__ import annotations

from pathlib import Path

from streams.demo.payments_file import generate
from tests.csv_payments.author import csv_input


def test_the_same_seed_gives_the_same_bytes_and_a_longer_file_starts_alike(tmp_path: Path) -> None:
    first = generate(tmp_path / "a.csv", 500, seed=7).read_bytes()
    assert generate(tmp_path / "b.csv", 500, seed=7).read_bytes() == first
    assert generate(tmp_path / "c.csv", 800, seed=7).read_bytes().startswith(first)
    assert generate(tmp_path / "d.csv", 500, seed=8).read_bytes() != first


def test_the_rows_are_good_and_various(tmp_path: Path) -> None:
    rows = list(csv_input.read_rows(str(generate(tmp_path / "new" / "payments.csv", 2_000))))
    assert [row.csv_id for row in rows] == [str(number) for number in range(1, 2_001)]
    assert any('"' in row.recipient for row in rows)
    assert any("," in row.recipient for row in rows)
    assert any(row.recipient.startswith("Dr. ") for row in rows)
    assert any(row.amount.as_tuple().exponent == -1 for row in rows)
    assert {"JPY", "KRW"} <= {row.currency for row in rows}


def test_no_rows(tmp_path: Path) -> None:
    assert generate(tmp_path / "none.csv", 0).read_text() == "ID,Recipient,Amount,Currency\n"
