"""Read a payments CSV: a first pass judges every row, a second one yields them by demand.

A file is refused as a whole or read as a whole: `read_rows` yields nothing before the last row was seen. Both passes stream, so memory
does not grow with the file.

What is accepted: RFC 4180; UTF-8 with or without BOM; LF, CRLF, CR and mixtures; quoted fields with commas, quotes and line ends, kept as
they are; header names in any order and case, with blanks around them, other named columns ignored; blank lines; blanks before a field;
thousands commas in amounts. A file with only a header has no payments.
What is refused, with the file's name, the record and the line: everything else.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import IO, NamedTuple

COLUMNS = ("ID", "Recipient", "Amount", "Currency")
BAD_ROWS_LISTED_MAX = 20
FIELD_CHARS_MAX = 1 << 20
"""Longest field. Python's own default of 131,072 would refuse long but sensible texts."""
LINE_CHARS_MAX = 8 * FIELD_CHARS_MAX
"""Longest piece that is read at once, so a file without line ends cannot fill the memory."""
AMOUNT_DIGITS_MAX = 38

_AMOUNT = re.compile(r"-?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]+)?|-?\.[0-9]+")
_CURRENCY = re.compile(r"[A-Z]{3}")
_BYTE_ORDER_MARKS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"), (b"\x00\x00\xfe\xff", "UTF-32"))


class PaymentsFileError(ValueError):
    """The file cannot be paid as it is: no retry helps, its owner must correct it."""


class BadRow(ValueError):
    """One row cannot be used; the message says why."""


class CsvRow(NamedTuple):
    """One good row."""

    csv_id: str
    recipient: str
    amount: Decimal
    """As read, without thousands commas: the number of decimals is kept."""
    currency: str


def read_rows(path: str) -> Iterator[CsvRow]:
    """Yield a file's rows in order, after all of them were found good.

    Args:
        path: The file. It is opened once: replacing it by another file between the passes changes nothing.

    Yields:
        The data rows, read as they are asked for.

    Raises:
        PaymentsFileError: Before the first row, if the encoding, the header or any row is bad.
        OSError: The file cannot be opened or read; another try may help.
    """
    if csv.field_size_limit() < FIELD_CHARS_MAX:  # process-wide in the csv module, so it is only ever raised
        csv.field_size_limit(FIELD_CHARS_MAX)
    name = Path(path).name
    _refuse_other_encodings(path, name)
    with Path(path).open(encoding="utf-8-sig", errors="strict", newline="") as file:
        try:
            _judge(file, name)
        except UnicodeDecodeError as error:
            raise PaymentsFileError(_not_utf8(path, name)) from error
        file.seek(0)
        table = _Table(file, name)
        for fields in table.records():
            yield table.row(fields)


# --- rows --------------------------------------------------------------------------------------------------------------


class _Table:
    """One pass over an open file: its header first, then its records."""

    def __init__(self, file: IO[str], name: str) -> None:
        pieces = iter(partial(file.readline, LINE_CHARS_MAX), "")
        self._reader = csv.reader(pieces, strict=True, skipinitialspace=True)
        self._name = name
        self.record = 0
        """Number of the data row, from 1."""
        self.line = 0
        """Line of the file where that row begins, from 1."""
        header = self._next_record()
        self._width = len(header or ())
        self._pick = itemgetter(*self._find_columns(header))

    def records(self) -> Iterator[list[str]]:
        """The fields of each data row."""
        while (fields := self._next_record()) is not None:
            self.record += 1
            yield fields

    def row(self, fields: list[str]) -> CsvRow:
        """The payment that a data row asks for.

        Raises:
            BadRow: It asks for none.
        """
        if len(fields) != self._width:
            raise BadRow(f"has {len(fields)} fields instead of {self._width} (a comma or quote too many or too few?)")
        csv_id, recipient, amount, currency = self._pick(fields)
        return _row(csv_id.strip(), recipient, amount.strip(), currency.strip())

    def _next_record(self) -> list[str] | None:
        """The next record that is not a blank line, or None at the end."""
        while True:
            self.line = self._reader.line_num + 1
            fields = next(self._reader, None)
            if fields is None or len(fields) > 1 or (fields and fields[0].strip()):
                return fields

    def _find_columns(self, header: list[str] | None) -> list[int]:
        """Where each of `COLUMNS` stands."""
        if header is None:
            raise PaymentsFileError(f"{self._name} is empty: its first line must be {','.join(COLUMNS)}")
        names = [field.strip().casefold() for field in header]
        twice = sorted({field.strip() for field in header if names.count(field.strip().casefold()) > 1})
        missing = [column for column in COLUMNS if column.casefold() not in names]
        faults = [f"column {', '.join(map(repr, twice))} appears twice"] if twice else []
        faults += [f"column {', '.join(missing)} is missing"] if missing else []
        if faults:
            raise PaymentsFileError(
                f"{self._name}, line {self.line}: {' and '.join(faults)}; the header must name "
                f"{','.join(COLUMNS)} once each, but is {','.join(header)[:200]!r}"
            )
        return [names.index(column.casefold()) for column in COLUMNS]


