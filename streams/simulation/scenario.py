"""What one seed means: the pipeline, the executions, the machines and the kinds of trouble of a run.

Pipelines are loaded once a process from a folder of small files with their author's module; what a seed varies (window, live, strategy,
`onTimeout`, output, partitions) is put in place of what the file says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from schemas import facts, limits
from schemas.envelopes import SubmitCommand
from schemas.errors import UsageError
from streams.doors.submissions import command_for_payload
from topologies.pipeline.ends import After, ObjectOutput, ObjectSource, Source, TopicOutput, TopicSource
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import AwaitStep, DeadLetterAndSkip, RunStep, Skip, Value
from topologies.reading.loading import load_pipeline

PROJECT = Path(__file__).parents[2] / "tests" / "simulation" / "project"
"""The simulated pipelines of a checkout."""

OUTPUT_TOPIC = "sim.lines"
SOURCE_TOPIC = "sim.orders"

LONG = 43_200
"""How many times longer an answer may take where months pass: 30 days for a minute."""

FOLDERS = 3
"""How many times oftener a pipeline with an input folder is drawn: there is one of them."""

KEY_FIELDS: tuple[tuple[str, ...], ...] = ((), (), ("name",), ("name", "fails"), ("name", "index"))
"""Fields of idempotency keys: none, or such that all items are equal, some are, or none."""

_ENVIRON = {"SIMULATED_KEY": "a secret of thirty-two characters"}


@dataclass(kw_only=True)
class Scenario:
    """One run, before it starts.

    Attributes:
        submissions: The executions, by id.
        lost_items: An item of these executions never succeeds.
        steps: Moves of the part of the run in which things go wrong.
        silence: Part of the requests that are never answered.
        apart: The roles run on machines of their own, so that ingress alone may be down.
        jumps: The broker's clock may be set, in both directions, and every machine's with it.
        clocks_set: The clocks of machines may be set.
        senders_times: Response topics carry the times of their senders, which may be anything.
        early: The outside party likes to answer before its request was sent.
        ages: Months pass: what ended is forgotten, what is open stays.
        stalls: Jobs may overstay their limit.
        orders: Where orders come by a topic, what each is and whether an item of it never succeeds, by name.
        blackouts: Everything may be down for so long that offsets expire; topics may be made again meanwhile.
        fragile: Items may fail for good.
        contents: By checksum, name and bytes of each state that an input file ever had.
        bounds: `schemas.limits` as they are in this run: small, so that a dozen items meet them.
    """

    seed: int
    shape: str
    pipeline: Pipeline
    author: Any
    submissions: dict[str, SubmitCommand]
    lost_items: set[str]
    machines: int
    static: bool
    apart: bool
    steps: int
    silence: float
    mischief: float
    jumps: bool
    clocks_set: bool
    senders_times: bool
    stalls: bool
    cancels: bool
    early: bool
    ages: bool
    blackouts: bool
    fragile: bool
    orders: dict[str, tuple[bytes, bool]] = field(default_factory=dict)
    contents: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether a live window is on."""
        return any(step.live for step in self.pipeline.await_steps)

    def items_of(self, execution_id: str) -> list[dict[str, Any]]:
        """What the source of an execution yields, in terms of requests."""
        command = self.submissions[execution_id]
        if command.source_sha256 is not None:
            _, content = self.contents[command.source_sha256]
            return [_row(line) for line in content.decode().splitlines()]
        order = msgspec.json.decode(command.input)
        return [{"name": order["name"], "index": index, "fails": fails} for index, fails in enumerate(order["items"])]

    def note_submitted(self, fact: facts.RunSubmitted) -> None:
        """An execution that an input has started."""
        if fact.execution_id in self.submissions:
            return
        self.submissions[fact.execution_id] = SubmitCommand(
            execution_id=fact.execution_id,
            tenant_id=fact.tenant_id,
            pipeline=fact.pipeline,
            submission_key=fact.submission_key,
            input=fact.input,
            source_name=fact.source_name,
            source_size=fact.source_size,
            source_sha256=fact.source_sha256,
            origin=fact.origin,
            source_path=fact.source_path,
            source_stamp=fact.source_stamp,
        )
        if any(item["fails"] in (self.author.ALWAYS, None) for item in self.items_of(fact.execution_id)):
            self.lost_items.add(fact.execution_id)

    def describe(self) -> str:
        """The scenario in one line, for a trace."""
        pipeline = self.pipeline
        step = pipeline.await_steps[-1]
        counts = [len(self.items_of(execution_id)) for execution_id in self.submissions]
        output = type(pipeline.output).__name__ if pipeline.output else "none"
        return (
            f"{self.shape}: items {counts}, window {step.window}, live {step.live}, {step.strategy}, on timeout {step.on_timeout}, "
            f"key fields {step.idempotency_key_fields}, output {output}, partitions {pipeline.partitions}, machines {self.machines} (static {self.static}, apart {self.apart}), steps {self.steps}, "
            f"silence {self.silence}, jumps {self.jumps}, clocks set {self.clocks_set}, senders' times {self.senders_times}, stalls {self.stalls}, cancels {self.cancels}, early {self.early}, ages {self.ages}, timeout {step.timeout_ms}, bounds {dict(self.bounds)}"
        )


