"""`kawait check`, `describe` and `topics`: a pipeline before it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import structlog

from schemas.errors import LogUnavailable, PipelineError
from schemas.topics import TopicSettings
from streams.cli import options, provisioning
from streams.cli.printing import print_json, print_rows
from streams.clock import SystemClock
from streams.worker.topics import ensure_topics, pipeline_acls, topic_remarks, topic_settings
from topologies.pipeline.describing import describe as described
from topologies.pipeline.describing import mermaid as drawn
from topologies.pipeline.describing import notes
from topologies.pipeline.model import Pipeline

logger = structlog.get_logger("kawait.topics")

ATTEMPT_S = 5.0


@click.command()
@options.PIPELINE
@options.PIPELINE_CHANGES
@options.JSON
@options.log_options(level="warning")
@click.pass_context
def check(
    ctx: click.Context,
    pipeline: Path,
    app: str | None,
    overrides: tuple[str, ...],
    app_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    """Validate PIPELINE: every error at once, with file, line and what to write instead."""
    chosen = options.choice(pipeline, app=app, overrides=overrides, app_dir=app_dir)
    try:
        loaded = chosen.load(os.environ)
    except PipelineError as error:
        if not as_json:
            raise
        for problem in error.problems:
            print_json({name: getattr(problem, name) for name in ("file", "line", "where", "message", "advice")})
        ctx.exit(1)
    if as_json:
        return
    awaits = len(loaded.await_steps)
    click.echo(
        f"{pipeline} is valid: {loaded.name}, {len(loaded.steps)} steps, {awaits} await{'' if awaits == 1 else 's'}"
    )
    for note in notes(loaded):
        click.echo(f"note: {note}")


@click.command()
@options.PIPELINE
@options.option("--mermaid", is_flag=True, help="As a Mermaid flowchart.")
@options.PIPELINE_CHANGES
@options.log_options(level="warning")
def describe(
    pipeline: Path, app: str | None, overrides: tuple[str, ...], app_dir: Path | None, *, mermaid: bool
) -> None:
    """Print the steps, boundaries, topics and tables of PIPELINE."""
    loaded = options.choice(pipeline, app=app, overrides=overrides, app_dir=app_dir).load_without_secrets(os.environ)
    click.echo(drawn(loaded) if mermaid else described(loaded))


@click.command()
@options.PIPELINE
@options.option("--plan", is_flag=True, help="Only print what the topics must be.")
@options.option("--acls", "with_acls", is_flag=True, help="Only print the least permissions that each principal needs.")
@options.option(
    "--format",
    "form",
    type=click.Choice(["strimzi", "kafka-topics"]),
    help="Print as Strimzi resources, or as commands of Kafka's own tools.",
)
@options.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for the broker.",
)
@options.PIPELINE_CHANGES
@options.BROKER
@options.JSON
@options.log_options(level="warning")
def topics(
    pipeline: Path,
    form: str | None,
    timeout_s: float,
    app: str | None,
    overrides: tuple[str, ...],
    app_dir: Path | None,
    bootstrap: str | None,
    config_file: Path | None,
    *,
    plan: bool,
    with_acls: bool,
    as_json: bool,
) -> None:
    """Create the topics of PIPELINE that are missing, and refuse those that are not as they must be."""
    loaded = options.choice(pipeline, app=app, overrides=overrides, app_dir=app_dir).load_without_secrets(os.environ)
    if plan or (form is not None and not with_acls):
        _print_topics(topic_settings(loaded), form, as_json=as_json)
    if with_acls:
        _print_acls(loaded, form, as_json=as_json)
    if not (plan or with_acls or form is not None):
        _create(loaded, bootstrap, config_file, timeout_s, as_json=as_json)


def _create(
    pipeline: Pipeline, bootstrap: str | None, config_file: Path | None, timeout_s: float, *, as_json: bool
) -> None:
    log = options.open_log(bootstrap, config_file)
    try:
        created = _ensure(pipeline, log, timeout_s)
        remarks = topic_remarks(pipeline, log, timeout_s=timeout_s)
    finally:
        log.close()
    count = len(topic_settings(pipeline))
    if as_json:
        print_json({"created": created, "verified": count, "remarks": remarks})
        return
    for name in created:
        click.echo(f"created {name}")
    click.echo(f"{count} topics are as they must be" + (f", {len(created)} of them new" if created else ""))
    for remark in remarks:
        click.echo(f"not as it would be made: {remark}")


def _ensure(pipeline: Pipeline, log: Any, timeout_s: float) -> list[str]:
    """Ensure the topics; a broker that is away is waited for."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + timeout_s
    waiting = False
    while True:
        try:
            return ensure_topics(pipeline, log, timeout_s=min(ATTEMPT_S, timeout_s))
        except LogUnavailable as error:
            if clock.monotonic_s() >= until_s:
                raise
            if not waiting:
                logger.warning("waiting for the broker", detail=str(error))
                waiting = True


def _print_topics(specs: list[TopicSettings], form: str | None, *, as_json: bool) -> None:
    if as_json:
        for spec in specs:
            print_json(
                {
                    "name": spec.name,
                    "partitions": spec.partitions,
                    "replicationFactor": spec.replication_factor,
                    "config": spec.config,
                }
            )
    elif form == "strimzi":
        click.echo(provisioning.strimzi_topics(specs))
    elif form == "kafka-topics":
        click.echo(provisioning.topic_commands(specs))
    else:
        rows = [
            (
                spec.name,
                str(spec.partitions),
                _replication(spec),
                " ".join(f"{k}={v}" for k, v in sorted(spec.config.items())),
            )
            for spec in specs
        ]
        print_rows(("topic", "partitions", "replicas", "settings"), rows, empty="no topics")


def _replication(spec: TopicSettings) -> str:
    return str(spec.replication_factor) if spec.replication_factor > 0 else "broker"


def _print_acls(pipeline: Pipeline, form: str | None, *, as_json: bool) -> None:
    found = pipeline_acls(pipeline)
    if as_json:
        for acl in found:
            print_json(acl._asdict())
    elif form == "strimzi":
        click.echo(provisioning.strimzi_users(pipeline.app, found))
    elif form == "kafka-topics":
        click.echo(provisioning.acl_commands(pipeline.app, found))
    else:
        rows = [(acl.principal, acl.resource, acl.name, acl.pattern, ", ".join(acl.operations)) for acl in found]
        print_rows(("principal", "resource", "name", "pattern", "operations"), rows, empty="no permissions")
