"""`kawait worker` and `kawait provider`: processes that run until they are told to stop."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import click
import structlog

from streams.cli import options
from streams.demo.provider import ProviderSettings, run_provider
from streams.demo.provider_answers import REJECT_RATE_DEFAULT
from streams.demo.run import PIPELINE as DEMO_PIPELINE
from streams.demo.run import payment_topics
from streams.process.child import READY
from streams.process.signals import stop_on_signals
from streams.worker.assembly import ROLES
from topologies.reading.choice import PipelineChoice

logger = structlog.get_logger("kawait.run")

ADMIN_PORT_DEFAULT = 9464
STATE_DIR_DEFAULT = Path(".kawait")
OFF = "off"


class RolesType(click.ParamType):
    """A list of roles, with commas."""

    name = "roles"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Split and check."""
        if isinstance(value, tuple):
            return value
        roles = tuple(dict.fromkeys(part.strip() for part in str(value).split(",") if part.strip()))
        unknown = [role for role in roles if role not in ROLES]
        if unknown or not roles:
            self.fail(f"{', '.join(unknown) or 'nothing'} is no role; choose among {', '.join(ROLES)}", param, ctx)
        return roles


class PortType(click.ParamType):
    """A port, 0 for a free one, or `off`."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Check."""
        if value == OFF or isinstance(value, int):
            return OFF if value == OFF else int(value)
        if not str(value).isdecimal() or int(value) > 65_535:
            self.fail(f"{value!r} is no port; give 1 to 65535, 0 for a free one, or {OFF}", param, ctx)
        return int(value)


@click.command()
@options.PIPELINE
@options.option("--roles", type=RolesType(), default=",".join(ROLES), show_default=True, help="What this process does.")
@options.option(
    "--instance",
    metavar="NAME|auto",
    help="Stable name of this instance: a restart under it takes its partitions over at once. auto: a new name each start. [default: the host name]",
)
@options.option(
    "--state-dir",
    type=options.FILE,
    default=STATE_DIR_DEFAULT,
    show_default=True,
    metavar="DIR",
    help="Where tables are kept, in <app>/<instance> below it.",
)
@options.option(
    "--admin-port",
    type=PortType(),
    default=str(ADMIN_PORT_DEFAULT),
    show_default=True,
    metavar="PORT",
    help="Serves /healthz, /readyz and /metrics; 0 takes a free port, off serves nothing.",
)
@options.PIPELINE_CHANGES
@options.BROKER
@options.log_options(level="info")
@click.pass_context
def worker(
    ctx: click.Context,
    pipeline: Path,
    roles: tuple[str, ...],
    instance: str | None,
    state_dir: Path,
    admin_port: int | str,
    app: str | None,
    overrides: tuple[str, ...],
    app_dir: Path | None,
    bootstrap: str | None,
    config_file: Path | None,
) -> None:
    """Run an instance of PIPELINE until SIGTERM or Ctrl-C.

    Its topics must exist (`kawait topics PIPELINE`). Prints one line once every role has joined and restored. A broker that is away is waited for.
    """
    from streams.worker.run import WorkerSettings, run_worker

    stop = stop_on_signals()
    choice = options.choice(pipeline, app=app, overrides=overrides, app_dir=app_dir)
    loaded = choice.load(os.environ)
    place = options.place(bootstrap, config_file)
    name = instance or socket.gethostname()
    settings = WorkerSettings(
        pipeline=loaded,
        choice=choice,
        bootstrap=place.bootstrap,
        kafka=place.config,
        roles=roles,
        instance=name,
        state_dir=state_dir,
        admin_port=_port(ctx, admin_port),
    )
    logger.info("worker starts", app=loaded.app, instance=name, roles=",".join(roles), bootstrap=place.bootstrap)
    code = run_worker(
        settings, stop, on_ready=lambda: click.echo(f"{READY} worker {name} of {loaded.app}: {', '.join(roles)}")
    )
    logger.info("worker stopped", app=loaded.app, instance=name)
    ctx.exit(code)


def _port(ctx: click.Context, wanted: int | str) -> int | None:
    """The admin port; the default one gives way when another worker of this host has it."""
    if wanted == OFF:
        return None
    port = int(wanted)
    if ctx.get_parameter_source("admin_port") is click.core.ParameterSource.DEFAULT and _is_taken(port):
        logger.warning("the default admin port is taken; using a free one", port=port)
        return 0
    return port


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


RATE = click.FloatRange(min=0, max=1)


@click.command()
@click.argument("pipeline", type=options.FILE, required=False, metavar="[PIPELINE]")
@options.option(
    "--reject-rate",
    type=RATE,
    default=REJECT_RATE_DEFAULT,
    show_default=True,
    help="Share of payments that are rejected, by csvId.",
)
@options.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Answers a second at most.")
@options.option(
    "--delay-ms",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Time between a request and its answer.",
)
@options.option("--burst", type=click.IntRange(min=1), metavar="N", help="Answers in a row before a short pause.")
@options.option("--duplicate", type=RATE, default=0.0, metavar="P", help="Share of requests that are answered twice.")
@options.option("--faust", is_flag=True, help="Run it as a Faust application (the faust extra).")
@options.PIPELINE_CHANGES
@options.BROKER
@options.log_options(level="info")
def provider(
    pipeline: Path | None,
    reject_rate: float,
    rate: float | None,
    delay_ms: int,
    burst: int | None,
    duplicate: float,
    app: str | None,
    overrides: tuple[str, ...],
    app_dir: Path | None,
    bootstrap: str | None,
    config_file: Path | None,
    *,
    faust: bool,
) -> None:
    """Run the demo's mock payment provider until SIGTERM or Ctrl-C.

    It answers the requests of PIPELINE's first await step on Kafka; the default is the demo's pipeline.
    """
    stop = stop_on_signals()
    chosen = PipelineChoice(path=pipeline or DEMO_PIPELINE, app=app, overrides=overrides, app_dir=app_dir)
    loaded = chosen.load_without_secrets(os.environ)
    requests, responses = payment_topics(loaded)
    place = options.place(bootstrap, config_file)
    settings = ProviderSettings(
        bootstrap=place.bootstrap,
        request_topic=requests,
        response_topic=responses,
        group_id=f"{loaded.app}-provider",
        reject_rate=reject_rate,
        rate_per_s=rate,
        delay_ms=delay_ms,
        burst=burst,
        duplicate=duplicate,
        kafka=place.config,
    )
    click.echo(f"provider answers {requests} on {responses}")
    if faust:
        from streams.demo.provider_faust import run_faust_provider

        run_faust_provider(settings, stop)
    else:
        run_provider(settings, stop)