def _row(line: str) -> dict[str, Any]:
    """A line of a file as the request that it becomes; a cut one becomes none."""
    name, index, fails, *_ = (*line.split(","), "", "")
    if not index.isdigit() or not fails.isdigit():
        return {"name": None, "index": None, "fails": None}
    return {"name": name, "index": int(index), "fails": int(fails)}


@lru_cache(maxsize=8)
def shapes(project: Path) -> tuple[Pipeline, ...]:
    """Every pipeline of the folder, in order of their names.

    Raises:
        UsageError: There is none.
    """
    pipelines = tuple(load_pipeline(path, environ=_ENVIRON) for path in sorted(project.glob("*.yaml")))
    if not pipelines:
        raise UsageError(
            f"{project} holds no pipeline to simulate; name the folder with --project (in a checkout: tests/simulation/project)"
        )
    return pipelines


def author_of(pipeline: Pipeline) -> Any:
    """The module of the functions that a pipeline names."""
    module = next((step.input.arms[0].__module__ for step in pipeline.steps), "")
    return sys.modules[module]


def draw(seed: int, project: Path, output_dir: Path) -> Scenario:
    """The scenario of a seed."""
    rng = Random(seed)  # noqa: S311 - a simulation is no secret
    known = shapes(project)
    base = rng.choice((*known, *(shape for shape in known * FOLDERS if shape.source is not None)))
    author = author_of(base)
    early = rng.random() < 0.2
    # Several executions want the one place for a live session, and their items are tried again meanwhile.
    crowded = rng.random() < 0.25
    ages = rng.random() < 0.15
    jumps, stalls, cancels = rng.random() < 0.15, rng.random() < 0.15, rng.random() < 0.15
    # Who overstays loses an attempt by chance: what is left out then differs from run to run.
    on_error = None if stalls else rng.choice((None, Skip(), DeadLetterAndSkip(), DeadLetterAndSkip()))
    pipeline = _varied(base, rng, output_dir, author, early=early, ages=ages, crowded=crowded, on_error=on_error)
    fragile = on_error is not None or rng.random() < 0.1
    submissions, lost = _submissions(pipeline, author, rng, fragile=fragile, crowded=crowded)
    orders: dict[str, tuple[bytes, bool]] = {}
    if isinstance(pipeline.source, TopicSource):
        names = {execution_id: command.submission_key for execution_id, command in submissions.items()}
        orders = {name: (submissions[identity].input, identity in lost) for identity, name in names.items()}
        submissions, lost = {}, set()
    machines = rng.choice((1, 1, 2, 2, 3))
    return Scenario(
        seed=seed,
        shape=base.name,
        pipeline=pipeline,
        author=author,
        submissions=submissions,
        lost_items=lost,
        machines=machines,
        static=rng.random() < 0.6,
        apart=machines > 1 and rng.random() < 0.4,
        steps=rng.randint(40, 130),
        silence=rng.choice((0.0, 0.0, 0.0, 0.1, 0.4)),
        mischief=rng.choice((0.0, 0.1, 0.3)),
        jumps=jumps,
        clocks_set=rng.random() < 0.25,
        senders_times=rng.random() < 0.3,
        stalls=stalls,
        cancels=cancels,
        early=early,
        ages=ages,
        blackouts=rng.random() < 0.2,
        fragile=fragile,
        orders=orders,
        bounds={**_bounds(rng), **({"LIVE_SESSIONS_MAX": 1} if crowded else {})},
    )


