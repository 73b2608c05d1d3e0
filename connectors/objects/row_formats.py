"""Row formats: how a row of an output object is written."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from types import UnionType
from typing import Literal, Protocol, Union, cast, get_args

import msgspec
from pydantic import BaseModel

from schemas.errors import UsageError


class RowFormat(Protocol):
    """How the rows of an object are written; rows arrive as the JSON of the step's output."""

    @property
    def header(self) -> bytes:
        """What the object begins with; may be empty."""

    def encode(self, rows: Iterable[bytes]) -> bytes:
        """The bytes of a chunk of rows."""


class JsonLines:
    """One JSON value a line, as the step made it."""

    header = b""

    def encode(self, rows: Iterable[bytes]) -> bytes:
        """The rows, each ended by a line feed; JSON itself never holds one outside its escapes."""
        return b"".join(row + b"\n" for row in rows)


class CsvRows:
    """RFC 4180: a column for each field of the models, in their order; a header; CRLF; quotes where they are needed.

    Of several models each field is a column once, and a cell is empty where the row's model has no such field. Numbers and decimals keep
    the digits they have. A text that a spreadsheet would run as a formula gets a leading apostrophe; only fields that are declared as text
    do, so a negative amount stays a number (CASES 115).

    Raises:
        UsageError: A model has a field that is no cell (a list, a mapping, a model).
    """

    def __init__(self, *models: type[BaseModel]) -> None:
        columns: dict[str, list[object]] = {}
        for model in models:
            fields = model.model_fields
            nested = [name for name, info in fields.items() if any(map(_is_nested, _arms(info.annotation)))]
            if nested:
                msg = f"output.format csv: {model.__name__} has fields that are no cells: {', '.join(nested)}; use format: jsonl"
                raise UsageError(msg)
            for name, info in fields.items():
                columns.setdefault(info.serialization_alias or name, []).append(info.annotation)
        self._guards: tuple[tuple[str, Callable[[object], object]], ...] = tuple(
            (name, _guard_of(annotations)) for name, annotations in columns.items()
        )
        self.header = _csv_line(tuple(columns)).encode()

    def encode(self, rows: Iterable[bytes]) -> bytes:
        """The CSV of rows that are JSON objects of the model."""
        guards = self._guards
        lines = [
            _csv_line(
                [
                    # Most cells are texts that begin with a letter or digit: no guard changes those.
                    value if type(value := row.get(name)) is str and value[:1].isalnum() else cell(value)
                    for name, cell in guards
                ]
            )
            for row in map(_decode_row, rows)
        ]
        return "".join(lines).encode()


_decode_row = msgspec.json.Decoder(dict[str, object], float_hook=str).decode
"""JSON object to cells; a float stays the text it is, so that no digit is lost or made up."""


def _csv_line(cells: Sequence[object]) -> str:
    """One row with its end. The csv module looks at each character twice, so it gets those rows only that need it."""
    if len(cells) > 1:
        with contextlib.suppress(TypeError):  # a cell that is no text
            line = ",".join(cast("Sequence[str]", cells))
            if line.count(",") == len(cells) - 1 and not ('"' in line or "\r" in line or "\n" in line):
                return line + "\r\n"
    text = StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue()


def _arms(annotation: object) -> tuple[object, ...]:
    """The types that an annotation names: its own, or those of its union, without `Annotated` around them."""
    if hasattr(annotation, "__metadata__"):
        return _arms(get_args(annotation)[0])
    origin = getattr(annotation, "__origin__", None)
    if isinstance(annotation, UnionType) or origin is Union:
        return tuple(arm for part in get_args(annotation) for arm in _arms(part))
    if origin is Literal:
        return tuple({type(value) for value in get_args(annotation)})
    return (annotation if origin is None else origin,)


def _is_nested(arm: object) -> bool:
    return isinstance(arm, type) and issubclass(arm, (list, tuple, set, frozenset, dict, BaseModel))


def _guard_of(annotations: Sequence[object]) -> Callable[[object], object]:
    """How the cells of a column are written, from what each model with that field says it is."""
    are_text = [str in _arms(annotation) for annotation in annotations]
    if all(are_text):
        return _guarded
    return _guarded_unless_number if any(are_text) else _as_cell


def _as_cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


# What a spreadsheet skips before it looks for a formula, and what then begins one; the wide forms count in East Asia.
_FORMULA = re.compile(r"[\s\x00-\x1f\x7f\u200b\ufeff]*[=+\-@＝＋－＠]")


def _guarded_unless_number(value: object) -> object:
    """A cell that is a text in one model and a number in another; a decimal comes as a text too."""
    return value if isinstance(value, str) and _NUMBER.fullmatch(value) else _guarded(value)


_NUMBER = re.compile(r"-?\d+(\.\d+)?(E[+-]?\d+)?")


def _guarded(value: object) -> object:
    """A text cell that no spreadsheet runs."""
    if isinstance(value, str):
        return value if value[:1].isalnum() or _FORMULA.match(value) is None else f"'{value}"
    return _as_cell(value)
