"""Read a payments CSV: one streaming pass that judges every row, a second that yields them by demand.

A file is refused as a whole or read as a whole: `read_rows` yields nothing before it has seen the last row
(SURFACE csv-payments, CASES 107-115). Both passes stream, so memory does not grow with the file.

What is accepted: RFC 4180; UTF-8 with or without BOM; LF, CRLF, CR and mixtures; quoted fields with commas, quotes and
line ends, kept as they are; header names in any order and case, with blanks around them, other named columns ignored;
blank lines; blanks before a field; thousands commas in amounts. A file with only a header has no payments.
What is refused, with the file's name, the record and the line: everything else.
"""

from __future__ import annotations

import csv
import re
from decimal import Decimal
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS: Final = ("ID", "Recipient", "Amount", "Currency")
BAD_ROWS_LISTED_MAX: Final = 20
FIELD_CHARS_MAX: Final = 1 << 20
"""Longest field. Python's own default of 131,072 would refuse long but sensible texts; 1 MiB fits the payload limit."""
LINE_CHARS_MAX: Final = 8 * FIELD_CHARS_MAX
"""Longest piece that is read at once, so a file without line ends cannot fill the memory."""
AMOUNT_DIGITS_MAX: Final = 38

_AMOUNT = re.compile(r"-?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]+)?|-?\.[0-9]+").fullmatch
_CURRENCY = re.compile(r"[A-Z]{3}").fullmatch
_BYTE_ORDER_MARKS: Final = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"), (b"\x00\x00\xfe\xff", "UTF-32"))


class PaymentsFileError(ValueError):
    """The file cannot be paid as it is: no retry helps, its owner must correct it."""


class CsvRow(msgspec.Struct, frozen=True, gc=False):
    """One good row."""

    csv_id: str
    recipient: str
    amount: Decimal
    """As read, without thousands commas: the number of decimals is kept."""
    currency: str


class BadRow(ValueError):
    """One row cannot be used; the message says why."""


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
        yield from _Rows(file, name)


class _Rows:
    """One pass over an open file: iterates good rows, and raises `BadRow` for a bad one without ending the pass."""

    def __init__(self, file: IO[str], name: str) -> None:
        pieces = iter(partial(file.readline, LINE_CHARS_MAX), "")
        self._reader = csv.reader(pieces, strict=True, skipinitialspace=True)
        self._name = name
        self.record = 0
        """Number of the data row, from 1."""
        self.line = 0
        """Line of the file where that row begins, from 1."""
        self._width, places = self._header()
        self._pick = itemgetter(*places)

    def _header(self) -> tuple[int, list[int]]:
        fields = self._next_record()
        if fields is None:
            msg = f"{self._name} is empty: its first line must be {','.join(COLUMNS)}"
            raise PaymentsFileError(msg)
        names = [field.strip().casefold() for field in fields]
        wanted = [column.casefold() for column in COLUMNS]
        twice = sorted({field.strip() for field in fields if names.count(field.strip().casefold()) > 1})
        missing = [column for column in COLUMNS if column.casefold() not in names]
        if twice or missing:
            faults = [f"column {', '.join(map(repr, twice))} appears twice"] if twice else []
            faults += [f"column {', '.join(missing)} is missing"] if missing else []
            shown = ",".join(fields)[:200]
            msg = (
                f"{self._name}, line {self.line}: {' and '.join(faults)}; the header must name "
                f"{','.join(COLUMNS)} once each, but is {shown!r}"
            )
            raise PaymentsFileError(msg)
        return len(fields), [names.index(column) for column in wanted]

    def _next_record(self) -> list[str] | None:
        """The next record that is not a blank line, or None at the end."""
        while True:
            self.line = self._reader.line_num + 1
            fields = next(self._reader, None)
            if fields is None or len(fields) > 1 or (fields and fields[0].strip()):
                return fields

    def __iter__(self) -> Iterator[CsvRow]:
        return self

    def __next__(self) -> CsvRow:
        fields = self._next_record()
        if fields is None:
            raise StopIteration
        self.record += 1
        if len(fields) != self._width:
            msg = f"has {len(fields)} fields instead of {self._width} (a comma or quote too many or too few?)"
            raise BadRow(msg)
        return _row(*self._pick(fields))