def _varied(
    base: Pipeline,
    rng: Random,
    output_dir: Path,
    author: Any,
    *,
    early: bool,
    ages: bool,
    crowded: bool,
    on_error: Skip | DeadLetterAndSkip | None,
) -> Pipeline:
    live, window, signed = crowded or rng.random() < 0.6, rng.randint(1, 8), rng.random() < 0.5 and not early
    on_timeout = rng.choice(("fail", "skip", "value"))
    patience = rng.choice((1, 1, LONG)) if ages else 1
    key_fields = rng.choice(KEY_FIELDS)
    suffixes = {
        index for step in base.await_steps if step.itemised for index in range(step.index + 1, step.suffix_stop)
    }

    def step_of(step: RunStep | AwaitStep) -> RunStep | AwaitStep:
        if isinstance(step, RunStep):
            return replace(step, on_error=on_error) if step.index in suffixes else step
        choice: Skip | Value | None = None
        if on_timeout == "skip" and step.itemised:
            choice = Skip()
        elif on_timeout == "value":
            given = author.answer({"name": "nobody", "index": 0}, projected=False, variant=7)
            choice = Value(json=step.output.to_json(step.output.validate(given)))
        return replace(
            step,
            live=live,
            window=window,
            strategy="signedResumeToken" if signed else "interactionId",
            on_timeout=choice,
            timeout_ms=step.timeout_ms * patience,
            idempotency_key_fields=tuple(
                name for name in key_fields if name in getattr(step.input.arms[0], "model_fields", ())
            ),
        )

    steps = tuple(step_of(step) for step in base.steps)
    source: Source | None = base.source
    if isinstance(source, ObjectSource):
        place = output_dir.parent
        after: After = rng.choice(("keep", "keep", "move", "delete"))
        ready = rng.choice((None, None, ".done"))
        source = replace(
            source,
            location=place / "in",
            ready_suffix=ready,
            after=after,
            done=place / "done" if after == "move" else None,
            failed=place / "failed" if after == "move" else None,
        )
    elif rng.random() < 0.2:
        source = TopicSource(topic=SOURCE_TOPIC, type=base.input_type, key=rng.choice((None, "{name}")))
    output: ObjectOutput | TopicOutput | None = None
    kind = rng.random()
    flat = len(base.output_type.arms) == 1 and base.output_type.arms[0] is not list
    if kind < 0.25 and flat and not isinstance(source, ObjectSource):
        output = ObjectOutput(
            provider="filesystem", location=output_dir, key="{groupKey}.out", format="csv", group_by=None
        )
    elif kind < 0.6:
        output = TopicOutput(topic=OUTPUT_TOPIC, key=None)
    tokens = base.tokens if signed or rng.random() < 0.5 else None
    return replace(base, source=source, steps=steps, output=output, partitions=rng.choice((2, 3)), tokens=tokens)


def _submissions(
    pipeline: Pipeline, author: Any, rng: Random, *, fragile: bool, crowded: bool
) -> tuple[dict[str, SubmitCommand], set[str]]:
    submissions: dict[str, SubmitCommand] = {}
    if isinstance(pipeline.source, ObjectSource):
        return submissions, set()
    lost: set[str] = set()
    broken = rng.random() < 0.15
    stumbling = 0.8 if crowded else rng.choice((0.2, 0.2, 0.7))
    for number in range(3 if crowded else rng.choice((1, 1, 2, 3))):
        count = rng.choice((4, 6, 9) if crowded else (0, 1, 2, 3, 4, 6, 9, 12))
        items = [rng.choice((0, 1, 2)) if rng.random() < stumbling else 0 for _ in range(count)]
        if fragile:
            items = [author.ALWAYS if rng.random() < 0.2 else fails for fails in items]
        trouble = rng.choice((0, 0, 0, 1, 2))
        if broken and items and rng.random() < 0.5:
            items[rng.randrange(count)] = author.ALWAYS
        elif broken and rng.random() < 0.5:
            trouble = author.ALWAYS
        order = author.order(f"order {number}", items, trouble, rng.randrange(max(count, 1)))
        command = command_for_payload(pipeline, msgspec.json.encode(order), key=f"order {number}")
        submissions[command.execution_id] = command
        if author.ALWAYS in (*items, trouble):
            lost.add(command.execution_id)
    return submissions, lost


def _bounds(rng: Random) -> dict[str, int]:
    """Every bound of reading and of batches: small ones, that a dozen items meet, and the product's own."""
    return {
        "BATCH_RECORDS_MAX": rng.choice((1, 2, 3, 5, 2_000)),
        "SLICE_ITEMS": rng.choice((1, 2, 3, 1_000)),
        "PULL_ITEMS_MAX": rng.choice((1, 2, 1_000)),
        "PUBLISH_CHUNK_ITEMS": rng.choice((2, 1_000)),
        "LIVE_SESSIONS_MAX": rng.choice((1, 1, 64, 64)),
        "TRANSACTION_BYTES_MAX": rng.choice((300, 2_000, 1 << 25, 1 << 25)),
        "INBOX_BYTES_MAX": rng.choice((400, 2_000, 1 << 26, 1 << 26)),
        "JOB_BYTES_MAX": rng.choice((1, 300, 1 << 23, 1 << 23)),
        "READ_ROWS": rng.choice((1, 2, 64)),
        "CHUNK_ITEMS_MAX": rng.choice((1, 3, 2_048)),
        "RESTORE_RECORDS": rng.choice((1, 7, 5_000)),
        "GATHER_RATE_MAX": rng.choice((1, 10_000)),
    }


@contextmanager
def bounded(bounds: Mapping[str, int]) -> Iterator[None]:
    """Put a run's bounds in the place of the product's."""
    before = {name: getattr(limits, name) for name in bounds}
    try:
        for name, value in bounds.items():
            setattr(limits, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(limits, name, value)


Say = Callable[[str], None]
"""Takes the lines of a trace."""


def without_trace(_text: str) -> None:
    """Nobody reads the moves of a run."""
