"""Looking ahead: what can be known before the first request of an execution is asked about before it (DESIGN 8 policy 11, DECISIONS 15).

What is known at the end only - the rows, the groups they make - is told at the end. A look is no promise: the output is looked at once more
when it is published.
"""

from __future__ import annotations

from state.execution import ExecutionRecord
from state.unit import UnitRecord
from topologies.decisions.decision import Decisions, NoOp
from topologies.decisions.ending import fail
from topologies.pipeline.ends import ObjectOutput
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import Cardinality


def is_worth_a_look(pipeline: Pipeline, boundary: int) -> bool:
    """Whether the first request of an execution, at this await, may turn out to be in vain, and a look could tell."""
    knows_more = isinstance(pipeline.output, ObjectOutput) or counted_by(pipeline, boundary) is not None
    return knows_more and pipeline.next_await(0) == boundary


def counted_by(pipeline: Pipeline, boundary: int) -> int | None:
    """The aggregate step that takes one item for each that enters the await; None: none does, or nobody can say how many.

    Items that may be left out later count too: to ask for more than it can take, in the hope that enough of them fail, costs more than to refuse.
    """
    step = pipeline.await_step(boundary)
    suffix = pipeline.steps[boundary + 1 : step.suffix_stop]
    is_one_each = all(each.cardinality is Cardinality.ONE_TO_ONE for each in suffix)
    return step.suffix_stop if step.itemised and step.suffix_stop < len(pipeline.steps) and is_one_each else None


def looked_ahead(
    pipeline: Pipeline,
    execution: ExecutionRecord | None,
    unit: UnitRecord | None,
    *,
    code: str | None,
    message: str,
    now_ms: int,
) -> Decisions:
    """What was seen: `code` says what would fail at the end, so it fails now; None: go on."""
    if execution is None or execution.is_terminal:
        return [NoOp("look-outlived")]
    if code is None:
        return []
    return fail(pipeline, execution, unit, code=code, message=message, now_ms=now_ms)
