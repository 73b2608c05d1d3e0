"""`input` and `output` of pipeline.yaml: where executions come from and where outputs go."""

from __future__ import annotations

from pathlib import Path

from topologies.pipeline.cells import no_rows
from topologies.pipeline.ends import (
    OBJECT_FORMATS,
    OBJECT_KEY_FIELDS,
    SETTLE_DEFAULT_MS,
    After,
    CheckpointOutput,
    CheckpointSource,
    ObjectOutput,
    ObjectSource,
    Output,
    Source,
    TopicOutput,
    TopicSource,
    template_fields,
)
from topologies.pipeline.payloads import PayloadType
from topologies.reading.advice import ENDS_ADVICE
from topologies.reading.binding import Binding, not_yet
from topologies.reading.fields import Fields

ENDS = ("object", "topic", "checkpoint")
POLL_DEFAULT_MS = 10_000
AFTER: tuple[After, ...] = ("keep", "move", "delete")


def read_source(fields: Fields, input_type: PayloadType | None, binding: Binding) -> Source | None:
    """Where executions come from; None: submissions only, or faulty."""
    below = fields.below("input")
    if below is None:
        return None
    kind = below.choice("from", ENDS, required=ENDS_ADVICE)
    source: Source | None = None
    if kind == "object":
        source = _object_source(below, binding)
    elif kind == "topic":
        source = _topic_source(below, input_type, binding)
    elif kind == "checkpoint":
        not_yet("checkpoint", below, "from")
        publication = below.text("publication", required="name the publication of the other pipeline")
        source = CheckpointSource(publication=publication) if publication else None
    else:
        return None
    below.finish()
    return source


def _object_source(below: Fields, binding: Binding) -> ObjectSource | None:
    provider, location = _provider(below), binding.location(below)
    include = tuple(text for text, _ in below.texts("include")) or ("*",)
    poll_ms = below.duration("poll") or POLL_DEFAULT_MS
    settle_ms = below.duration("settle") or SETTLE_DEFAULT_MS
    ready_suffix = _ready_suffix(below)
    after: After = below.choice("after", AFTER) or "keep"
    done, failed = _place(below, "done", after, binding), _place(below, "failed", after, binding)
    for key, place in (("done", done), ("failed", failed)):
        if place is not None and place == location:
            below.note(key, "objects would be moved to where they are, and listed again", "name another folder")
    if done is not None and done == failed:
        below.note("failed", "objects that failed would lie among those that did not", "name another folder than done")
    if provider is None or location is None:
        return None
    return ObjectSource(
        provider=provider,
        location=location,
        include=include,
        poll_ms=poll_ms,
        settle_ms=settle_ms,
        ready_suffix=ready_suffix,
        after=after,
        done=done,
        failed=failed,
    )


def _ready_suffix(below: Fields) -> str | None:
    advice = "write ready: {suffix: .done}"
    ready = below.below("ready")
    if ready is None:
        return None
    suffix = ready.text("suffix", required=advice)
    if suffix is not None and ("/" in suffix or suffix == ".moving"):
        ready.note("suffix", f"{suffix!r} is no end of a file name that a sender may use", advice)
    ready.finish()
    return suffix


def _place(below: Fields, key: str, after: After, binding: Binding) -> Path | None:
    """Where objects are moved; only where `after` moves some."""
    if after == "move" and not below.has(key):
        below.missing(key, f"write {key}: a folder; a relative one starts at the pipeline's folder")
        return None
    if not below.has(key):
        return None
    if after == "keep" or (after == "delete" and key == "done"):
        below.get(key)
        below.note_key(key, f"nothing is moved there with after: {after}", f"write after: move, or remove {key}")
        return None
    return binding.location(below, key)


def _provider(below: Fields) -> str | None:
    return below.choice("provider", ("filesystem",), required="write provider: filesystem")


def _topic_source(below: Fields, input_type: PayloadType | None, binding: Binding) -> TopicSource | None:
    topic = binding.topic(below, "topic")
    payload = binding.payload(below, "type", required="write type: module:Type, what a record holds")
    key = binding.template(below, "key", payload)
    if (
        payload is not None
        and input_type is not None
        and not all(input_type.covers(arm) for arm in payload.alternatives)
    ):
        below.note(
            "type",
            f"{payload.name} does not fit the first step's input {input_type.name}",
            f"write {input_type.name}",
        )
    if topic is None or payload is None:
        return None
    return TopicSource(topic=topic, type=payload, key=key)


