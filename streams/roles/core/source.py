"""The source of a segment, an await or a publication: the payloads that enter it, read on the worker pool (DESIGN 7).

Theory of operation. What enters is either stored (the outputs of an itemised unit's items, or the execution's payload) or made by running the
steps before it. The stream entering an itemised await is pulled by demand. When it is made again after a restart, what was dispatched is
compared with its stored request and skipped, so that an input which changed is noticed and never mixed with its former self.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

from schemas import limits
from schemas.errors import SourceChanged
from state.execution import ExecutionRecord
from state.interaction import InteractionRecord
from state.keys import interaction_key
from state.segment_input import segment_input
from state.tables.rows import PartitionRows
from state.unit import UnitRecord
from streams.author.calls import Author, BeforeEach, Items, StreamRequest
from streams.roles.core.proof import ProvenItems, SourceProof
from streams.roles.core.stored import stored_payloads
from topologies.pipeline.items import SourceItem
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import PayloadType
from topologies.pipeline.steps import AwaitStep


class SourceStream:
    """The items entering a unit, past what was dispatched; read on the worker pool.

    Args:
        open_items: Opens the stream at its first item; called by the first pull.
        check: Raises when an item is not the one that was dispatched at its index.
        dispatched: How many were.
        proof: Where the items are read of an object.
    """

    def __init__(
        self,
        open_items: Callable[[], Items],
        check: Callable[[int, SourceItem], None],
        dispatched: int,
        proof: SourceProof | None = None,
    ) -> None:
        self._open = open_items
        self._check = check
        self._dispatched = dispatched
        self._proof = proof
        self._items: Items | None = None
        self._proven: ProvenItems | None = None

    def pull(self, count: int, before_each: BeforeEach) -> tuple[list[SourceItem], bool]:
        """The next items, at most `count`, and whether the stream has ended with them.

        Raises:
            SourceChanged: what was dispatched is not what the source has now.
        """
        if self._items is None:
            if self._proof is not None:
                self._proof.begin(before_each)
            items = self._items = self._open()
            with self._proof.reading(before_each) if self._proof is not None else nullcontext():
                self._pass_dispatched(items, before_each)
            self._proven = ProvenItems(items, self._proof) if self._proof is not None else None
        return self._items.pull(count) if self._proven is None else self._proven.pull(count, before_each)

    def _pass_dispatched(self, items: Items, before_each: BeforeEach) -> None:
        index, has_ended = 0, False
        while index < self._dispatched and not has_ended:
            before_each()
            pulled, has_ended = items.pull(min(self._dispatched - index, limits.PULL_ITEMS_MAX))
            for item in pulled:
                self._check(index, item)
                index += 1
        if index < self._dispatched:
            msg = (
                f"the source has {index} items now; {self._dispatched} were dispatched; submit the source once more, under "
                "another --key, when it is as it should be"
            )
            raise SourceChanged(msg)

    def close(self) -> None:
        """Nobody will pull any more."""
        if self._items is not None:
            self._items.close()


def source_stream(
    pipeline: Pipeline, author: Author, rows: PartitionRows, execution: ExecutionRecord, unit: UnitRecord
) -> SourceStream:
    """The stream entering the unit's await: the source and the steps before it, past what was dispatched."""
    first, dispatched = execution.step_index, unit.dispatched
    payload = segment_input(execution, rows)
    before = rows.unit(execution.input_unit_id)
    stored = _stored_requests(rows, unit.unit_id, dispatched)
    step = pipeline.await_step(unit.step_number)

    def open_items() -> Items:
        payloads = stored_payloads(rows, before, payload, many=execution.many)
        return author.open_items(StreamRequest(execution.execution_id, first, unit.step_number, payloads))

    def check(index: int, item: SourceItem) -> None:
        row = next(stored)
        check_same_item(step, index, item, row.request, row.idempotency_key)

    return SourceStream(open_items, check, dispatched, SourceProof.of(execution, first))


def _stored_requests(rows: PartitionRows, unit_id: str, count: int) -> Iterator[InteractionRecord]:
    """The requests that were dispatched, in index order."""
    for first in range(0, count, limits.PUBLISH_CHUNK_ITEMS):
        last = min(first + limits.PUBLISH_CHUNK_ITEMS, count)
        yield from rows.committed([interaction_key(unit_id, index) for index in range(first, last)])


def check_same_item(step: AwaitStep, index: int, item: SourceItem, stored_request: bytes, stored_key: str) -> None:
    """A re-read item must be the one that was dispatched: by its key, or by the request's value where no fields make the key.

    Raises:
        SourceChanged: it is another one.
    """
    if step.idempotency_key_fields:
        same = item.idempotency_key == stored_key
    else:
        same = _means_the_same(step.input, item.request, stored_request)
    if not same:
        msg = (
            f"item {index} of the source is not the one whose request was sent; submit the source once more, under another "
            "--key, when it is as it should be"
        )
        raise SourceChanged(msg)


def _means_the_same(kind: PayloadType, now: bytes, stored: bytes) -> bool:
    try:
        return kind.same(now, stored)
    except ValueError:  # the stored one is of a type that the pipeline had before
        return False
