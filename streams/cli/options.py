"""Options that commands share; every one has the environment name `KAWAIT_<FLAG>` (SURFACE 'Command line')."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from schemas.errors import UsageError
from streams.doors.views import Views
from streams.log.kafka.connection import Connection, connection
from streams.log.kafka.log import KafkaLog
from streams.telemetry import logs
from topologies.reading.choice import PipelineChoice

_Command = TypeVar("_Command", bound=Callable[..., Any])
Decorator = Callable[[_Command], _Command]

ENVIRONMENT_PREFIX = "KAWAIT_"
FILE = click.Path(path_type=Path)
READABLE_FILE = click.Path(path_type=Path, exists=True, dir_okay=False, readable=True)


def environment_name(flag: str) -> str:
    """The environment name of a flag: `--state-dir` -> `KAWAIT_STATE_DIR`."""
    return ENVIRONMENT_PREFIX + flag.lstrip("-").upper().replace("-", "_")


def option(*names: str, **more: Any) -> Callable[[_Command], _Command]:
    """A click option with its environment name."""
    flag = next(name for name in names if name.startswith("--"))
    return click.option(*names, envvar=environment_name(flag.partition("/")[0]), **more)


def together(*decorators: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Several decorators as one, the first outermost."""

    def apply(command: _Command) -> _Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


def log_options(*, level: str) -> Callable[[_Command], _Command]:
    """`--log-format` and `--log-level`; both act when they are read."""
    return together(
        option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="How logs are written to stderr.",
            expose_value=False,
            callback=lambda ctx, _param, value: _set_logs(ctx, log_format=value),
        ),
        option(
            "--log-level",
            type=click.Choice(list(logs.LEVELS)),
            default=level,
            show_default=True,
            help="The least that is logged.",
            expose_value=False,
            callback=lambda ctx, _param, value: _set_logs(ctx, level=value),
        ),
    )


def _set_logs(ctx: click.Context, **setting: str) -> None:
    known: dict[str, Any] = ctx.meta.setdefault("kawait.logs", {})
    known.update(setting)
    if len(known) == 2:
        logs.configure(**known)


PIPELINE_CHANGES = together(
    option("--app", metavar="NAME", help="Replaces the pipeline's app: topic prefix and group ids."),
    option(
        "--set", "overrides", metavar="PATH=VALUE", multiple=True, help="Overrides one key of the pipeline; repeatable."
    ),
    option(
        "--app-dir",
        type=FILE,
        metavar="DIR",
        help="Where the pipeline's modules are imported from. [default: its folder]",
    ),
)
"""`--app`, `--set`, `--app-dir`."""

PIPELINE = click.argument("pipeline", type=FILE, metavar="PIPELINE")

BROKER = together(
    option("--bootstrap", metavar="HOST:PORT", help="The Kafka cluster. [default: localhost:9092]"),
    option(
        "--config",
        "config_file",
        type=READABLE_FILE,
        metavar="FILE",
        help="librdkafka properties, name=value a line (SASL, TLS); KAWAIT_KAFKA_<PROPERTY> sets one as well.",
    ),
)
"""`--bootstrap`, `--config`."""

JSON = option("--json", "as_json", is_flag=True, help="One JSON document a line on stdout.")
SINCE = option(
    "--since", metavar="TIME", help="Leave out what is older: 2026-01-31T12:00:00Z, or an age such as 90s, 15m, 2h, 7d."
)
REASON = option("--reason", metavar="REASON", help="Only those with this reason.")


def choice(
    pipeline: Path, *, app: str | None = None, overrides: tuple[str, ...] = (), app_dir: Path | None = None
) -> PipelineChoice:
    """The pipeline that a command is about."""
    return PipelineChoice(path=pipeline, app=app, overrides=overrides, app_dir=app_dir)


def place(bootstrap: str | None, config_file: Path | None) -> Connection:
    """The broker that a command talks to."""
    return connection(bootstrap, config_file, os.environ)


def open_log(bootstrap: str | None, config_file: Path | None) -> KafkaLog:
    """The broker's log."""
    given = place(bootstrap, config_file)
    return KafkaLog(given.bootstrap, given.config)


def app_and_id(words: tuple[str, ...], app: str | None, what: str) -> tuple[str, str]:
    """`[PIPELINE] ID` with `--app`: the app's name and the id.

    Raises:
        click.UsageError: a word is missing or too many.
    """
    files = [word for word in words if _is_pipeline(word)]
    ids = [word for word in words if word not in files]
    if len(ids) != 1 or len(files) > 1:
        raise click.UsageError(f"give one {what}" if len(files) <= 1 else "give one PIPELINE")
    return app_of(Path(files[0]) if files else None, app), ids[0]


def app_of(pipeline: Path | None, app: str | None) -> str:
    """The app that a command looks at.

    Raises:
        click.UsageError: neither a pipeline nor `--app` is given.
        PipelineError: the pipeline names none.
    """
    if app is not None:
        return app
    if pipeline is None:
        raise click.UsageError("name the application: PIPELINE, or --app NAME")
    return PipelineChoice(path=pipeline).app_name(os.environ)


def _is_pipeline(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or os.sep in word or Path(word).is_file()


def read_value(text: str) -> bytes:
    """What `VALUE`, `@FILE` or `-` stand for.

    Raises:
        UsageError: the file cannot be read.
    """
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"{text[1:]} cannot be read: {(error.strerror or str(error)).lower()}") from error


WORDS = click.argument("words", nargs=-1, required=True, metavar="[PIPELINE] ID")
APP = option("--app", metavar="NAME", help="The application, instead of PIPELINE.")


@contextmanager
def views_of(app: str, bootstrap: str | None, config_file: Path | None) -> Iterator[Views]:
    """Views of an application."""
    log = open_log(bootstrap, config_file)
    try:
        yield Views(log, app)
    finally:
        log.close()
