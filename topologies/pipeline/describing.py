"""A pipeline in words and as a Mermaid diagram: what `kawait describe` prints. Secrets and credentials are never part of it."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.topics import TOPICS, catalogue
from topologies.pipeline.ends import (
    CheckpointOutput,
    CheckpointSource,
    ObjectOutput,
    ObjectSource,
    TopicOutput,
    TopicSource,
)
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import Alternative, shown
from topologies.pipeline.steps import AwaitStep, DeadLetterAndSkip, RunStep, Skip, Step
from topologies.pipeline.transports import KafkaTransport, SqsTransport, WebhookTransport

_UNITS = (("D", 86_400_000), ("H", 3_600_000), ("M", 60_000))


def duration_text(ms: int) -> str:
    """An ISO-8601 duration: 300,000 -> `PT5M`."""
    days, rest = divmod(ms, _UNITS[0][1])
    text = f"P{days}D" if days else "P"
    if not rest and days:
        return text
    text += "T"
    for letter, size in _UNITS[1:]:
        amount, rest = divmod(rest, size)
        text += f"{amount}{letter}" if amount else ""
    return f"{text}{rest / 1000:g}S" if rest or text == "PT" else text


def describe(pipeline: Pipeline) -> str:
    """Steps with their types and boundaries, then topics, tables and settings; ends without a newline."""
    sections = (
        [
            f"pipeline {pipeline.name}, app {pipeline.app}, {pipeline.partitions} partitions",
            f"  file    {pipeline.path}",
        ],
        [f"  input   {source_text(pipeline)}", f"  output  {output_text(pipeline)}"],
        ["", "steps", *_steps(pipeline)],
        ["", "topics", *_topics(pipeline)],
        ["", "tables (key)", *_tables()],
        ["", "settings", *_settings(pipeline)],
    )
    return "\n".join(line for section in sections for line in section)


def source_text(pipeline: Pipeline) -> str:
    """Where executions come from, in one line."""
    match pipeline.source:
        case ObjectSource() as source:
            names = ", ".join(source.include)
            return (
                f"one execution an object: {source.provider} {source.location} ({names}), every {duration_text(source.poll_ms)}; "
                f"{_whole_text(source)}; {_after_text(source)}"
            )
        case TopicSource() as source:
            return f"one execution a record of topic {source.topic}: {source.type.name}, key {source.key or 'topic-partition-offset'}"
        case CheckpointSource() as source:
            return f"one execution a publication {source.publication}"
        case None:
            return f"submissions only: {pipeline.input_type.name}"


def _whole_text(source: ObjectSource) -> str:
    if source.ready_suffix is not None:
        return f"whole once NAME{source.ready_suffix} is there"
    return f"whole when unchanged for {duration_text(source.settle_ms)}"


def _after_text(source: ObjectSource) -> str:
    failed = f"to {source.failed} when failed" if source.failed is not None else "kept when failed"
    match source.after:
        case "keep":
            return "kept afterwards"
        case "move":
            return f"moved to {source.done} afterwards, {failed}"
        case "delete":
            return f"deleted afterwards, {failed}"


def output_text(pipeline: Pipeline) -> str:
    """Where outputs go, in one line."""
    match pipeline.output:
        case ObjectOutput() as output:
            group = f"output field {output.group_by}" if output.group_by else "input object"
            return (
                f"one {output.format} object for each {group}: {output.provider} {output.location}, named {output.key}"
            )
        case TopicOutput() as output:
            return f"records of topic {output.topic}: {pipeline.output_type.name}, key {output.key or 'execution id'}"
        case CheckpointOutput() as output:
            return f"publication {output.publication}: {pipeline.output_type.name}"
        case None:
            return f"kept as the result: {pipeline.output_type.name}"


def notes(pipeline: Pipeline) -> Iterator[str]:
    """What is no mistake and yet worth a look before it runs in earnest."""
    for step in pipeline.await_steps:
        if not step.idempotency_key_fields:
            yield (
                f"step {step.step_id} has no idempotencyKeyFields: its keys name the execution, so whoever submits the same again, as a "
                "corrected file or under another --key, asks under new keys"
            )


def _steps(pipeline: Pipeline) -> Iterator[str]:
    width = max(len(step.step_id) for step in pipeline.steps)
    segment = 0
    for step in pipeline.steps:
        starts = step.index == 0 or isinstance(pipeline.steps[step.index - 1], AwaitStep)
        if starts and isinstance(step, RunStep):
            segment += 1
            yield f"  segment {segment}"
        if isinstance(step, AwaitStep):
            yield f"  boundary: {boundary_text(pipeline, step)}"
        taken = f"accepts {step.accepts.name}" if isinstance(step, RunStep) and step.accepts else step.input.name
        yield f"    {step.index}  {step.step_id:<{width}}  {step.cardinality:<12}  {taken} -> {step.output.name}"
        yield from (f"       {' ' * width}  {line}" for line in _detail(step))


def boundary_text(pipeline: Pipeline, step: AwaitStep) -> str:
    """How the await divides the pipeline."""
    if not step.itemised:
        return "one unit an execution, one interaction"
    stop = step.suffix_stop
    until = "the end" if stop == len(pipeline.steps) else f"step {stop} {pipeline.steps[stop].step_id}"
    return f"one unit an execution, one interaction an item; each item goes on by itself until {until}"


def _detail(step: Step) -> Iterator[str]:
    return _run(step) if isinstance(step, RunStep) else _await(step, itemised=step.itemised)


def _run(step: RunStep) -> Iterator[str]:
    retry = step.retry
    growth = f"wait {duration_text(retry.base_ms)} x{retry.multiplier:g}, at most {duration_text(retry.cap_ms)}"
    never = f", never on {', '.join(retry.non_retryable)}" if retry.non_retryable else ""
    kind = "async function" if step.is_async else "function"
    yield f"{kind}, {duration_text(step.call_timeout_ms)} a call, {retry.attempts} attempts ({growth}{never})"
    if step.on_error is not None:
        letter = ", with a dead letter of its own" if isinstance(step.on_error, DeadLetterAndSkip) else ""
        yield f"an item that fails here for good is left out{letter}"


def _await(step: AwaitStep, *, itemised: bool) -> Iterator[str]:
    match step.transport:
        case KafkaTransport() as kafka:
            yield f"kafka: asks on {kafka.request_topic} ({kafka.request_format}, key {kafka.request_key}), is answered on {kafka.response_topic}"
        case SqsTransport() as sqs:
            yield f"sqs: asks on {sqs.request_queue_url}, is answered on {sqs.response_queue_url}"
        case WebhookTransport() as webhook:
            yield f"webhook: {webhook.method} {webhook.url}"
        case _:
            yield f"{step.transport.kind}: waits in the inbox"
    yield f"timeout {duration_text(step.timeout_ms)}, then {_expiry(step)}; answers need {'the resume token' if step.needs_token else 'the interaction id'}"
    live = f"live window {step.window} items, idle {duration_text(step.idle_ms)}; " if step.live else "no live window; "
    yield f"{live if itemised else ''}late and refused answers: {step.owner or 'no owner'}"
    if step.idempotency_key_fields:
        counted = "; later items with equal ones are counted" if itemised else ""
        yield f"idempotency key: {', '.join(step.idempotency_key_fields)}{counted}"
    else:
        yield "idempotency key: the execution, the step and the item"
    if step.projection:
        yield f"answer {step.projection.type.name}, projected by {step.projection.name}"


def _expiry(step: AwaitStep) -> str:
    match step.on_timeout:
        case None:
            return "the execution fails"
        case Skip():
            return "the item is left out"
        case value:
            return f"the answer is {value.json.decode()}"


def _topics(pipeline: Pipeline) -> Iterator[str]:
    external = pipeline.external_topics
    topics = catalogue(
        pipeline.app,
        partitions=pipeline.partitions,
        replication_factor=pipeline.replication_factor,
        facts_retention_ms=pipeline.retention.facts_ms,
        external=external,
    )
    width = max(len(topic.name) for topic in topics)
    values = {f"{pipeline.app}.{topic.suffix}": f"{topic.value} (key: {topic.key})" for topic in TOPICS}
    for topic in topics:
        yield f"  {topic.name:<{width}}  {values.get(topic.name) or 'external: ' + _use(pipeline, topic.name)}"


def _use(pipeline: Pipeline, name: str) -> str:
    uses = []
    if isinstance(pipeline.source, TopicSource) and pipeline.source.topic == name:
        uses.append("input")
    for step in pipeline.await_steps:
        if isinstance(step.transport, KafkaTransport):
            uses += [f"requests of {step.step_id}"] * (step.transport.request_topic == name)
            uses += [f"answers to {step.step_id}"] * (step.transport.response_topic == name)
    if isinstance(pipeline.output, TopicOutput) and pipeline.output.topic == name:
        uses.append("output")
    return ", ".join(uses)


def _tables() -> Iterator[str]:
    suffix = "-changelog"
    for topic in TOPICS:
        if topic.suffix.endswith(suffix):
            yield f"  {topic.suffix.removesuffix(suffix):<12}  {topic.key}"


def _settings(pipeline: Pipeline) -> Iterator[str]:
    retention = pipeline.retention
    yield f"  retention: facts {duration_text(retention.facts_ms)}, executions {duration_text(retention.executions_ms)}, keys {duration_text(retention.keys_ms)}"
    replication = "the broker's default" if pipeline.replication_factor < 1 else str(pipeline.replication_factor)
    yield f"  replication factor: {replication}"
    if pipeline.tokens:
        yield f"  resume tokens: signed with {pipeline.tokens.active}, verified with {', '.join(sorted(pipeline.tokens.keys))}"


def mermaid(pipeline: Pipeline) -> str:
    """A Mermaid flowchart: a subgraph for each segment, the outside party beside each boundary; ends without a newline."""
    lines = ["flowchart TD", f'    source(["{_label(source_text(pipeline))}"])']
    segment = 0
    inside = False
    for step in pipeline.steps:
        if isinstance(step, AwaitStep):
            lines += ["    end"] * inside + _boundary_node(step)
            inside = False
        else:
            if not inside:
                segment += 1
                lines.append(f'    subgraph segment{segment}["segment {segment}"]')
                inside = True
            lines.append(f'        s{step.index}["{_label(step.name)}<br/>{step.cardinality}"]')
    lines += ["    end"] * inside
    lines.append(f'    output(["{_label(output_text(pipeline))}"])')
    lines += [f'    {start} -->|"{_label(names)}"| {end}' for start, end, names in _edges(pipeline)]
    return "\n".join(lines)


def _edges(pipeline: Pipeline) -> Iterator[tuple[str, str, str]]:
    """Every way of an item: from, to, and the types that take it. A branch is reached from where its arms are made."""
    made: dict[Alternative, list[str]] = {arm: ["source"] for arm in pipeline.input_type.alternatives}
    for step in pipeline.steps:
        accepts = step.accepts if isinstance(step, RunStep) else None
        taken = [arm for arm in made if accepts is None or accepts.covers(arm)]
        yield from _edges_into(f"s{step.index}", {arm: made.pop(arm) for arm in taken})
        for arm in step.output.alternatives:
            made.setdefault(arm, []).append(f"s{step.index}")
    yield from _edges_into("output", made)


def _edges_into(end: str, made: dict[Alternative, list[str]]) -> Iterator[tuple[str, str, str]]:
    for start in dict.fromkeys(start for starts in made.values() for start in starts):
        yield start, end, ", ".join(shown(arm) for arm, starts in made.items() if start in starts)


def _boundary_node(step: AwaitStep) -> list[str]:
    node, outside = f"s{step.index}", f"outside{step.index}"
    each = "an interaction an item" if step.itemised else "one interaction"
    asked, answered = step.transport.kind, step.transport.kind
    if isinstance(step.transport, KafkaTransport):
        asked, answered = step.transport.request_topic, step.transport.response_topic
    return [
        f'    {node}{{{{"{_label(step.name)}<br/>{each}, {duration_text(step.timeout_ms)}"}}}}',
        f'    {outside}[/"outside party"/]',
        f'    {node} -.->|"{_label(asked)}"| {outside}',
        f'    {outside} -.->|"{_label(answered)}"| {node}',
    ]


def _label(text: str) -> str:
    """Text inside a quoted Mermaid label."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
