"""What commands print: results on stdout, in words and tables for people, as JSON for machines; news on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

NARROW_COLUMNS = 160
"""Width of a table that is not shown on a terminal: nothing is cut for a screen that is not there."""

_AGE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

STATUS_STYLES: Mapping[str, str] = {
    "SUCCEEDED": "green",
    "COMPLETED": "green",
    "FAILED": "red",
    "TIMED_OUT": "red",
    "CANCELLED": "yellow",
    "WAITING_EXTERNAL": "cyan",
    "PENDING": "cyan",
    "WAIT_RETRY": "yellow",
}


def out() -> Console:
    """The console on stdout."""
    return _console(stderr=False)


def news() -> Console:
    """The console on stderr."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else NARROW_COLUMNS
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def print_json(value: object) -> None:
    """One JSON document as one line."""
    click.echo(msgspec.json.encode(value).decode())


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, empty: str) -> None:
    """A table without a frame; `empty` when there are no rows."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    if table.row_count:
        out().print(table)
    else:
        out().print(empty, style="dim")


def print_fields(fields: Iterable[tuple[str, str | Text]]) -> None:
    """Names and values, aligned; an empty value is left out."""
    shown = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0)
    console = out()
    for name, value in shown:
        console.print(Text(f"{name:<{width}}  ", style="dim") + value, soft_wrap=True)


def status_text(status: str) -> Text:
    """A status in its colour."""
    return Text(status, style=STATUS_STYLES.get(status, ""))


def time_text(at_ms: int | None) -> str:
    """An instant in UTC, to the millisecond; empty for none."""
    if at_ms is None:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def payload_text(payload: bytes | None, *, limit: int | None = None) -> str:
    """A payload as text; what is no UTF-8 is shown as bytes, what is long is cut at `limit`."""
    if payload is None:
        return ""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = repr(payload)[2:-1]
    return text if limit is None or len(text) <= limit else f"{text[: limit - 1]}…"


def payload_json(payload: bytes | None) -> object:
    """A payload for a JSON document: as JSON if it is some, else as text."""
    if payload is None:
        return None
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return payload_text(payload)
    return msgspec.Raw(payload)


def struct_json(value: msgspec.Struct) -> dict[str, Any]:
    """A fact, refusal or dead letter with camelCase names and readable payloads."""
    return {camel(name): _json_of(name, getattr(value, name)) for name in value.__struct_fields__}


def camel(name: str) -> str:
    """`execution_id` -> `executionId`; times say their unit: `at_ms` -> `atEpochMs`."""
    first, *rest = name.removesuffix("_ms").split("_")
    return first + "".join(part.capitalize() for part in rest) + ("EpochMs" if name.endswith("_ms") else "")


def _json_of(name: str, value: Any) -> Any:
    if name == "resume_token":
        return None if value is None else "***"
    if isinstance(value, bytes):
        return payload_json(value)
    if isinstance(value, msgspec.Struct):
        return struct_json(value)
    if isinstance(value, list):
        return [_json_of("", part) for part in value]
    return value


def parse_since(text: str | None, now_ms: int) -> int | None:
    """Epoch milliseconds of `--since`: an age or an instant.

    Raises:
        click.BadParameter: it is neither.
    """
    if text is None:
        return None
    age = _AGE.fullmatch(text.strip())
    if age is not None:
        return now_ms - int(float(age[1]) * _UNIT_MS[age[2]])
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; write 2026-01-31T12:00:00Z, or an age such as 15m", param_hint="--since"
        ) from None
    return int((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1000)


DETAIL_CHARS = 80
