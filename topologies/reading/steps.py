"""The steps of pipeline.yaml: run steps and await steps as far as they can be read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from schemas import limits
from topologies.pipeline.payloads import Misfit, PayloadType
from topologies.pipeline.steps import (
    AwaitStep,
    Budget,
    Cardinality,
    DeadLetterAndSkip,
    Retry,
    RunStep,
    Skip,
    Step,
    Value,
)
from topologies.pipeline.transports import KafkaTransport, SqsTransport
from topologies.reading.advice import AWAIT_HINTS, CARDINALITY_HINTS, INSIDE_AWAIT_HINTS, RUN_HINTS, TIMEOUT_ADVICE
from topologies.reading.binding import Binding, not_yet
from topologies.reading.document import Node, Problems, kebab_case
from topologies.reading.fields import Fields, plain
from topologies.reading.flow import StepTypes
from topologies.reading.modules import is_coroutine_function
from topologies.reading.transports import read_transport

ATTEMPTS_MAX = 1_000

Strategy = Literal["interactionId", "signedResumeToken"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("interactionId", "signedResumeToken")


@dataclass(slots=True)
class ReadStep:
    """A step as far as it could be read; `step` is None when something it needs is faulty."""

    fields: Fields
    name: str
    kind: Literal["run", "await"]
    cardinality: Cardinality
    types: StepTypes
    step: Step | None = None


def read_steps(fields: Fields, binding: Binding) -> list[ReadStep]:
    """Every step that is a map, in order; what is wrong is noted."""
    node = fields.get("steps")
    if node is None:
        fields.missing("steps", "write steps: and a list of them")
        return []
    if not isinstance(node.value, list):
        fields.note("steps", f"must be a list, not {node.shown()}", "start each step with a dash: - {name: ...}")
        return []
    if not node.value:
        fields.note("steps", "there is no step", "write at least one")
    reads = [
        read
        for place, item in enumerate(node.value)
        if (read := _step(item, place, binding, fields.problems)) is not None
    ]
    _refuse_duplicates(reads)
    _refuse_nested(reads)
    return reads


def _step(node: Node, place: int, binding: Binding, problems: Problems) -> ReadStep | None:
    if not isinstance(node.value, dict):
        if not node.faults:
            problems.add(
                node, f"steps.{place}", f"a step must be a map, not {node.shown()}", "write - {name: ..., ...}"
            )
        return None
    name_node = node.value.get("name")
    step_id = kebab_case(name_node.value) if name_node is not None and isinstance(name_node.value, str) else ""
    fields = Fields(node, f"steps.{step_id or place}", problems)
    name = fields.text("name", required="write a name; its kebab case is the step id") or ""
    if name and not step_id:
        fields.note("name", f"{name!r} makes no step id", "use letters and digits")
    kind = _kind(fields)
    cardinality = _cardinality(fields)
    read = ReadStep(fields, name, kind, cardinality or Cardinality.ONE_TO_ONE, _step_types(fields, name, binding))
    if kind == "await":
        read.step = _await_step(read, place, step_id, binding)
        fields.finish(AWAIT_HINTS)
    else:
        function = binding.function(fields, cardinality)
        read.step = _run_step(read, place, step_id, function)
        fields.finish(RUN_HINTS)
    return read


def _kind(fields: Fields) -> Literal["run", "await"]:
    text = fields.text("kind", default="run") or "run"
    if text.lower() == "await":
        return "await"
    looks_like_await = fields.has("await") and not fields.has("run")
    if text != "run":
        advice = "write kind: await, or leave kind out for a step that runs a function"
        fields.note("kind", f"unknown kind {text!r}", advice)
    elif looks_like_await:
        fields.note_key("await", "a step with await needs its kind", "add kind: await")
    return "await" if looks_like_await else "run"


def _cardinality(fields: Fields) -> Cardinality | None:
    """None: faulty."""
    names = [str(member) for member in Cardinality]
    name = fields.choice("cardinality", names, hints=CARDINALITY_HINTS)
    if name is None and fields.get("cardinality") is not None:
        return None
    return Cardinality(name or "ONE_TO_ONE")


def _step_types(fields: Fields, name: str, binding: Binding) -> StepTypes:
    accepts = binding.accepts(fields)
    is_branch = fields.has("accepts")
    if is_branch and not fields.has("input"):
        input_type = accepts
        fields.get("input")
    else:
        input_type = binding.payload(fields, "input", required="write input: module:Type")
    output_type = binding.payload(fields, "output", required="write output: module:Type")
    return StepTypes(
        node=fields.node,
        where=fields.where,
        name=name,
        input=input_type,
        output=output_type,
        accepts=accepts,
        is_branch=is_branch,
    )


def _refuse_duplicates(reads: Sequence[ReadStep]) -> None:
    seen: dict[str, ReadStep] = {}
    for read in reads:
        step_id = kebab_case(read.name)
        if step_id in seen:
            first = seen[step_id].fields.node.line
            read.fields.note(
                "name", f"two steps have the id {step_id!r}, the first on line {first}", "give one another name"
            )
        elif step_id:
            seen[step_id] = read


def _refuse_nested(reads: Sequence[ReadStep]) -> None:
    streaming = itemised = False
    for read in reads:
        if read.kind == "await":
            if itemised:
                not_yet("nested await", read.fields, "name")
            if not streaming and isinstance(read.step, AwaitStep) and isinstance(read.step.on_timeout, Skip):
                advice = "write value, or leave onTimeout out: the execution then fails and can be looked after"
                read.fields.note(
                    "onTimeout", "skip leaves out an item of a stream, and no stream reaches this step", advice
                )
            itemised = itemised or (streaming and read.cardinality is Cardinality.ONE_TO_ONE)
        elif read.fields.has("onError") and (not itemised or read.cardinality.takes_many):
            read.fields.note(
                "onError",
                "onError leaves out one item behind an await that each item of a stream waits at, and this step runs for no such item",
                "remove it: the execution then fails and can be looked after",
            )
        streaming = read.cardinality.gives_many or (streaming and not read.cardinality.takes_many)
        itemised = itemised and not read.cardinality.takes_many


def _run_step(read: ReadStep, index: int, step_id: str, function: Callable[..., Any] | None) -> RunStep | None:
    fields, types = read.fields, read.types
    retry = _retry(fields)
    call_timeout_ms = fields.duration("callTimeout") or limits.CALL_TIMEOUT_DEFAULT_MS
    on_error = _on_error(fields)
    if types.is_branch and read.cardinality.takes_many:
        not_yet("aggregate branch", fields, "accepts")
    if types.input is None or types.output is None or function is None:
        return None
    return RunStep(
        index=index,
        step_id=step_id,
        name=read.name,
        cardinality=read.cardinality,
        input=types.input,
        output=types.output,
        accepts=types.accepts,
        function=function,
        is_async=is_coroutine_function(function),
        retry=retry,
        call_timeout_ms=call_timeout_ms,
        line=fields.node.line,
        on_error=on_error,
    )


def _on_error(fields: Fields) -> Skip | DeadLetterAndSkip | None:
    choice = fields.below("onError")
    if choice is None:
        return None
    skip, dead_letter = choice.flag("skip", default=False), choice.flag("deadLetter", default=False)
    choice.finish({"retry": "write retry on the step, beside onError", "value": "return it from the function"})
    if skip == dead_letter:
        fields.note(
            "onError",
            "onError needs skip: true or deadLetter: true",
            "write {skip: true}, or {deadLetter: true} to leave the item out with a dead letter; one of the two",
        )
        return None
    return Skip() if skip else DeadLetterAndSkip()


def _retry(fields: Fields) -> Retry:
    retry = fields.below("retry") or Fields(Node({}, "", 0), "", Problems())
    read = Retry(
        attempts=retry.integer("attempts", default=limits.RETRY_ATTEMPTS_DEFAULT, minimum=1, maximum=ATTEMPTS_MAX),
        base_ms=retry.duration("base") or limits.RETRY_BASE_DEFAULT_MS,
        multiplier=retry.number("multiplier", default=limits.RETRY_MULTIPLIER_DEFAULT, minimum=1),
        cap_ms=retry.duration("cap") or limits.RETRY_CAP_DEFAULT_MS,
        non_retryable=tuple(text for text, _ in retry.texts("nonRetryable")),
    )
    retry.finish({"maxAttempts": "write attempts", "delay": "write base"})
    return read


def _await_step(read: ReadStep, index: int, step_id: str, binding: Binding) -> AwaitStep | None:
    fields, types = read.fields, read.types
    if read.cardinality is not Cardinality.ONE_TO_ONE:
        not_yet("aggregate await", fields, "cardinality")
    if types.is_branch:
        not_yet("await branch", fields, "accepts")
    timeout_ms = fields.duration("timeout", required=TIMEOUT_ADVICE)
    key_fields = binding.idempotency_key_fields(fields, types.input)
    on_timeout = _on_timeout(fields, types.output)
    remind_after_ms = _remind_after(fields, timeout_ms)
    owner, assignee, group = fields.text("owner"), fields.text("assignee"), fields.text("group")
    budget = _budget(fields)
    inside = fields.below("await", required="write await: {transport: {...}}")
    if inside is None:
        return None
    projection = binding.projection(inside)
    answer_type = projection.type if projection else types.output
    strategy, request_field, response_field = _correlation(inside, types.input, answer_type)
    transport = read_transport(inside, binding)
    live, window, idle_ms = _live(inside)
    inside.finish(INSIDE_AWAIT_HINTS)
    projection_faulty = projection is None and inside.has("completion")
    if (
        types.input is None
        or types.output is None
        or answer_type is None
        or timeout_ms is None
        or transport is None
        or projection_faulty
    ):
        return None
    return AwaitStep(
        index=index,
        step_id=step_id,
        name=read.name,
        cardinality=read.cardinality,
        input=types.input,
        output=types.output,
        timeout_ms=timeout_ms,
        idempotency_key_fields=key_fields,
        owner=owner,
        strategy=strategy,
        request_field=request_field,
        response_field=response_field,
        transport=transport,
        live=live and isinstance(transport, (KafkaTransport, SqsTransport)),
        window=window,
        idle_ms=idle_ms,
        projection=projection,
        answer_type=answer_type,
        on_timeout=on_timeout,
        remind_after_ms=remind_after_ms,
        assignee=assignee,
        group=group,
        budget=budget,
        line=fields.node.line,
    )


def _on_timeout(fields: Fields, output: PayloadType | None) -> Skip | Value | None:
    choice = fields.below("onTimeout")
    if choice is None:
        return None
    skip, has_value = choice.flag("skip", default=False), choice.has("value")
    node = choice.get("value")
    choice.finish()
    if skip == has_value:
        fields.note(
            "onTimeout",
            "onTimeout needs skip: true or a value",
            "write {skip: true} or {value: ...}, one of the two",
        )
        return None
    if skip:
        return Skip()
    if node is None or output is None:
        return None
    given = plain(node)
    if output.has_digits and (long := _long_float(given)) is not None:
        choice.note("value", f"{long!r} has more digits than YAML keeps of a number", "put it into quotes")
        return None
    try:
        return Value(json=output.to_json(output.validate(given)))
    except ValueError as error:
        choice.note("value", f"the value is {Misfit.of(output.name, error)}", "write a value of the step's output type")
        return None


def _long_float(given: Any) -> float | None:
    """A number with a point, or of more digits than 18, whose digits YAML may have cut."""
    if isinstance(given, float):
        return given if sum(map(str.isdigit, repr(given).partition("e")[0])) > sys.float_info.dig else None
    parts = given.values() if isinstance(given, dict) else given if isinstance(given, list) else ()
    return next((found for part in parts if (found := _long_float(part)) is not None), None)


def _remind_after(fields: Fields, timeout_ms: int | None) -> int | None:
    remind_after_ms = fields.duration("remindAfter")
    if remind_after_ms is not None:
        not_yet("remindAfter", fields, "remindAfter")
        if timeout_ms is not None and remind_after_ms >= timeout_ms:
            fields.note("remindAfter", "the reminder comes no earlier than the timeout", "write less than timeout")
    return remind_after_ms


def _budget(fields: Fields) -> Budget | None:
    below = fields.below("budget")
    if below is None:
        return None
    not_yet("budget", fields, "budget")
    unresolved = below.integer("unresolved", default=0, minimum=1, maximum=10_000_000) or None
    per_second = below.number("perSecond", default=0, minimum=0.001) or None
    if unresolved is None and per_second is None and not below.node.value:
        fields.note("budget", "budget says nothing", "write unresolved, perSecond or both")
    below.finish()
    return Budget(unresolved=unresolved, per_second=per_second)


def _correlation(
    inside: Fields, request: PayloadType | None, answer: PayloadType | None
) -> tuple[Strategy, str | None, str | None]:
    below = inside.below("correlation")
    if below is None:
        return "interactionId", None, None
    strategy: Strategy = below.choice("strategy", STRATEGIES) or "interactionId"
    request_field, response_field = below.text("requestField"), below.text("responseField")
    if (request_field is None) != (response_field is None):
        inside.note("correlation", "requestField and responseField go together", "write both or none")
    for key, field, payload in (
        ("requestField", request_field, request),
        ("responseField", response_field, answer),
    ):
        if field is not None:
            not_yet("business correlation", below, key)
            if payload is not None and not payload.has_field(field):
                below.note(
                    key, f"{payload.name} has no field {field!r}", f"use one of: {', '.join(payload.field_names())}"
                )
    below.finish()
    return strategy, request_field, response_field


def _live(inside: Fields) -> tuple[bool, int, int]:
    window, idle_ms = limits.WINDOW_DEFAULT, limits.LIVE_IDLE_DEFAULT_MS
    node = inside.get("live")
    if node is None:
        return True, window, idle_ms
    if not isinstance(node.value, dict):
        return inside.flag("live", default=True), window, idle_ms
    below = Fields(node, inside.path("live"), inside.problems)
    window = below.integer("window", default=window, minimum=1, maximum=limits.WINDOW_MAX)
    idle_ms = below.duration("idle") or idle_ms
    below.finish()
    return True, window, idle_ms
