"""Looking ahead: the output place is tried, and the items that an aggregate will take are counted, before the first request.

Runs on the worker pool, once an execution. What the look itself meets (a source that changed, an author's function that raises) is left to
the work that comes after it, which meets it too and is judged with its retries.
"""

from __future__ import annotations

from collections.abc import Callable

from connectors.objects.publication import object_key, try_place
from schemas import limits
from state.execution import ExecutionRecord
from streams.author.calls import Items
from streams.author.errors import AggregateTooLarge
from streams.roles.core.publishing import key_values, ungrouped
from topologies.pipeline.ends import ObjectOutput
from topologies.pipeline.model import Pipeline


def try_output(pipeline: Pipeline, execution: ExecutionRecord, *, instance: str) -> None:
    """Find out whether the output object can be published; of groups that answers make, only the place is known.

    Raises:
        ObjectKeyRefused, PublicationConflict, PublicationFailed, StorageFull: See `connectors.objects.publication.try_place`.
    """
    output = pipeline.output
    if not isinstance(output, ObjectOutput):
        return
    key = object_key(output.key, {**key_values(execution), "groupKey": ungrouped(execution)})
    try_place(output.location, key if output.group_by is None else None, instance=instance)


def count_items(items: Items, step_id: str, before_each: Callable[[], None]) -> None:
    """Pull items until the aggregate step could not take one more.

    Raises:
        AggregateTooLarge: There are more than it may take.
    """
    count, has_ended = 0, False
    while not has_ended:
        before_each()
        room = limits.AGGREGATE_ITEMS_MAX + 1 - count
        pulled, has_ended = items.pull(min(room, limits.PULL_ITEMS_MAX))
        count += len(pulled)
        if count > limits.AGGREGATE_ITEMS_MAX:
            raise AggregateTooLarge.of(step_id)