def read_output(
    fields: Fields, output_type: PayloadType | None, source: Source | None, binding: Binding
) -> Output | None:
    """Where outputs go; None: they are kept as the result, or faulty."""
    below = fields.below("output")
    if below is None:
        return None
    kind = below.choice("to", ENDS, required=ENDS_ADVICE)
    output: Output | None = None
    if kind == "object":
        output = _object_output(below, output_type, source, binding)
    elif kind == "topic":
        output = _topic_output(below, output_type, binding)
    elif kind == "checkpoint":
        output = _checkpoint_output(below, output_type, binding)
    else:
        return None
    if isinstance(output, TopicOutput) and isinstance(source, TopicSource) and output.topic == source.topic:
        below.note("topic", "the pipeline would read its own output", "name another topic")
    below.finish()
    return output


def _object_output(
    below: Fields, output_type: PayloadType | None, source: Source | None, binding: Binding
) -> ObjectOutput | None:
    provider, location = _provider(below), binding.location(below)
    row_format = below.choice("format", OBJECT_FORMATS) or "csv"
    group_by = below.text("groupBy")
    key = _object_key(below, source, grouped=below.has("groupBy"))
    if group_by is not None and output_type is not None and not output_type.has_field(group_by):
        known = ", ".join(output_type.field_names())
        below.note("groupBy", f"{output_type.name} has no field {group_by!r}", f"use one of: {known}")
    if row_format == "csv" and output_type is not None and (nested := no_rows(output_type)):
        where = "format" if below.has("format") else "to"
        below.note(where, f"a csv row has no cell for {', '.join(nested)} of {output_type.name}", "write format: jsonl")
    if provider is None or location is None or key is None:
        return None
    return ObjectOutput(provider=provider, location=location, key=key, format=row_format, group_by=group_by)


def _object_key(below: Fields, source: Source | None, *, grouped: bool) -> str | None:
    key = below.text("key", required='write key: "{groupKey}.out"')
    if key is None:
        return None
    problem = _key_problem(key, source, grouped=grouped)
    if problem is None:
        return key
    below.note("key", *problem)
    return None


def _key_problem(key: str, source: Source | None, *, grouped: bool) -> tuple[str, str] | None:
    """What is wrong with the name of an output object, and what to write."""
    try:
        names = template_fields(key)
    except ValueError as error:
        return str(error), 'write for example "{groupKey}.out"'
    unknown = [name for name in names if name not in OBJECT_KEY_FIELDS]
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in OBJECT_KEY_FIELDS)
        return f"{key!r} has a placeholder {{{unknown[0]}}} that no output object has", f"use: {known}"
    if grouped and "groupKey" not in names:
        return f"{key!r} must hold {{groupKey}}, or all groups are one object", 'write for example "{groupKey}.out"'
    if not grouped and not set(names) - {"date"}:
        return f"{key!r} names one object for all executions", 'write for example "{groupKey}.out"'
    by_input = {"inputName", "inputStem"} if grouped else {"inputName", "inputStem", "groupKey"}
    if source is not None and not isinstance(source, ObjectSource) and by_input & set(names):
        return "no input object names the groups", 'add groupBy: with a field of the output, or use "{executionId}"'
    if key.startswith("/") or ".." in key.split("/"):
        return f"{key!r} leaves the location", "write a path below it"
    return None


def _topic_output(below: Fields, output_type: PayloadType | None, binding: Binding) -> TopicOutput | None:
    topic = binding.topic(below, "topic")
    key = binding.template(below, "key", output_type)
    return None if topic is None else TopicOutput(topic=topic, key=key)


def _checkpoint_output(below: Fields, output_type: PayloadType | None, binding: Binding) -> CheckpointOutput | None:
    not_yet("checkpoint", below, "to")
    publication = below.text("publication", required="name the publication")
    key_fields = binding.idempotency_key_fields(below, output_type)
    return None if publication is None else CheckpointOutput(publication=publication, idempotency_key_fields=key_fields)
