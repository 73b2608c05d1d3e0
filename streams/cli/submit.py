"""`kawait submit`: start an execution, and wait for its outcome if asked."""

from __future__ import annotations

import os
from pathlib import Path

import click

from streams.cli import options
from streams.cli.printing import news, out, print_json
from streams.doors.outcomes import STORE_TIMEOUT_S, WAIT_TIMEOUT_S, Outcome, submit_command
from streams.doors.submissions import command_of


@click.command()
@options.PIPELINE
@options.option(
    "--input",
    "input_file",
    type=options.READABLE_FILE,
    metavar="FILE",
    help="Submit this file, for a pipeline that reads objects.",
)
@options.option("--payload", metavar="VALUE|@FILE|-", help="Submit this JSON: a value, a file's content, or stdin.")
@options.option(
    "--key",
    metavar="KEY",
    help="Submission key: the same key is the same execution; another key runs the same input once more. [default: the content]",
)
@options.option("--wait", is_flag=True, help="Wait until the execution has ended.")
@options.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help=f"Give up after so long. [default: {STORE_TIMEOUT_S:g}, with --wait {WAIT_TIMEOUT_S:g}]",
)
@options.PIPELINE_CHANGES
@options.BROKER
@options.JSON
@options.log_options(level="warning")
@click.pass_context
def submit(
    ctx: click.Context,
    pipeline: Path,
    input_file: Path | None,
    payload: str | None,
    key: str | None,
    timeout_s: float | None,
    app: str | None,
    overrides: tuple[str, ...],
    app_dir: Path | None,
    bootstrap: str | None,
    config_file: Path | None,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """Start an execution of PIPELINE and print its id.

    Submitting the same again is harmless: the id follows from the key, so it is the same execution.
    """
    if (input_file is None) == (payload is None):
        raise click.UsageError("give either --input FILE or --payload VALUE")
    loaded = options.choice(pipeline, app=app, overrides=overrides, app_dir=app_dir).load_without_secrets(os.environ)
    value = options.read_value(payload) if payload is not None else None
    command = command_of(loaded, value, file=input_file, key=key)
    log = options.open_log(bootstrap, config_file)
    try:
        outcome = submit_command(loaded, log, command, wait=wait, timeout_s=timeout_s)
    finally:
        log.close()
    if as_json:
        print_json(outcome_json(outcome))
    else:
        click.echo(outcome.execution_id)
        _explain(outcome)
    if wait and not outcome.succeeded:
        ctx.exit(1)


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """The line of `submit --json`: `result` or `outputs` once it succeeded, the error otherwise."""
    line: dict[str, object] = {"executionId": outcome.execution_id}
    if outcome.status is None:
        return line
    line["status"] = outcome.status
    if outcome.outputs:
        line["outputs"] = list(outcome.outputs)
    elif outcome.succeeded:
        line["result"] = outcome.result
    if outcome.error_code is not None:
        line |= {"errorCode": outcome.error_code, "errorMessage": outcome.error_message}
    if outcome.items_skipped:
        line |= {"succeeded": outcome.items_succeeded, "skipped": outcome.items_skipped}
    if outcome.duplicate:
        line["duplicate"] = True
    return line


def _explain(outcome: Outcome) -> None:
    """What became of it, for people: outputs and result on stdout, the rest beside it."""
    if outcome.status is None:
        return
    if outcome.items_skipped:
        left_out = (
            f"{outcome.items_skipped} of {outcome.items_skipped + (outcome.items_succeeded or 0)} items were left out"
        )
        news().print(left_out, style="yellow", markup=False, soft_wrap=True)
    if outcome.succeeded:
        for name in outcome.outputs:
            click.echo(name)
        if not outcome.outputs and outcome.result is not None:
            out().print_json(data=outcome.result)
        return
    detail = f"{outcome.error_code}: {outcome.error_message}" if outcome.error_code else "no reason was given"
    news().print(f"{outcome.status}  {detail}", style="red", markup=False, soft_wrap=True)
