"""`kawait`: the group of all commands, and what becomes of their errors: a clear line on stderr and exit 1, never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from rich.markup import escape

from schemas.errors import KawaitError, PipelineError
from streams.broker.jars import BrokerError
from streams.cli.demo import demo
from streams.cli.letters import dlq, refusals
from streams.cli.look import status, trace
from streams.cli.pipelines import check, describe, topics
from streams.cli.printing import news
from streams.cli.run import provider, worker
from streams.cli.submit import submit
from streams.demo.provider import ProviderFailed
from streams.demo.provider_faust import FaustMissing
from topologies.reading.loading import format_problems

EXPECTED = (KawaitError, BrokerError, ProviderFailed, FaustMissing)
"""Errors whose message is all that a person needs; anything else is a mistake of ours and shows where."""


class Failed(click.ClickException):
    """An expected error on its way to stderr."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Print it."""
        del file
        news().print(f"[bold red]error[/] {escape(self.message)}", soft_wrap=True)


class Commands(click.Group):
    """A group that turns expected errors into messages."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except PipelineError as error:
            count = len(error.problems)
            head = f"{count} problem{'s' if count > 1 else ''} in the pipeline"
            raise Failed(f"{head}\n{format_problems(error.problems)}") from error
        except EXPECTED as error:
            raise Failed(str(error)) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a first day, not of the alphabet."""
        del ctx
        return list(self.commands)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="kawait", message="%(package)s %(version)s")
def cli() -> None:
    """Pipelines on Kafka that ask an outside party, suspend durably, and continue exactly once.

    Every flag has an environment name: --state-dir is KAWAIT_STATE_DIR. KAWAIT_KAFKA_<PROPERTY> sets a librdkafka property.
    Results go to stdout, logs to stderr. Exit: 0 ok, 1 failed, 2 wrong usage.
    """


COMMANDS: tuple[Callable[..., Any], ...] = (
    demo,
    check,
    describe,
    topics,
    worker,
    provider,
    submit,
    status,
    trace,
    refusals,
    dlq,
)

for command in COMMANDS:
    assert isinstance(command, click.Command)
    cli.add_command(command)
