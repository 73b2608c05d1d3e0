"""`kawait status` and `trace`: how one execution or interaction stands, and how it came there; see `streams.doors.views`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.text import Text

from schemas.errors import UsageError
from schemas.facts import Fact
from state.execution import ExecutionRecord
from state.unit import UnitRecord
from streams.cli import options
from streams.cli.options import APP, WORDS, views_of
from streams.cli.printing import (
    DETAIL_CHARS,
    out,
    payload_json,
    payload_text,
    print_fields,
    print_json,
    print_rows,
    status_text,
    struct_json,
    time_text,
)
from streams.doors.views import ExecutionView, InteractionView, target

# --- one execution --------------------------------------------------------------------------------------------------------------------


@click.command()
@WORDS
@APP
@options.BROKER
@options.JSON
@options.log_options(level="warning")
def status(
    words: tuple[str, ...], app: str | None, bootstrap: str | None, config_file: Path | None, *, as_json: bool
) -> None:
    """Show how an execution or an interaction stands."""
    name, text = options.app_and_id(words, app, "execution or interaction ID")
    wanted = target(text)
    with views_of(name, bootstrap, config_file) as views:
        if wanted.is_interaction:
            interaction = views.interaction(wanted)
            if interaction is None:
                raise UsageError(f"app {name} knows no interaction {text}")
            _show_interaction(interaction, as_json=as_json)
            return
        execution = views.execution(wanted.execution_id)
    if execution is None:
        raise UsageError(f"app {name} knows no execution {text}")
    _show_execution(execution, as_json=as_json)


def _show_execution(view: ExecutionView, *, as_json: bool) -> None:
    execution = view.execution
    if as_json:
        print_json(execution_json(view))
        return
    print_fields(
        (
            ("execution", execution.execution_id),
            ("status", status_text(str(execution.status))),
            ("step", "" if execution.forgotten else _step(execution)),
            ("parked at", execution.await_unit_id or "" if str(execution.status) == "WAITING_EXTERNAL" else ""),
            ("pipeline", execution.pipeline),
            ("tenant", execution.tenant_id if execution.tenant_id != "default" else ""),
            ("key", execution.submission_key),
            ("submitted", "" if execution.forgotten else time_text(execution.submitted_at_ms)),
            ("ended" if execution.forgotten else "updated", time_text(execution.updated_at_ms)),
            ("known", "no more than this: retention.executions is over" if execution.forgotten else ""),
            ("input moved to", execution.moved_to or ""),
            ("due", time_text(execution.due_ms)),
            ("error", _error(execution)),
            ("items", _items(view.units)),
            ("result", payload_text(execution.result, limit=400)),
            *(("output", path) for path in execution.outputs),
        )
    )
    if view.units:
        out().print()
        print_rows(
            ("unit", "step", "status", "path", "dispatched", "succeeded", "skipped", "failed", "opened"),
            [_unit_row(unit) for unit in view.units],
            empty="",
        )


def _step(execution: ExecutionRecord) -> str:
    """Steps count from 0; one that succeeded stands behind its last."""
    if str(execution.status) == "SUCCEEDED":
        return f"all {execution.step_index} done"
    return f"{execution.step_index}, attempt {execution.attempt}"


def _error(execution: ExecutionRecord) -> Text:
    if execution.error_code is None:
        return Text("")
    return Text(f"{execution.error_code}: {execution.error_message}", style="red")


def _items(units: list[UnitRecord]) -> str:
    """How the items of the streams went, all together."""
    streams = [unit for unit in units if unit.itemised]
    skipped, failed = sum(unit.skipped for unit in streams), sum(unit.failed for unit in streams)
    more = [f"{count} {what}" for count, what in ((skipped, "skipped"), (failed, "failed")) if count]
    return ", ".join([f"{sum(unit.succeeded for unit in streams)} succeeded", *more]) if streams else ""


def _unit_row(unit: UnitRecord) -> tuple[str | Text, ...]:
    total = unit.source_count if unit.source_count is not None else unit.expected
    dispatched = f"{unit.dispatched}" if total is None else f"{unit.dispatched} of {total}"
    path = "live" if unit.live else "suspending"
    counts = (unit.succeeded, unit.skipped, unit.failed)
    return (
        f".{unit.step_number}",
        unit.step_id,
        status_text(str(unit.status)),
        path,
        dispatched,
        *(str(count) if unit.itemised else "" for count in counts),
        time_text(unit.opened_at_ms),
    )


def execution_json(view: ExecutionView) -> dict[str, Any]:
    """`status --json` of an execution."""
    execution = view.execution
    return {
        "executionId": execution.execution_id,
        "status": execution.status,
        "pipeline": execution.pipeline,
        "tenantId": execution.tenant_id,
        "submissionKey": execution.submission_key,
        "stepIndex": execution.step_index,
        "attempt": execution.attempt,
        "awaitUnitId": execution.await_unit_id,
        "submittedAtEpochMs": execution.submitted_at_ms,
        "updatedAtEpochMs": execution.updated_at_ms,
        "nextDueAtEpochMs": execution.due_ms,
        "sourceName": execution.source_name,
        "inputMovedTo": execution.moved_to,
        "forgotten": execution.forgotten,
        "errorCode": execution.error_code,
        "errorMessage": execution.error_message,
        "succeeded": sum(unit.succeeded for unit in view.units if unit.itemised),
        "skipped": sum(unit.skipped for unit in view.units),
        "failed": sum(unit.failed for unit in view.units),
        "result": payload_json(execution.result),
        "outputs": execution.outputs,
        "units": [struct_json(unit) for unit in view.units],
    }


def _show_interaction(view: InteractionView, *, as_json: bool) -> None:
    row, unit, item = view.interaction, view.unit, view.item
    if as_json:
        more = {
            "interactionId": row.interaction_id,
            "stepId": unit.step_id if unit else None,
            "status": view.status,
            "item": struct_json(item) if item else None,
        }
        print_json({**struct_json(row), **more})
        return
    print_fields(
        (
            ("interaction", row.interaction_id),
            ("status", status_text(view.status)),
            ("step", unit.step_id if unit else ""),
            ("attempt", str(row.attempt)),
            ("dispatched", time_text(row.dispatched_at_ms or None)),
            ("deadline", time_text(row.deadline_ms or None)),
            ("completed", time_text(row.completed_at_ms)),
            ("actor", row.actor or ""),
            ("refused", f"{row.refusals} answers" if row.refusals else ""),
            ("late answer", payload_text(row.late.answer) if row.late else ""),
            ("request", payload_text(row.request)),
            ("completion", payload_text(row.completion)),
            ("item", f"{item.status}, attempt {item.attempt}" if item else ""),
            ("dead letter", (item.letter_id or "") if item else ""),
            *(("output", payload_text(payload)) for payload in (item.outputs if item else [])),
            (
                "error",
                Text(f"{item.error_code}: {item.error_message}", style="red") if item and item.error_code else "",
            ),
        )
    )


# --- its facts ------------------------------------------------------------------------------------------------------------------------


@click.command()
@WORDS
@APP
@options.BROKER
@options.JSON
@options.log_options(level="warning")
def trace(
    words: tuple[str, ...], app: str | None, bootstrap: str | None, config_file: Path | None, *, as_json: bool
) -> None:
    """Print the facts of an execution, or of one interaction of it, in the order in which they were committed.

    Columns: the time, the seconds since the first fact, the item, the fact and what it says.
    """
    name, text = options.app_and_id(words, app, "execution or interaction ID")
    first_ms: int | None = None
    with views_of(name, bootstrap, config_file) as views:
        for fact in views.trace(target(text)):
            first_ms = fact.at_ms if first_ms is None else first_ms
            if as_json:
                print_json(fact_json(fact))
            else:
                click.echo(fact_line(fact, first_ms))
    if first_ms is None:
        raise UsageError(f"app {name} has no facts of {text}; they are kept as long as retention.facts says")


def fact_json(fact: Fact) -> dict[str, Any]:
    """`trace --json`: one fact."""
    return {"fact": type(fact).__name__, **struct_json(fact)}


def fact_line(fact: Fact, first_ms: int) -> str:
    """`trace`: one fact for people."""
    index = getattr(fact, "item_index", None)
    unit = getattr(fact, "unit_id", None)
    place = "" if unit is None else f".{unit.rpartition('.')[2]}" + ("" if index is None else f".{index}")
    seconds = (fact.at_ms - first_ms) / 1000
    # Padded before it is styled: escape codes have no width.
    head = f"{time_text(fact.at_ms)} {click.style(f'{seconds:+9.3f}s', dim=True)} {place:<8} "
    return f"{head}{click.style(f'{type(fact).__name__:<30}', bold=True)} {_details(fact)}".rstrip()


def _details(fact: Fact) -> str:
    hidden = {"execution_id", "at_ms", "unit_id", "item_index"}
    parts = ((name, _detail(name, getattr(fact, name))) for name in fact.__struct_fields__ if name not in hidden)
    return " ".join(f"{name}={value}" for name, value in parts if value is not None)


def _detail(name: str, value: Any) -> str | None:
    if value is None or name == "resume_token":
        return None
    if isinstance(value, bytes):
        return payload_text(value, limit=DETAIL_CHARS)
    if isinstance(value, list):
        return payload_text(msgspec.json.encode([_detail("", part) for part in value]), limit=DETAIL_CHARS)
    if name.endswith("_ms"):
        return time_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if name in {"error_message", "reason"}:
        return " ".join(str(value).split())
    return payload_text(str(value).encode(), limit=DETAIL_CHARS)
