"""The demo: csv-payments end to end, from input files to published ones, on an in-memory log or a real Kafka (SURFACE `kawait demo`).

    demo          this: what is run, the run itself, and what came of it
    demo_memory   workers and provider as threads on a memory log
    demo_kafka    workers and provider as processes on a broker

The clock runs from the first submission to the last published file; starting workers and provider is not part of it.
"""

from __future__ import annotations

import csv
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from connectors.objects.listing import identify
from schemas.errors import KawaitError, UsageError
from streams.clock import SystemClock
from streams.demo import payments_file as generate
from streams.demo.provider_answers import REJECT_RATE_DEFAULT
from streams.doors.outcomes import Outcome, Outcomes
from streams.doors.submissions import command_for_object, send
from streams.log.seam import Log, TopicPartition
from topologies import __file__ as topologies_file
from topologies.pipeline.model import Pipeline
from topologies.pipeline.transports import KafkaTransport
from topologies.reading.choice import PipelineChoice

FOLDER: Final = Path(topologies_file).parent / "csv_payments"
PIPELINE: Final = FOLDER / "pipeline.yaml"
SAMPLE: Final = FOLDER / "payments_12.csv"
ROWS_DEFAULT: Final = 12
AWAIT_STEP: Final = "await-payment-provider"
OUTPUT_SUFFIX: Final = ".out"
TOKEN_NAME: Final = "KAWAIT_TOKEN_K1"  # noqa: S105 - a variable's name
RUN_S_MAX: Final = 86_400.0
SUBMIT_TIMEOUT_S: Final = 30.0
PROGRESS_EVERY_S: Final = 0.2


class DemoFailed(KawaitError):
    """A part of the demo ended by itself."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What is run.

    Attributes:
        inputs: Payments files; none: the sample of 12 rows, or `rows` generated ones.
        output: Where the output files go.
        live: The live window is on.
        workers: App instances.
        app: Topic prefix; None: one of its own for each run on Kafka.
        overrides: The user's own, as `--set`.
    """

    inputs: tuple[Path, ...] = ()
    rows: int | None = None
    seed: int = 1
    output: Path = Path("out")
    reject_rate: float = REJECT_RATE_DEFAULT
    live: bool = True
    workers: int = 1
    app: str | None = None
    overrides: tuple[str, ...] = ()

    def choice(self, idle_folder: Path, app: str | None) -> PipelineChoice:
        """The demo's pipeline: outputs to `output`, inputs by submission only, so the source looks into an empty folder."""
        own = [f"output.location={self.output.absolute()}", f"input.location={idle_folder}"]
        if not self.live:
            own.append(f"steps.{AWAIT_STEP}.await.live=false")
        return PipelineChoice(path=PIPELINE, app=app, overrides=(*own, *self.overrides))


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One input that could not be paid."""

    input: Path
    error: str


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What came of a run; `rows` = approved + rejected + failed."""

    approved: int
    rejected: int
    failed: int
    seconds: float
    outputs: tuple[Path, ...]
    broker: str
    live: bool
    failures: tuple[Failure, ...] = field(default=())

    @property
    def rows(self) -> int:
        """Data rows of all inputs."""
        return self.approved + self.rejected + self.failed

    @property
    def rows_per_second(self) -> float:
        """Rows with an output, over the time they took."""
        return (self.approved + self.rejected) / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, object]:
        """The line that `demo --json` ends with."""
        return {
            "rows": self.rows,
            "approved": self.approved,
            "rejected": self.rejected,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "rowsPerSecond": round(self.rows_per_second, 1),
            "outputs": [str(path) for path in self.outputs],
            "broker": self.broker,
            "live": self.live,
        }


class Stage(Protocol):
    """Workers and a provider that are ready."""

    log: Log
    pipeline: Pipeline

    def check(self) -> None:
        """Do nothing while everything runs.

        Raises:
            DemoFailed: a part of it ended; the message says why.
        """


Progress = Callable[[int, int], None]
"""(answers so far, rows about) - called several times a second."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the demo's parts: with a token key of its own unless there is one."""
    return {TOKEN_NAME: secrets.token_urlsafe(32), **{name: value for name, value in environ.items() if value}}


def prepare_inputs(settings: DemoSettings) -> list[Path]:
    """The files to submit, and room for their outputs: outputs of earlier runs with the same names are replaced.

    Raises:
        UsageError: a file is missing, two would have the same output, or the output folder cannot be written.
    """
    inputs = list(dict.fromkeys(path.absolute() for path in settings.inputs)) or [_own_input(settings)]
    by_name: dict[str, Path] = {}
    for path in inputs:
        if not path.is_file():
            raise UsageError(f"input {path} is no file")
        if path.name in by_name:
            raise UsageError(
                f"two inputs are named {path.name}: both would become {path.name}{OUTPUT_SUFFIX}; rename one"
            )
        by_name[path.name] = path
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
        for name in by_name:
            (settings.output / f"{name}{OUTPUT_SUFFIX}").unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"the output folder {settings.output} cannot be written: {error.strerror}; choose one with --output"
        ) from error
    return inputs


