"""Every status with every fact: legal pairs give the named status, all others raise and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from schemas import facts
from schemas.facts import FACTS, Fact
from state import execution, interaction, item, unit
from state.execution import ExecutionRecord, ExecutionStatus
from state.folding import FOLDS
from state.interaction import InteractionRecord, InteractionStatus
from state.item import ItemRecord, ItemStatus
from state.transition import IllegalTransition, Transitions
from state.unit import UnitRecord, UnitStatus
from tests.decisions.given import EXECUTION, NOW, UNIT

LATER = NOW + 5


def a_fact(kind: type[Fact]) -> Fact:
    """Some fact of a kind."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name == "outcome":
            values[field.name] = "COMPLETED"
        elif field.name == "unit_id":
            values[field.name] = UNIT
        elif field.name == "execution_id":
            values[field.name] = EXECUTION
        elif field.name == "outputs":
            values[field.name] = []
        elif field.required:
            values[field.name] = {str: "x", int: LATER, bool: False, bytes: b"{}"}.get(field.type)
    if "item_index" in values:
        values["item_index"] = 0
    return kind(**values)


def an_execution(status: str) -> ExecutionRecord:
    return ExecutionRecord(EXECUTION, ExecutionStatus(status), "t", "p", "k", NOW, NOW, 0, 1, b"{}", held=1)


def a_unit(status: str) -> UnitRecord:
    return UnitRecord(UNIT, EXECUTION, "await-1", 1, True, UnitStatus(status), False, NOW)


def an_interaction(status: str) -> InteractionRecord:
    return InteractionRecord(UNIT, 0, InteractionStatus(status))


def an_item(status: str) -> ItemRecord:
    return ItemRecord(UNIT, 0, ItemStatus(status))


MACHINES: list[tuple[str, Transitions, Any, Callable[[str], Any], Callable[[Any, Fact], Any]]] = [
    ("execution", execution.TRANSITIONS, ExecutionStatus, an_execution, execution.evolve),
    ("unit", unit.TRANSITIONS, UnitStatus, a_unit, unit.evolve),
    ("interaction", interaction.TRANSITIONS, InteractionStatus, an_interaction, interaction.evolve),
    ("item", item.TRANSITIONS, ItemStatus, an_item, item.evolve),
]
PAIRS = [
    pytest.param(transitions, record_of, evolve, status, kind, id=f"{name}-{status}-{kind.__name__}")
    for name, transitions, statuses, record_of, evolve in MACHINES
    for status in (None, *statuses)
    for kind in FACTS
]


@pytest.mark.parametrize(("transitions", "record_of", "evolve", "status", "kind"), PAIRS)
def test_every_status_with_every_fact(
    transitions: Transitions,
    record_of: Callable[[str], Any],
    evolve: Callable[[Any, Fact], Any],
    status: str | None,
    kind: type[Fact],
) -> None:
    record = None if status is None else record_of(status)
    fact = a_fact(kind)
    before = msgspec.msgpack.encode(record)
    after = transitions.get((status, kind))
    if after is None:
        with pytest.raises(IllegalTransition, match=f"{kind.__name__} is not possible in status {status}"):
            evolve(record, fact)
    elif kind is facts.ContinuationAttemptFailed:
        ended = ItemStatus.FAILED if transitions is item.TRANSITIONS else after
        assert evolve(record, fact).status == ended  # the fact names no retry
        assert evolve(record, msgspec.structs.replace(fact, retry_at_ms=LATER)).status == after
    else:
        assert evolve(record, fact).status == after
    assert msgspec.msgpack.encode(record) == before


@pytest.mark.parametrize("outcome", [status for status in UnitStatus if status is not UnitStatus.WAITING_EXTERNAL])
def test_a_closed_unit_has_the_outcome_that_the_fact_names(outcome: UnitStatus) -> None:
    fact = facts.BoundaryUnitClosed(EXECUTION, LATER, UNIT, outcome)
    assert unit.evolve(a_unit("WAITING_EXTERNAL"), fact).status is outcome


def test_every_fact_changes_a_row() -> None:
    special = {facts.ContinuationSegmentCreated}  # an execution's or an item's, by its index
    assert set(FOLDS) | special == set(FACTS)


@pytest.mark.parametrize(("name", "transitions", "statuses"), [(m[0], m[1], m[2]) for m in MACHINES])
def test_every_status_can_be_reached(name: str, transitions: Transitions, statuses: Any) -> None:
    named_by_the_fact: dict[str, set[str]] = {
        "unit": {UnitStatus.FAILED, UnitStatus.TIMED_OUT, UnitStatus.CANCELLED},
        "item": {ItemStatus.FAILED},
    }
    assert {str(after) for after in transitions.values()} | named_by_the_fact.get(name, set()) == set(statuses)


def test_a_terminal_execution_takes_a_redrive_and_what_leaves_its_end_as_it_is() -> None:
    leaving = {
        (status, kind) for status, kind in execution.TRANSITIONS if status in {str(s) for s in execution.TERMINAL}
    }
    kept = {(status, kind) for status in execution.TERMINAL for kind in (facts.InputMoved, facts.RunForgotten)}
    assert leaving == {(ExecutionStatus.FAILED, facts.RunRedriven)} | kept
    assert all(execution.TRANSITIONS[status, kind] == status for status, kind in kept)


def test_a_closed_unit_takes_nothing() -> None:
    assert {status for status, _ in unit.TRANSITIONS} == {None, UnitStatus.WAITING_EXTERNAL}


def test_a_table_that_names_too_much_raises_all_the_same() -> None:
    """The guards below the tables: a record that does not exist, or a fact nobody folds."""
    fact = facts.RunFailed(EXECUTION, NOW, "X", "x")
    loose = {(None, facts.RunFailed): "FAILED"}
    for module, guarded in ((execution, "TRANSITIONS"), (unit, "TRANSITIONS"), (interaction, "TRANSITIONS")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, guarded, loose)
            with pytest.raises((IllegalTransition, KeyError)):
                module.evolve(None, fact)
