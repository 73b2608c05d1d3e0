"""CSV trouble (SURFACE csv-payments, CASES 107-115): each file is read whole or refused whole, by name."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from pathlib import Path

import pytest

from tests.csv_payments.author import csv_input

HEADER = b"ID,Recipient,Amount,Currency\n"
ANN = csv_input.CsvRow("1", "Ann", Decimal("10.50"), "EUR")
BOB = csv_input.CsvRow("2", "Bob", Decimal("7.3"), "USD")
GOOD = HEADER + b"1,Ann,10.50,EUR\n2,Bob,7.3,USD\n"


def read(folder: Path, content: bytes) -> list[csv_input.CsvRow]:
    path = folder / "payments.csv"
    path.write_bytes(content)
    return list(csv_input.read_rows(str(path)))


def refusal(folder: Path, content: bytes) -> str:
    """The error of a file that yields nothing."""
    path = folder / "payments.csv"
    path.write_bytes(content)
    rows = csv_input.read_rows(str(path))
    with pytest.raises(csv_input.PaymentsFileError) as caught:
        next(rows)
    assert "payments.csv" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(GOOD, id="lf"),
        pytest.param(GOOD.replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param(GOOD.replace(b"\n", b"\r"), id="cr"),
        pytest.param(HEADER.replace(b"\n", b"\r") + b"1,Ann,10.50,EUR\r\n2,Bob,7.3,USD\n", id="mixed"),
        pytest.param(b"\xef\xbb\xbf" + GOOD, id="bom"),
        pytest.param(b'\xef\xbb\xbf"ID",' + GOOD[3:], id="bom before a quoted name"),
        pytest.param(GOOD.rstrip(), id="no final newline"),
        pytest.param(b"\n" + GOOD.replace(b"2,", b"\r\n  \n\n2,") + b"\n\r\n\n", id="blank lines"),
        pytest.param(b" id ,RECIPIENT, amount,Currency \n1,Ann,10.50,EUR\n2,Bob,7.3,USD\n", id="names by eye"),
        pytest.param(
            b"Currency,Note,Amount,ID,Recipient\nEUR,x,10.50,1,Ann\nUSD,,7.3,2,Bob\n", id="other order, extra"
        ),
        pytest.param(HEADER + b'"1", "Ann", 10.50 , EUR\n2,Bob,"7.3",USD\n', id="quotes and blanks"),
    ],
)
def test_the_same_rows_however_the_file_is_written(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, content) == [ANN, BOB]


def test_quoted_line_ends_commas_and_quotes_stay_as_they_are(tmp_path: Path) -> None:
    rows = read(tmp_path, HEADER + b'1,"a\rb\r\nc\nd, ""e""\x0b\xe2\x80\xa8f",1.00,EUR\r\n2,Bob,7.3,USD\r\n')
    assert rows == [csv_input.CsvRow("1", 'a\rb\r\nc\nd, "e"\x0b\u2028f', Decimal("1.00"), "EUR"), BOB]


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1,234.50", "1234.50"),
        ("1,234,567", "1234567"),
        ("-12.50", "-12.50"),
        (".50", "0.50"),
        ("0.005", "0.005"),
        ("9" * 38, "9" * 38),
    ],
)
def test_amounts_as_read(tmp_path: Path, text: str, amount: str) -> None:
    (row,) = read(tmp_path, HEADER + f'1,Ann,"{text}",EUR\n'.encode())
    assert str(row.amount) == amount


@pytest.mark.parametrize(
    "text",
    ["", "12,50", "1.234,50", "1,2345.00", "1e3", "NaN", "Infinity", "+5", "12.", "$5", "5 0", "١٢", "1_000", "9" * 39],
)
def test_bad_amounts_are_row_errors_with_record_and_line(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, HEADER + f'1,"a\nb",1.00,EUR\n2,Bob,"{text}",USD\n'.encode())
    assert "record 2, line 4: the Amount" in message


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (b",Ann,1.00,EUR", "the ID is empty"),
        (b"1, ,1.00,EUR", "the Recipient is empty"),
        (b"1,Ann,1.00,euro", "the Currency 'euro'"),
        (b"1,Ann,1.00", "has 3 fields instead of 4"),
        (b"1,Ann,1,234.50,EUR", "has 5 fields instead of 4"),
        (b",,,", "the ID is empty"),
    ],
)
def test_bad_rows(tmp_path: Path, row: bytes, fault: str) -> None:
    assert f"record 1, line 2: {fault}" in refusal(tmp_path, HEADER + row + b"\n2,Bob,7.3,USD\n")


def test_a_late_bad_row_is_found_before_the_first_row_is_given(tmp_path: Path) -> None:
    good = b"".join(b"%d,Ann,1.00,EUR\n" % i for i in range(1, 900))
    assert "record 900, line 901" in refusal(tmp_path, HEADER + good + b"900,Ann,x,EUR\n")


def test_at_most_twenty_bad_rows_are_listed(tmp_path: Path) -> None:
    message = refusal(tmp_path, HEADER + b"1,Ann,x,EUR\n" * 25)
    assert "25 bad rows" in message
    assert message.count("the Amount") == 20
    assert message.endswith("and 5 more")


def test_a_header_alone_has_no_payments(tmp_path: Path) -> None:
    assert read(tmp_path, HEADER) == []


@pytest.mark.parametrize("content", [b"", b"\n\r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_misses_its_header(tmp_path: Path, content: bytes) -> None:
    assert "is empty" in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (b"ID,Amount,Recipient,amount,Currency", "column 'Amount', 'amount' appears twice"),
        (b"ID,Recipient,Amount", "column Currency is missing"),
        (b"1,Ann,10.50,EUR", "column ID, Recipient, Amount, Currency is missing"),
        (b"ID;Recipient;Amount;Currency", "is missing"),
    ],
)
def test_a_duplicate_or_missing_column_is_refused(tmp_path: Path, header: bytes, fault: str) -> None:
    message = refusal(tmp_path, header + b"\n1,Ann,10.50,EUR\n")
    assert fault in message
    assert "line 1" in message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_is_named(tmp_path: Path, encoding: str) -> None:
    assert "not UTF-8" in refusal(tmp_path, GOOD.decode().encode(encoding))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_windows_1252_byte_is_found_with_its_line(tmp_path: Path, end: bytes) -> None:
    rows = b"".join(b"%d,Ann,1.00,EUR\n" % i for i in range(1, 900)) + "900,Ann – Co,1.00,EUR\n".encode("cp1252")
    message = refusal(tmp_path, (HEADER + rows).replace(b"\n", end))
    assert "line 901: byte 0x96 (Windows-1252 '–'?)" in message


def test_a_200_kb_field_is_read(tmp_path: Path) -> None:
    (row,) = read(tmp_path, HEADER + b'1,"' + b"x" * 200_000 + b'",1.00,EUR\n')
    assert len(row.recipient) == 200_000


@pytest.mark.parametrize("quote", [b"", b'"'])
def test_a_field_over_the_limit_is_named(tmp_path: Path, quote: bytes) -> None:
    field = quote + b"x" * (9 * csv_input.FIELD_CHARS_MAX) + quote
    message = refusal(tmp_path, GOOD + b"3," + field + b",1.00,EUR\n")
    assert "record 3, line 4: a field is longer than 1,048,576 characters" in message


def test_an_unclosed_quote_is_placed_where_it_opens(tmp_path: Path) -> None:
    message = refusal(tmp_path, HEADER + b'1,Ann,1.00,EUR\n2,"Bob,7.3,USD\n3,Cid,1.00,EUR\n')
    assert "record 2, line 3: a quote is not closed" in message


def test_text_after_a_closing_quote_is_refused(tmp_path: Path) -> None:
    assert "record 1, line 2: is not valid CSV" in refusal(tmp_path, HEADER + b'1,"Ann"x,1.00,EUR\n')


def test_bad_rows_before_lost_quoting_are_listed_too(tmp_path: Path) -> None:
    message = refusal(tmp_path, HEADER + b'1,Ann,x,EUR\n2,"Bob,7.3,USD\n')
    assert "2 bad rows" in message
    assert "record 1, line 2: the Amount 'x'" in message


def test_a_missing_file_may_come_back(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        next(csv_input.read_rows(str(tmp_path / "gone.csv")))


def test_a_file_replaced_while_it_is_read_stays_what_was_judged(tmp_path: Path) -> None:
    path = tmp_path / "payments.csv"
    path.write_bytes(GOOD)
    rows = csv_input.read_rows(str(path))
    assert next(rows) == ANN
    (tmp_path / "new.csv").write_bytes(HEADER + b"broken")
    (tmp_path / "new.csv").replace(path)
    assert next(rows) == BOB


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "payments.csv"
    path.write_bytes(HEADER + b"1,Natasha Thomas,5047.29,AUD\n" * 20_000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in csv_input.read_rows(str(path)))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20_000
    assert peak_bytes < 300_000
