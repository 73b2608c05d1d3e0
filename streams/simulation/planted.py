"""Planted bugs: known mistakes that the simulator must catch, so that its silence means something."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from schemas import facts
from state import interaction
from state.interaction import InteractionStatus
from streams.core import CoreTask
from streams.loop import TransactionalLoop
from topologies import admission
from topologies.decisions import Append, Duplicate

Swap = tuple[Any, str, Any]


def _skip_offsets() -> list[Swap]:
    """A transaction carries the offsets of records alone: what writes for a partition without reading from it is fenced by nothing."""

    def offsets(_loop: TransactionalLoop, _tasks: Any, moved: Any) -> Any:
        return dict(sorted(moved, key=lambda position: position[1]))

    return [(TransactionalLoop, "_offsets", offsets)]


def _offer_before_commit() -> list[Swap]:
    """An admitted completion is offered when it is decided."""

    def offer(task: CoreTask, decision: Any, _outputs: Any, _event: Any) -> None:
        session = task._sessions.get(decision.unit_id)  # noqa: SLF001 - a planted bug sits inside
        if session is not None and session.live:
            session.offer(decision.item_index)

    return [(CoreTask, "_do_offer", offer)]


def _count_a_duplicate() -> list[Swap]:
    """An equal second answer is admitted again."""
    judge = admission._second_answer  # noqa: SLF001

    def second(step: Any, answer: Any, shape: Any, row: Any, *, now_ms: int) -> Any:
        decisions = judge(step, answer, shape, row, now_ms=now_ms)
        if decisions == [Duplicate()]:
            ref = answer.ref
            again = facts.BoundaryCompletionAdmitted(
                ref.execution_id,
                now_ms,
                ref.unit_id,
                ref.item_index,
                row.completion,
                row.answer,
                row.actor,
                answer.recorded_at_ms,
            )
            return [Append(again)]
        return decisions

    table = {
        **interaction.TRANSITIONS,
        (InteractionStatus.COMPLETED, facts.BoundaryCompletionAdmitted): InteractionStatus.COMPLETED,
    }
    return [(admission, "_second_answer", second), (interaction, "TRANSITIONS", table)]


def _rewind_after_unknown() -> list[Swap]:
    """After a commit whose outcome is unknown the batch is decided again on the rows in memory."""

    def rewind(loop: TransactionalLoop, *, fenced: bool) -> None:
        del fenced
        for task in dict.fromkeys(loop.tasks.values()):
            task.drop()
        loop._drop_producer()  # noqa: SLF001
        loop._assigned = ()  # noqa: SLF001

    return [(TransactionalLoop, "_take_over_own", rewind)]


PLANTS: Mapping[str, Callable[[], list[Swap]]] = {
    "skip-offsets": _skip_offsets,
    "offer-before-commit": _offer_before_commit,
    "count-a-duplicate": _count_a_duplicate,
    "rewind-after-unknown": _rewind_after_unknown,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a bug for a while; None plants none."""
    swaps = PLANTS[name]() if name else []
    before = [(where, attribute, getattr(where, attribute)) for where, attribute, _ in swaps]
    try:
        for where, attribute, value in swaps:
            setattr(where, attribute, value)
        yield
    finally:
        for where, attribute, value in before:
            setattr(where, attribute, value)
