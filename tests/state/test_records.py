"""What each fact writes on its rows, and how rows are stored."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from schemas import facts
from schemas.errors import FormatUnknown
from state import execution, interaction, item, unit
from state.execution import ExecutionRecord, ExecutionStatus
from state.folding import decode_row, encode_row, fold
from state.interaction import InteractionRecord, InteractionStatus, KeptAnswer
from state.item import ItemRecord, ItemStatus
from state.keys import (
    TABLES,
    execution_key,
    interaction_key,
    item_index_of,
    item_key,
    prefix_span,
    span,
    split_key,
    unit_key,
)
from state.transition import IllegalTransition
from state.unit import UnitRecord, UnitStatus
from tests.decisions import given as say
from tests.decisions.given import EXECUTION, NO, NOW, UNIT, YES, DictRows, given

# --- counters of a unit ----------------------------------------------------------------------------------------------------------------


def a_unit(*, live: bool) -> UnitRecord:
    return UnitRecord(UNIT, EXECUTION, "await-1", 1, True, UnitStatus.WAITING_EXTERNAL, live, NOW)


COUNTED = ("dispatched", "outputs", "completed", "source_count", "dispatch_complete", "expected", "cursor")


@pytest.mark.parametrize(
    ("fact", "when_parked", "when_live"),
    [
        (say.dispatched(0), {"dispatched": 1}, {"dispatched": 1}),
        (msgspec.structs.replace(say.dispatched(0), attempt=2), {}, {}),
        (say.admitted(0), {"completed": 1}, {}),
        (say.timed_out(0, "fail"), {}, {}),
        (say.timed_out(0, "value"), {}, {}),
        (say.timed_out(0, "skip"), {}, {}),
        (say.source_ended(7), {"source_count": 7}, {"source_count": 7}),
        (say.swept(5), {"cursor": 5}, {"cursor": 5}),
        (say.continued(0), {"outputs": 1}, {"outputs": 1}),
        (say.skipped(0), {"outputs": 1, "skipped": 1}, {"outputs": 1, "skipped": 1}),
        (say.continuation_failed(0), {}, {}),
        (
            say.continuation_failed(0, retry_at_ms=None),
            {"failed": 1, "failures": ["item 0: STEP_FAILED: it broke"]},
            {"failed": 1, "failures": ["item 0: STEP_FAILED: it broke"]},
        ),
        (
            say.dispatch_completed(4, 2),
            {"dispatch_complete": True, "expected": 4, "completed": 2},
            {"dispatch_complete": True, "expected": 4, "completed": 2, "live": False},
        ),
        (say.closed("FAILED"), {"status": UnitStatus.FAILED}, {"status": UnitStatus.FAILED}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, facts.Fact) else "",
)
def test_counters_of_a_unit(fact: facts.Fact, when_parked: dict[str, object], when_live: dict[str, object]) -> None:
    for live, changes in ((False, when_parked), (True, when_live)):
        before = a_unit(live=live)
        assert unit.evolve(before, fact) == msgspec.structs.replace(before, **changes)


def test_the_two_kinds_of_completion_are_never_one_counter() -> None:
    after = unit.evolve(unit.evolve(a_unit(live=False), say.admitted(0)), say.continued(1))
    assert (after.completed, after.outputs) == (1, 1)


def test_the_row_of_a_unit_does_not_grow_with_its_items() -> None:
    """CASES 50 and 58: counters, no key sets."""
    small = unit.evolve(a_unit(live=False), say.dispatched(0))
    large = small
    for index in range(1, 127):
        large = unit.evolve(large, say.dispatched(index))
    assert large.dispatched == 127
    assert len(encode_row(large)) == len(encode_row(small))


# --- an execution ----------------------------------------------------------------------------------------------------------------------


def test_an_execution_remembers_whose_answer_is_its_input_while_a_stream_opens_the_next_unit() -> None:
    """Scalar await, then a stream into a second await: the source must be readable again after a takeover."""
    record = given(
        say.scalar(), *say.scalar_waiting(), say.admitted(), say.closed(), say.continuation_created(None)
    ).execution
    assert record is not None
    assert (record.await_unit_id, record.input_unit_id, record.step_index) == (UNIT, UNIT, 2)
    second = f"{EXECUTION}.3"
    record = execution.evolve(
        execution.evolve(record, say.started(2)), facts.BoundaryUnitOpened(EXECUTION, NOW, second, "x", 3, True, True)
    )
    assert (record.await_unit_id, record.input_unit_id) == (second, UNIT)
    after = execution.evolve(record, say.segment_completed(4, b"[1]", many=True))
    assert (after.await_unit_id, after.input_unit_id, after.input, after.many) == (None, None, b"[1]", True)


def test_each_attempt_is_counted_and_the_next_segment_starts_at_one() -> None:
    rows = given(say.scalar(), say.submitted(), say.started(), say.segment_failed(NOW + 100)).rows
    record = rows.get(execution_key(EXECUTION))
    assert (record.status, record.attempt, record.due_ms) == (ExecutionStatus.WAIT_RETRY, 2, NOW + 100)
    for fact in (say.started(attempt=2), say.segment_completed()):
        fold(rows, fact)
    record = rows.get(execution_key(EXECUTION))
    assert (record.attempt, record.due_ms, record.error_code) == (1, None, "STEP_FAILED")


def test_success_clears_what_earlier_attempts_left() -> None:
    record = given(
        say.scalar(),
        say.submitted(),
        say.started(),
        say.segment_failed(NOW),
        say.started(attempt=2),
        say.succeeded(b"1"),
    ).the_execution
    assert (record.result, record.error_code, record.error_message, record.due_ms) == (b"1", None, None, None)


def test_a_redrive_keeps_the_await_pointer() -> None:
    """BEHAVIOUR 2.3: id, input and pointer stay."""
    record = given(say.scalar(), *say.scalar_waiting(), say.closed("TIMED_OUT"), say.failed()).the_execution
    again = execution.evolve(record, facts.RunRedriven(EXECUTION, NOW, 2, "operator"))
    assert (again.status, again.attempt, again.await_unit_id, again.error_code) == ("QUEUED", 2, UNIT, None)


def test_publication_facts_on_an_execution() -> None:
    rows = given(say.scalar(), say.submitted()).rows
    prepared = facts.TerminalPublicationPrepared(EXECUTION, NOW, "p", 1, NOW + 9)
    fold(rows, prepared)
    record = rows.get(execution_key(EXECUTION))
    assert (record.status, record.publication_id, record.due_ms) == ("RUNNING", "p", NOW + 9)
    fold(rows, facts.TerminalPublicationFailed(EXECUTION, NOW, "p", 1, "X", "x", NOW + 3))
    record = rows.get(execution_key(EXECUTION))
    assert (record.status, record.attempt, record.due_ms) == ("WAIT_RETRY", 2, NOW + 3)
    fold(rows, msgspec.structs.replace(prepared, attempt=2))
    fold(rows, facts.TerminalPublicationCompleted(EXECUTION, NOW, "p", ["a.out"]))
    record = rows.get(execution_key(EXECUTION))
    assert (record.status, record.outputs, record.due_ms) == ("RUNNING", ["a.out"], None)


# --- an interaction --------------------------------------------------------------------------------------------------------------------


def test_a_held_answer_stays_until_it_is_judged() -> None:
    waiting = given(say.scalar(), say.submitted(), say.started(), say.opened(itemised=True, live=True), say.held(0))
    assert waiting.the_execution.held == 1
    row = waiting.facts(say.dispatched(0, requested=False)).interaction(0)
    assert row is not None
    assert (row.status, row.held and row.held.answer) == (InteractionStatus.PENDING, YES)
    refused = interaction.evolve(row, say.refused("wrong-shape", 0))
    assert (refused.held, refused.refusals, refused.status) == (None, 1, InteractionStatus.PENDING)
    late = interaction.evolve(
        row, say.refused("late", 0)
    )  # somebody else's answer was late; the held one is still to be judged
    assert late.held == row.held
    kept = msgspec.structs.replace(say.refused("late", 0), kept_answer=NO, completed_at_ms=NOW + 7)
    late = interaction.evolve(row, kept)
    assert late.late is not None
    assert (late.held, late.late.answer, late.late.completed_at_ms) == (row.held, NO, NOW + 7)


def test_a_refusal_keeps_the_first_answer() -> None:
    record = interaction.evolve(interaction.evolve(None, say.dispatched(0)), say.admitted(0, YES, b'"raw"'))
    after = interaction.evolve(record, say.refused("conflict", 0))
    assert (after.completion, after.answer, after.refusals) == (YES, b'"raw"', 1)


def test_a_value_in_place_of_an_answer_stays_marked() -> None:
    record = interaction.evolve(None, say.dispatched(0))
    record = interaction.evolve(interaction.evolve(record, say.timed_out(0, "value")), say.admitted(0))
    assert (record.status, record.timed_out, record.completion) == (InteractionStatus.COMPLETED, True, YES)


def test_an_interaction_knows_its_public_id() -> None:
    assert InteractionRecord(UNIT, None, InteractionStatus.PENDING).interaction_id == f"{UNIT}.u"
    assert InteractionRecord(UNIT, 3, InteractionStatus.PENDING).interaction_id == f"{UNIT}.3"


# --- an item ---------------------------------------------------------------------------------------------------------------------------


def test_emissions_are_counted_for_each_attempt() -> None:
    record = item.evolve(None, say.continuation_created(0, due_ms=NOW + 1))
    record = item.evolve(record, say.continuation_created(0, due_ms=NOW + 2))
    assert (record.emissions, record.continued, record.due_ms) == (2, True, NOW + 2)
    record = item.evolve(record, say.continuation_failed(0, 1, NOW + 50))
    assert (record.attempt, record.emissions, record.continued, record.due_ms) == (2, 0, False, NOW + 50)
    record = item.evolve(record, say.continuation_created(0, attempt=2, due_ms=NOW + 99))
    assert (record.attempt, record.emissions) == (2, 1)


def test_an_item_that_gave_up_keeps_its_attempt() -> None:
    record = item.evolve(None, say.continuation_failed(0, 1, None))
    assert (record.status, record.attempt, record.due_ms) == (ItemStatus.FAILED, 1, None)


def test_an_item_may_have_no_output() -> None:
    assert item.evolve(None, say.continued(0, outputs=[])) == ItemRecord(UNIT, 0, ItemStatus.SUCCEEDED)


# --- stored rows -----------------------------------------------------------------------------------------------------------------------

EXECUTION_ROW = ExecutionRecord(
    EXECUTION, ExecutionStatus.QUEUED, "t", "p", "k", 1, 2, 3, 4, b"\x00\xff", outputs=["a"]
)
HELD = KeptAnswer(b"{}", "ann", None, NOW, None, "answers", 3, 17)
ROWS = [
    (execution_key(EXECUTION), EXECUTION_ROW),
    (unit_key(UNIT), a_unit(live=True)),
    (interaction_key(UNIT, 4), InteractionRecord(UNIT, 4, InteractionStatus.HELD, held=HELD)),
    (interaction_key(UNIT, None), InteractionRecord(UNIT, None, InteractionStatus.COMPLETED, completion=b"{}")),
    (item_key(UNIT, 4), ItemRecord(UNIT, 4, ItemStatus.SUCCEEDED, outputs=[b"1", b"2"])),
]


@pytest.mark.parametrize(("key", "record"), ROWS, ids=lambda value: type(value).__name__)
def test_a_row_is_read_back_as_it_was_written(key: bytes, record: object) -> None:
    assert decode_row(key, encode_row(record)) == record


@pytest.mark.parametrize(("key", "record"), ROWS, ids=lambda value: type(value).__name__)
def test_a_row_of_an_older_version_gets_the_defaults(key: bytes, record: msgspec.Struct) -> None:
    """Records are arrays: fields are appended, always with a default."""
    fields = msgspec.structs.fields(type(record))
    required = sum(field.required for field in fields)
    assert [field.required for field in fields] == sorted((field.required for field in fields), reverse=True)
    values = msgspec.to_builtins(record, builtin_types=(bytes,))  # the number of the format first
    for length in range(required, len(fields)):
        read = decode_row(key, msgspec.msgpack.encode(values[: length + 1]))
        short = msgspec.structs.asdict(read)
        for field in fields[length:]:
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            assert short[field.name] == default
    with pytest.raises(FormatUnknown, match="not of format 2"):
        decode_row(key, msgspec.msgpack.encode(values[:required]))


@pytest.mark.parametrize(("key", "record"), ROWS, ids=lambda value: type(value).__name__)
def test_a_row_of_another_format_is_refused_with_what_to_do(key: bytes, record: msgspec.Struct) -> None:
    """DECISIONS 5: state of 0.1.0 has no number, a later format another one."""
    values = msgspec.to_builtins(record, builtin_types=(bytes,))
    for other in (values[1:], [3, *values[1:]]):
        with pytest.raises(FormatUnknown, match="Run that version, or use a new app name"):
            decode_row(key, msgspec.msgpack.encode(other))


@pytest.mark.parametrize(("key", "record"), ROWS, ids=lambda value: type(value).__name__)
def test_a_row_of_a_newer_version_can_be_read(key: bytes, record: msgspec.Struct) -> None:
    values = msgspec.to_builtins(record, builtin_types=(bytes,))
    assert decode_row(key, msgspec.msgpack.encode([*values, "new"])) == record


# --- keys ------------------------------------------------------------------------------------------------------------------------------

INDEXES = st.integers(0, 999_999_999)


@drawn(st.lists(INDEXES, min_size=2, max_size=2, unique=True))
def test_keys_sort_in_input_order(indexes: list[int]) -> None:
    low, high = sorted(indexes)
    assert interaction_key(UNIT, low) < interaction_key(UNIT, high) < interaction_key(UNIT, None)
    assert item_key(UNIT, low) < item_key(UNIT, high)


@drawn(INDEXES, INDEXES)
def test_a_span_holds_the_rows_of_its_unit_from_an_item_on(index: int, first: int) -> None:
    for table, key in (("interactions", interaction_key(UNIT, index)), ("items", item_key(UNIT, index))):
        start, end = span(table, UNIT, first)
        assert (start <= key < end) == (index >= first)
        for neighbour in (f"{EXECUTION}.11", f"{EXECUTION}.0", f"{EXECUTION}.2"):
            assert not start <= interaction_key(neighbour, index) < end
            assert not start <= item_key(neighbour, index) < end


def test_a_span_holds_the_one_interaction_of_a_scalar_unit() -> None:
    start, end = span("interactions", UNIT)
    assert start <= interaction_key(UNIT, None) < end


@pytest.mark.parametrize(("key", "_record"), ROWS, ids=lambda value: type(value).__name__)
def test_a_prefix_span_holds_one_whole_table(key: bytes, _record: object) -> None:
    holding = [prefix for prefix in TABLES if prefix_span(prefix)[0] <= key < prefix_span(prefix)[1]]
    assert holding == [chr(key[0])]
    assert split_key(key) == (TABLES[chr(key[0])], key[2:])


@drawn(st.none() | INDEXES)
def test_the_index_in_a_key(index: int | None) -> None:
    assert item_index_of(interaction_key(UNIT, index)) == index


# --- folding -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fact",
    [
        say.dispatched(0),  # the interaction refuses: it is there already
        say.admitted(0),  # the interaction refuses: it was answered
        say.continued(0),  # the item refuses
        say.opened(itemised=True, live=True),  # the unit refuses
        say.held(0),  # the interaction refuses
        say.timed_out(0),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_a_fact_changes_all_its_rows_or_none(fact: facts.Fact) -> None:
    rows = given(say.stream(), *say.streaming(1, live=False), say.admitted(0), say.continued(0)).rows
    before = {key: encode_row(record) for key, record in rows.items()}
    with pytest.raises(IllegalTransition):
        fold(rows, fact)
    assert {key: encode_row(record) for key, record in rows.items()} == before


def test_a_continuation_of_an_item_changes_the_item_and_one_without_an_index_the_execution() -> None:
    rows = given(say.stream(), *say.parked(1, answered=1)).rows
    before = rows.get(execution_key(EXECUTION))
    fold(rows, say.continuation_created(0))
    assert rows.get(execution_key(EXECUTION)) is before
    assert rows.get(item_key(UNIT, 0)).continued
    fold(rows, say.continuation_created(None, 3))
    assert rows.get(execution_key(EXECUTION)).step_index == 3


def test_closing_a_unit_is_one_row_however_many_items() -> None:
    """DESIGN 7: O(1); an interaction is open only while its unit is."""
    rows = given(say.stream(), *say.streaming(5, live=True)).rows
    before = dict(rows)
    fold(rows, say.closed("CANCELLED"))
    assert {key for key in rows if rows[key] is not before[key]} == {unit_key(UNIT)}


def test_rows_need_read_your_writes_only() -> None:
    assert DictRows().get(b"e/none") is None
