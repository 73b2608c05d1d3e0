"""Dispatch: row, fact and request in one decision list; the idempotency key (BEHAVIOUR F6, 5.1)."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel, Field

from tests.decisions.given import (
    AWAIT,
    EXECUTION,
    NOW,
    PROJECTION,
    TENANT,
    TIMEOUT_MS,
    UNIT,
    await_step,
    cancelled,
    closed,
    dispatched,
    given,
    opened,
    request,
    source_ended,
    stream,
    streaming,
)
from topologies.decisions.decision import Append, Decision, JudgeHeld, NoOp, Request
from topologies.decisions.dispatch import dispatch, dispatch_items, open_unit
from topologies.pipeline.items import KEY_CHARS_MAX, SourceItem, idempotency_key
from topologies.pipeline.payloads import PayloadType


def items(*indexes: int) -> list[SourceItem]:
    return [SourceItem(request(index), f"{EXECUTION}:await-1:item={index}") for index in indexes]


def sent(index: int) -> list[Decision]:
    fact = dispatched(index)
    return [Append(fact), Request(stream().await_step(AWAIT), TENANT, fact)]


def shape(decisions: list[Decision]) -> list[Any]:
    """Steps hold functions; compare what is sent."""
    return [(type(d), d.fact) if isinstance(d, Append | Request) else d for d in decisions]


def test_items_go_out_in_order_with_one_request_each_and_the_end_in_the_same_list() -> None:
    """DESIGN 7: after the last dispatch the source is never needed again."""
    known = given(stream(), *streaming(2, live=True))
    known.pipeline.await_step(AWAIT)
    decided = known.when(
        lambda g: dispatch_items(g.pipeline, g.the_execution, g.the_unit, 2, items(2, 3), (), ended=True, now_ms=NOW)
    )
    assert shape(decided.decisions) == shape([*sent(2), *sent(3), Append(source_ended(4))])
    after = decided.folded()
    assert (after.the_unit.dispatched, after.the_unit.source_count) == (4, 4)


def test_a_stream_may_end_without_another_item() -> None:
    known = given(stream(), *streaming(2, live=True))
    known.pipeline.await_step(AWAIT)
    known.when(
        lambda g: dispatch_items(g.pipeline, g.the_execution, g.the_unit, 2, [], (), ended=True, now_ms=NOW)
    ).then(Append(source_ended(2)))


def test_more_may_follow() -> None:
    known = given(stream(), *streaming(0, live=True))
    known.pipeline.await_step(AWAIT)
    decided = known.when(
        lambda g: dispatch_items(g.pipeline, g.the_execution, g.the_unit, 0, items(0), (), ended=False, now_ms=NOW)
    )
    assert shape(decided.decisions) == shape(sent(0))


def test_no_request_leaves_for_items_whose_answer_is_held() -> None:
    known = given(stream(), *streaming(0, live=True))
    known.pipeline.await_step(AWAIT)
    decided = known.when(
        lambda g: dispatch_items(g.pipeline, g.the_execution, g.the_unit, 0, items(0, 1), {0}, ended=False, now_ms=NOW)
    )
    assert shape(decided.decisions) == shape([Append(dispatched(0, requested=False)), JudgeHeld(UNIT, 0), *sent(1)])


def test_items_that_were_pulled_before_the_execution_ended_are_dropped() -> None:
    known = given(stream(), *streaming(1, live=True), closed("CANCELLED"), cancelled())
    known.pipeline.await_step(AWAIT)
    known.when(
        lambda g: dispatch_items(g.pipeline, g.the_execution, g.the_unit, 1, items(1), (), ended=True, now_ms=NOW)
    ).then(NoOp("session-outlived"))


def test_the_deadline_counts_from_dispatch() -> None:
    known = given(stream(), *streaming(0, live=True))
    step = await_step(projection=PROJECTION)
    decided = dispatch(step, known.the_execution, UNIT, 0, items(0)[0], held=False, now_ms=NOW + 7)
    assert isinstance(decided[0], Append)
    fact: Any = decided[0].fact
    assert fact.deadline_ms == NOW + 7 + TIMEOUT_MS
    assert (fact.input_type, fact.output_type, fact.projector) == ("shop:Order", "shop:Verdict", "shop:Project")


@pytest.mark.parametrize(("itemised", "on", "live"), [(True, True, True), (True, False, False), (False, True, False)])
def test_only_an_itemised_unit_is_live(itemised: bool, on: bool, live: bool) -> None:
    known = given(stream(), *streaming(0, live=True))
    decided = open_unit(await_step(live=on), known.the_execution, UNIT, itemised=itemised, now_ms=NOW)
    assert decided == Append(opened(itemised=itemised, live=live))


# --- the idempotency key -----------------------------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


class Address(BaseModel):
    town: str | None = None


class Parcel(BaseModel):
    parcel_id: str = Field(alias="parcelId")
    weight: Decimal = Decimal("1.50")
    fragile: bool = True
    colour: Colour = Colour.RED
    sent_at: datetime = datetime(2024, 2, 3, tzinfo=UTC)
    note: str | None = None
    to: Address = Address()


PARCEL = PayloadType(name="post:Parcel", python_type=Parcel)
VALUE = PARCEL.validate_json(b'{"parcelId":"p-1"}')


@pytest.mark.parametrize(
    ("fields", "item_index", "expected"),
    [
        ((), None, f"{EXECUTION}:await-1"),
        ((), 3, f"{EXECUTION}:await-1:item=3"),
        (("parcel_id",), None, "await-1:parcel_id=p-1"),
        (("parcelId",), 0, "await-1:parcelId=p-1"),
        (("weight", "parcelId"), None, "await-1:weight=1.5:parcelId=p-1"),
        (("fragile",), None, "await-1:fragile=true"),
        (("sent_at",), None, "await-1:sent_at=2024-02-03T00\\:00\\:00Z"),
        (("note",), None, "await-1:note=<null>"),
        (("to.town",), None, "await-1:to.town=<null>"),
    ],
)
def test_the_key_is_made_of_the_declared_fields_in_order(
    fields: tuple[str, ...], item_index: int | None, expected: str
) -> None:
    step = await_step(input=PARCEL, idempotency_key_fields=fields)
    assert idempotency_key(step, EXECUTION, VALUE, item_index) == expected


def test_a_long_key_is_replaced_by_its_hash() -> None:
    step = await_step(input=PARCEL, idempotency_key_fields=("parcelId",))
    keys = [
        idempotency_key(step, EXECUTION, PARCEL.validate({"parcelId": "p" * length}), None)
        for length in (KEY_CHARS_MAX, KEY_CHARS_MAX + 1)
    ]
    assert all(key.startswith("await-1:sha256:") and len(key) < KEY_CHARS_MAX for key in keys)
    assert len(set(keys)) == 2
