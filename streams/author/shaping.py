"""Shaping: read an answer by the step's types, and project it where the step has a projector (BEHAVIOUR 5.4).

Validation is compiled and runs inline. A projector is the author's code: it runs on the worker pool, before the batch opens (DESIGN 6).
"""

from __future__ import annotations

from schemas import limits
from state.interaction import InteractionStatus
from topologies.pipeline.payloads import MISFIT_CHARS_MAX, Misfit
from topologies.pipeline.projection import Completion
from topologies.pipeline.shapes import Misshapen, Shape, Shaped, Unshaped
from topologies.pipeline.steps import AwaitStep

_PENDING = InteractionStatus.PENDING


def shape(step: AwaitStep, answer: Unshaped) -> Shape:
    """The answer as the step's output, or why it is not one."""
    payload = answer.payload
    if len(payload) > limits.PAYLOAD_BYTES_MAX:
        return Misshapen(limits.payload_problem("the answer", len(payload)))
    kind = step.answer_type
    try:
        value = kind.read(payload)
        if step.projection is None:
            return Shaped(kind.to_json(value), None)
    except Misfit as misfit:
        return Misshapen(str(misfit))
    if answer.request is None:
        return Shaped(None, payload)
    try:
        request = step.input.validate_json(answer.request)
        metadata = Completion(
            interaction_id=answer.interaction_id, actor=answer.actor, completed_at_ms=answer.recorded_at_ms
        )
        output = step.output.validate(step.projection.project(request, value, metadata))
        return Shaped(step.output.to_json(output), payload)
    except Exception as error:
        return Misshapen(f"projector {step.projection.name}: {type(error).__name__}: {error}"[:MISFIT_CHARS_MAX])