def _own_input(settings: DemoSettings) -> Path:
    if settings.rows in (None, ROWS_DEFAULT) and settings.seed == 1:
        return SAMPLE
    rows = ROWS_DEFAULT if settings.rows is None else settings.rows
    # Beside the outputs, under a name that says what it is: the same run again has the same path, so the same ids and the same bytes.
    seed = "" if settings.seed == 1 else f"_seed{settings.seed}"
    try:
        return generate.generate(settings.output.absolute() / f"payments_{rows}{seed}.csv", rows, settings.seed)
    except OSError as error:
        raise UsageError(
            f"the output folder {settings.output} cannot be written: {error.strerror}; choose one with --output"
        ) from error


def run_demo(
    settings: DemoSettings, stage: Stage, inputs: list[Path], *, progress: Progress | None = None
) -> DemoResult:
    """Submit the inputs and wait for their outcomes.

    Raises:
        KawaitError: the run broke off. An input that cannot be paid does not: it is counted as failed.
    """
    clock = SystemClock()
    identities = [(path, identify(path)) for path in inputs]
    commands = [(path, command_for_object(stage.pipeline, identity)) for path, identity in identities]
    turn = _turn(stage, inputs, progress)
    producer = stage.log.plain_producer()
    with Outcomes(stage.log, stage.pipeline.app) as outcomes:
        started_s = clock.monotonic_s()
        for _, command in commands:
            send(stage.pipeline, producer, command, timeout_s=SUBMIT_TIMEOUT_S)
        ids = [command.execution_id for _, command in commands]
        ended = outcomes.wait(ids, timeout_s=RUN_S_MAX, on_turn=turn)
        seconds = clock.monotonic_s() - started_s
    producer.close()
    return _result(settings, stage, {path: ended[command.execution_id] for path, command in commands}, seconds)


def _turn(stage: Stage, inputs: list[Path], progress: Progress | None) -> Callable[[Mapping[str, Outcome]], None]:
    """What is done while waiting: look whether all is well, and tell how far it is."""
    rows = sum(count_lines(path) for path in inputs) if progress is not None else 0
    answers = _response_partitions(stage)
    clock = SystemClock()
    due_s = 0.0

    def turn(_ended: Mapping[str, Outcome]) -> None:
        nonlocal due_s
        if clock.monotonic_s() < due_s:
            return
        due_s = clock.monotonic_s() + PROGRESS_EVERY_S
        stage.check()
        if progress is not None:
            # Offsets, not records: the provider writes without transactions, so every offset is an answer.
            progress(sum(stage.log.end_offsets(answers, "uncommitted", 10.0).values()), rows)

    return turn


def _response_partitions(stage: Stage) -> list[TopicPartition]:
    _, topic = payment_topics(stage.pipeline)
    return [TopicPartition(topic, number) for number in range(stage.log.topics([topic], 10.0)[topic].partitions)]


def payment_topics(pipeline: Pipeline) -> tuple[str, str]:
    """Request and response topic of a pipeline's first Kafka await.

    Raises:
        UsageError: it has none.
    """
    for step in pipeline.await_steps:
        if isinstance(step.transport, KafkaTransport):
            return step.transport.request_topic, step.transport.response_topic
    raise UsageError(f"{pipeline.path.name} has no await step with a kafka transport, so there is nothing to answer")


def _result(settings: DemoSettings, stage: Stage, ended: Mapping[Path, Outcome], seconds: float) -> DemoResult:
    outputs = tuple(Path(name) for outcome in ended.values() for name in outcome.outputs)
    failures = tuple(
        Failure(input=path, error=f"{outcome.error_code or outcome.status}: {outcome.error_message or 'no message'}")
        for path, outcome in ended.items()
        if not outcome.succeeded
    )
    approved, rejected = count_outputs(outputs)
    return DemoResult(
        approved=approved,
        rejected=rejected,
        failed=sum(max(1, count_lines(failure.input)) for failure in failures),
        seconds=seconds,
        outputs=outputs,
        broker=stage.log.name,
        live=settings.live,
        failures=failures,
    )


def count_outputs(outputs: tuple[Path, ...]) -> tuple[int, int]:
    """Approved and rejected rows of output files."""
    approved = rejected = 0
    for path in outputs:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            for row in rows:
                if row["status"] == "Rejected":
                    rejected += 1
                else:
                    approved += 1
    return approved, rejected


def count_lines(path: Path) -> int:
    """Lines after the header that are not blank: about the number of rows, without judging the file."""
    try:
        with path.open("rb") as file:
            return max(0, sum(1 for line in file if line.strip()) - 1)
    except OSError:
        return 0