def _row(csv_id: str, recipient: str, amount: str, currency: str) -> CsvRow:
    if not csv_id:
        raise BadRow("the ID is empty")
    if not recipient or recipient.isspace():
        raise BadRow("the Recipient is empty")
    if "\0" in recipient or "\0" in csv_id:
        raise BadRow("holds a NUL character")
    if not _CURRENCY.fullmatch(currency):
        raise BadRow(f"the Currency {_shown(currency)} is not a code of three capital letters")
    return CsvRow(csv_id, recipient, _amount(amount), currency)


def _amount(text: str) -> Decimal:
    if not _AMOUNT.fullmatch(text):
        raise BadRow(f"the Amount {_shown(text)} is not a number like 1234.50 or 1,234.50")
    if len(text) > AMOUNT_DIGITS_MAX and sum(map(str.isdigit, text)) > AMOUNT_DIGITS_MAX:
        raise BadRow(f"the Amount {_shown(text)} has more than {AMOUNT_DIGITS_MAX} digits")
    return Decimal(text.replace(",", ""))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


# --- files that are refused --------------------------------------------------------------------------------------------


def _judge(file: IO[str], name: str) -> None:
    """Read the whole file and raise one error for all its bad rows."""
    faults: list[str] = []
    bad = 0
    table: _Table | None = None
    try:
        table = _Table(file, name)
        for fields in table.records():
            try:
                table.row(fields)
            except BadRow as error:
                bad += 1
                if bad <= BAD_ROWS_LISTED_MAX:
                    faults.append(f"record {table.record}, line {table.line}: {error}")
    except csv.Error as error:  # the reader has lost its place, so nothing after this can be judged
        place = f"record {table.record + 1}, line {table.line}" if table else "header"
        faults.append(f"{place}: {_explained(error)}; the rest of the file was not read")
        bad += 1
    if bad:
        more = [f"and {bad - len(faults)} more"] if bad > len(faults) else []
        listed = "\n  ".join(faults + more)
        raise PaymentsFileError(f"{name} has {bad} bad row{'s' if bad > 1 else ''}, no payment was sent:\n  {listed}")


def _explained(error: csv.Error) -> str:
    text = str(error)
    if "unexpected end of data" in text:
        return "a quote is not closed"
    if "field larger than field limit" in text:
        return f"a field is longer than {FIELD_CHARS_MAX:,} characters (a quote that is not closed?)"
    return f"is not valid CSV ({text})"


def _refuse_other_encodings(path: str, name: str) -> None:
    """Refuse UTF-16 and UTF-32 by their first bytes, before they read as rows of odd characters."""
    with Path(path).open("rb") as file:
        start = file.read(64)
    encoding = next((encoding for mark, encoding in _BYTE_ORDER_MARKS if start.startswith(mark)), None)
    if encoding is None and b"\0" in start:
        encoding = "UTF-16"
    if encoding is not None:
        raise PaymentsFileError(f"{name} looks like {encoding}, not UTF-8: save it as 'CSV UTF-8'; no payment was sent")


def _not_utf8(path: str, name: str) -> str:
    """What is wrong with the first byte that is not UTF-8; reads the file again, by lines of bytes."""
    number = 1
    with Path(path).open("rb") as file:
        for piece in iter(partial(file.readline, LINE_CHARS_MAX), b""):
            try:
                piece.decode("utf-8")
            except UnicodeDecodeError as error:
                number += _line_ends(piece[: error.start])
                byte = piece[error.start]
                guess = f" (Windows-1252 {bytes([byte]).decode('cp1252', 'replace')!r}?)"
                return (
                    f"{name}, line {number}: byte 0x{byte:02X}{guess} is not UTF-8: save the file as 'CSV UTF-8'; "
                    "no payment was sent"
                )
            number += max(1, _line_ends(piece))
    return f"{name} is not UTF-8: save it as 'CSV UTF-8'; no payment was sent"


def _line_ends(text: bytes) -> int:
    """How many line ends there are, of every kind."""
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")