def _row(csv_id: str, recipient: str, amount: str, currency: str) -> CsvRow:
    csv_id, currency = csv_id.strip(), currency.strip()
    if not csv_id:
        msg = "the ID is empty"
        raise BadRow(msg)
    if not recipient or recipient.isspace():
        msg = "the Recipient is empty"
        raise BadRow(msg)
    if "\0" in recipient or "\0" in csv_id:
        msg = "holds a NUL character"
        raise BadRow(msg)
    if _CURRENCY(currency) is None:
        msg = f"the Currency {_shown(currency)} is not a code of three capital letters"
        raise BadRow(msg)
    return CsvRow(csv_id, recipient, _amount(amount.strip()), currency)


def _amount(text: str) -> Decimal:
    if _AMOUNT(text) is None:
        msg = f"the Amount {_shown(text)} is not a number like 1234.50 or 1,234.50"
        raise BadRow(msg)
    if len(text) > AMOUNT_DIGITS_MAX and sum(map(str.isdigit, text)) > AMOUNT_DIGITS_MAX:
        msg = f"the Amount {_shown(text)} has more than {AMOUNT_DIGITS_MAX} digits"
        raise BadRow(msg)
    return Decimal(text.replace(",", ""))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _judge(file: IO[str], name: str) -> None:
    """Read the whole file and raise one error for all its bad rows."""
    faults: list[str] = []
    bad = 0
    rows: _Rows | None = None
    try:
        rows = _Rows(file, name)
        while True:
            try:
                if next(rows, None) is None:
                    break
            except BadRow as error:
                bad += 1
                if bad <= BAD_ROWS_LISTED_MAX:
                    faults.append(f"record {rows.record}, line {rows.line}: {error}")
    except csv.Error as error:  # the reader has lost its place, so nothing after this can be judged
        faults.append(f"{_place(rows)}: {_explained(error)}; the rest of the file was not read")
        bad += 1
    if bad:
        more = [f"and {bad - len(faults)} more"] if bad > len(faults) else []
        msg = f"{name} has {bad} bad row{'s' if bad > 1 else ''}, no payment was sent:\n  " + "\n  ".join(faults + more)
        raise PaymentsFileError(msg)


def _place(rows: _Rows | None) -> str:
    return "header" if rows is None else f"record {rows.record + 1}, line {rows.line}"


def _explained(error: csv.Error) -> str:
    text = str(error)
    if "unexpected end of data" in text:
        return "a quote is not closed"
    if "field larger than field limit" in text:
        return f"a field is longer than {FIELD_CHARS_MAX:,} characters (a quote that is not closed?)"
    return f"is not valid CSV ({text})"


def _refuse_other_encodings(path: str, name: str) -> None:
    """Refuse UTF-16 and UTF-32 by their first bytes, before they read as rows of odd characters (CASES 113)."""
    with Path(path).open("rb") as file:
        start = file.read(64)
    found = next((encoding for mark, encoding in _BYTE_ORDER_MARKS if start.startswith(mark)), None)
    if found is None and b"\0" in start:
        found = "UTF-16"
    if found is not None:
        msg = f"{name} looks like {found}, not UTF-8: save it as 'CSV UTF-8'; no payment was sent"
        raise PaymentsFileError(msg)


def _not_utf8(path: str, name: str) -> str:
    """The message for the first byte that is not UTF-8; reads the file again, by lines of bytes."""
    number = 1
    with Path(path).open("rb") as file:
        for piece in iter(partial(file.readline, LINE_CHARS_MAX), b""):
            try:
                piece.decode("utf-8")
            except UnicodeDecodeError as error:
                before = piece[: error.start].replace(b"\r\n", b"\n")
                number += before.count(b"\r") + before.count(b"\n")
                byte = piece[error.start]
                guess = f" (Windows-1252 {bytes([byte]).decode('cp1252', 'replace')!r}?)"
                return (
                    f"{name}, line {number}: byte 0x{byte:02X}{guess} is not UTF-8: save the file as 'CSV UTF-8'; "
                    "no payment was sent"
                )
            number += max(1, piece.replace(b"\r\n", b"\n").count(b"\r") + piece.endswith(b"\n"))
    return f"{name} is not UTF-8: save it as 'CSV UTF-8'; no payment was sent"
