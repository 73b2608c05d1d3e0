"""Folding: which rows a fact changes, and how. The only writer of rows (DESIGN 5).

`fold` serves the running task (rows over a store) and the proof that folding the facts topic yields the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from schemas import facts
from schemas.declaration import FORMAT
from schemas.errors import FormatUnknown
from schemas.facts import Fact
from state import execution, interaction, item, unit
from state.execution import ExecutionRecord
from state.interaction import InteractionRecord
from state.item import ItemRecord
from state.keys import execution_key, interaction_key, item_key, table_of, unit_key
from state.unit import UnitRecord

Row = ExecutionRecord | UnitRecord | InteractionRecord | ItemRecord

encode_row = msgspec.msgpack.Encoder().encode
"""A record to the bytes of its row."""

_DECODERS: dict[int, Callable[[bytes], Any]] = {
    ord("e"): msgspec.msgpack.Decoder(ExecutionRecord).decode,
    ord("u"): msgspec.msgpack.Decoder(UnitRecord).decode,
    ord("i"): msgspec.msgpack.Decoder(InteractionRecord).decode,
    ord("t"): msgspec.msgpack.Decoder(ItemRecord).decode,
}


def decode_row(key: bytes, value: bytes) -> Any:
    """The record in a row; its type follows from the key's prefix.

    Raises:
        FormatUnknown: the row was written by a version with another format.
    """
    try:
        return _DECODERS[key[0]](value)
    except msgspec.ValidationError as error:
        raise FormatUnknown(
            f"a row of table {table_of(key)} is not of format {FORMAT}, which this version reads ({error}): it was written by "
            "another version of kawait. Run that version, or use a new app name"
        ) from error


class Rows(Protocol):
    """Records by key, read-your-writes."""

    def get(self, key: bytes) -> Any:
        """The record, or None."""

    def put(self, key: bytes, record: Row) -> None:
        """Make `record` the row."""


def _of_execution(fact: Fact) -> bytes:
    return execution_key(fact.execution_id)


def _of_unit(fact: Any) -> bytes:
    return unit_key(fact.unit_id)


def _of_interaction(fact: Any) -> bytes:
    return interaction_key(fact.unit_id, fact.item_index)


def _of_item(fact: Any) -> bytes:
    return item_key(fact.unit_id, fact.item_index)


_Fold = tuple[Callable[[Any], bytes], Callable[[Any, Any], Row]]
_EXECUTION: _Fold = (_of_execution, execution.evolve)
_UNIT: _Fold = (_of_unit, unit.evolve)
_INTERACTION: _Fold = (_of_interaction, interaction.evolve)
_ITEM: _Fold = (_of_item, item.evolve)

FOLDS: Mapping[type[Fact], tuple[_Fold, ...]] = {
    facts.RunSubmitted: (_EXECUTION,),
    facts.SegmentAttemptStarted: (_EXECUTION,),
    facts.SegmentCompleted: (_EXECUTION,),
    facts.SegmentAttemptFailed: (_EXECUTION,),
    facts.SegmentSuspended: (_EXECUTION,),
    facts.TerminalPublicationPrepared: (_EXECUTION,),
    facts.TerminalPublicationFailed: (_EXECUTION,),
    facts.TerminalPublicationCompleted: (_EXECUTION,),
    facts.RunSucceeded: (_EXECUTION,),
    facts.RunFailed: (_EXECUTION,),
    facts.RunCancelled: (_EXECUTION,),
    facts.RunRedriven: (_EXECUTION,),
    facts.InputMoved: (_EXECUTION,),
    facts.RunForgotten: (_EXECUTION,),
    facts.BoundaryUnitOpened: (_EXECUTION, _UNIT),
    facts.SourceEnded: (_UNIT,),
    facts.BoundaryDispatchCompleted: (_UNIT,),
    facts.ContinuationsSwept: (_UNIT,),
    facts.BoundaryUnitClosed: (_UNIT,),
    facts.BoundaryInteractionDispatched: (_UNIT, _INTERACTION),
    facts.BoundaryCompletionHeld: (_EXECUTION, _INTERACTION),
    facts.BoundaryCompletionAdmitted: (_UNIT, _INTERACTION),
    facts.CompletionRefused: (_INTERACTION,),
    facts.InteractionTimedOut: (_UNIT, _INTERACTION),
    facts.ContinuationCompleted: (_UNIT, _ITEM),
    facts.ContinuationAttemptFailed: (_UNIT, _ITEM),
    facts.ContinuationSkipped: (_UNIT, _ITEM),
}


def fold(rows: Rows, fact: Fact) -> None:
    """Change every row that `fact` changes; all of them or, when one refuses, none.

    Raises:
        IllegalTransition: `fact` is not possible now; no row is changed.
    """
    get, put = rows.get, rows.put
    folds = _folds_of(fact)
    keys = [key_of(fact) for key_of, _ in folds]
    before = list(map(get, keys))
    after = [evolve(record, fact) for (_, evolve), record in zip(folds, before)]  # noqa: B905 - as many by construction
    for key, record in zip(keys, after):  # noqa: B905
        put(key, record)


def _folds_of(fact: Fact) -> tuple[_Fold, ...]:
    """The rows that a fact changes; two kinds of fact say it in their fields."""
    kind = type(fact)
    if kind is facts.BoundaryInteractionDispatched and not fact.requested:  # type: ignore[attr-defined]
        return (_EXECUTION, _UNIT, _INTERACTION)  # one answer less is held
    if kind is facts.ContinuationSegmentCreated:
        return (_EXECUTION,) if fact.item_index is None else (_ITEM,)  # type: ignore[attr-defined]
    return FOLDS[kind]
