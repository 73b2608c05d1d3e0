"""`kawait refusals` and `dlq`: answers and executions that need somebody; see `streams.doors.views` for where they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from schemas.envelopes import DeadLetter, Refusal
from schemas.errors import UsageError
from streams.cli import options
from streams.cli.options import APP, WORDS, views_of
from streams.cli.printing import (
    DETAIL_CHARS,
    parse_since,
    payload_text,
    print_fields,
    print_json,
    print_rows,
    struct_json,
    time_text,
)
from streams.clock import SystemClock
from streams.doors.views import Found

LIMIT_DEFAULT = 50

MAYBE_PIPELINE = click.argument("pipeline", type=options.FILE, required=False, metavar="[PIPELINE]")
LIMIT = options.option(
    "--limit",
    type=click.IntRange(min=1),
    default=LIMIT_DEFAULT,
    show_default=True,
    metavar="N",
    help="The newest so many.",
)


@click.command()
@MAYBE_PIPELINE
@APP
@options.REASON
@options.SINCE
@LIMIT
@options.BROKER
@options.JSON
@options.log_options(level="warning")
def refusals(
    pipeline: Path | None,
    app: str | None,
    reason: str | None,
    since: str | None,
    limit: int,
    bootstrap: str | None,
    config_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """List answers that were refused: unknown, late, conflicting, forged, of a wrong shape."""
    name = options.app_of(pipeline, app)
    since_ms = parse_since(since, SystemClock().now_ms())
    with views_of(name, bootstrap, config_file) as views:
        found = views.refusals(limit=limit, reason=reason, since_ms=since_ms)
    columns = ("time", "reason", "interaction", "step", "owner", "detail", "payload", "kept")
    _list(found, columns, _refusal_row, as_json=as_json, empty=f"no refused answers in {name}")


def _refusal_row(found: Found) -> tuple[str, ...]:
    refusal = found.value
    assert isinstance(refusal, Refusal)
    return (
        time_text(refusal.at_ms),
        refusal.reason,
        refusal.interaction_id or "-",
        refusal.step_id or "-",
        refusal.owner or "-",
        refusal.detail,
        payload_text(refusal.payload, limit=DETAIL_CHARS),
        "yes" if refusal.kept else "",
    )


@click.group()
def dlq() -> None:
    """Dead letters: executions that failed for good, items that were left out, and records that nobody could read."""


@dlq.command("list")
@MAYBE_PIPELINE
@APP
@options.REASON
@options.SINCE
@LIMIT
@options.BROKER
@options.JSON
@options.log_options(level="warning")
def dlq_list(
    pipeline: Path | None,
    app: str | None,
    reason: str | None,
    since: str | None,
    limit: int,
    bootstrap: str | None,
    config_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """List the newest dead letters."""
    name = options.app_of(pipeline, app)
    since_ms = parse_since(since, SystemClock().now_ms())
    with views_of(name, bootstrap, config_file) as views:
        found = views.dead_letters(limit=limit, reason=reason, since_ms=since_ms)
    _list(
        found,
        ("id", "time", "kind", "reason", "execution", "origin", "detail"),
        _letter_row,
        as_json=as_json,
        empty=f"no dead letters in {name}",
    )


def _letter_row(found: Found) -> tuple[str, ...]:
    letter = found.value
    assert isinstance(letter, DeadLetter)
    return (
        found.place,
        time_text(letter.at_ms),
        letter.kind,
        letter.reason,
        letter.interaction_id or letter.execution_id or "-",
        _origin(letter),
        payload_text(letter.detail.encode(), limit=2 * DETAIL_CHARS),
    )


def _origin(letter: DeadLetter) -> str:
    return f"{letter.origin_topic}[{letter.origin_partition}]@{letter.origin_offset}" if letter.origin_topic else "-"


@dlq.command("show")
@WORDS
@APP
@options.BROKER
@options.JSON
@options.log_options(level="warning")
def dlq_show(
    words: tuple[str, ...], app: str | None, bootstrap: str | None, config_file: Path | None, *, as_json: bool
) -> None:
    """Show one dead letter: ID is that of the list, an execution's, an interaction's or the letter's own."""
    name, text = options.app_and_id(words, app, "dead letter ID (see `dlq list`), execution ID or interaction ID")
    with views_of(name, bootstrap, config_file) as views:
        found = views.dead_letter(text)
    if found is None:
        raise UsageError(f"app {name} has no dead letter {text}")
    letter = found.value
    assert isinstance(letter, DeadLetter)
    if as_json:
        print_json(_found_json(found))
        return
    cut = (
        f"{letter.value_length} bytes, cut; sha256 {letter.value_sha256}"
        if letter.value and letter.value_length > len(letter.value)
        else ""
    )
    print_fields(
        (
            ("id", found.place),
            ("time", time_text(letter.at_ms)),
            ("kind", letter.kind),
            ("reason", letter.reason),
            ("detail", letter.detail),
            ("execution", letter.execution_id or ""),
            ("step", letter.step_id or ""),
            ("item", "" if letter.item_index is None else str(letter.item_index)),
            ("interaction", letter.interaction_id or ""),
            ("letter", letter.letter_id or ""),
            ("origin", _origin(letter) if letter.origin_topic else ""),
            ("key", payload_text(letter.key)),
            ("value", payload_text(letter.value)),
            ("length", cut),
        )
    )


def _list(
    found: list[Found], columns: tuple[str, ...], row: Callable[[Found], tuple[str, ...]], *, as_json: bool, empty: str
) -> None:
    if as_json:
        for record in found:
            print_json(_found_json(record))
    else:
        print_rows(columns, [row(record) for record in found], empty=empty)


def _found_json(found: Found) -> dict[str, Any]:
    return {"id": found.place, **struct_json(found.value)}
